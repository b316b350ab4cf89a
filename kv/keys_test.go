package kv

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// golden compares got with the file in testdata; REWIND_GOLDEN=1 writes it. A
// difference is a change of the on-disk format: it needs a step in format.go.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("REWIND_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: on-disk format has changed\n got:\n%s\nwant:\n%s", path, got, want)
	}
}

func TestKeysGolden(t *testing.T) {
	const ino, dir, layer = 1<<40 + 5, 1, 0x0102030405060708
	name := "na\xffme"
	var out strings.Builder
	for _, k := range []struct {
		name string
		key  []byte
	}{
		{"Meta", Meta("next-ino")},
		{"LayerKey", LayerKey(layer)}, {"LayerPrefix", LayerPrefix()},
		{"Digest", Digest(layer)}, {"DigestPrefix", DigestPrefix()},
		{"HeadKey", HeadKey("main")}, {"HeadPrefix", HeadPrefix()},
		{"Inode", Inode(ino, layer)}, {"InodePrefix", InodePrefix(ino)}, {"InodesPrefix", InodesPrefix()},
		{"Name", Name(dir, name, layer)}, {"NamePrefix", NamePrefix(dir, name)}, {"DirPrefix", DirPrefix(dir)},
		{"RName", RName(ino, dir, name, layer)}, {"RNamePrefix", RNamePrefix(ino)},
		{"Extent", Extent(ino, 3, layer)}, {"ExtentPrefix", ExtentPrefix(ino, 3)}, {"ExtentInoPrefix", ExtentInoPrefix(ino)},
		{"Xattr", Xattr(ino, "user.x", layer)}, {"XattrPrefix", XattrPrefix(ino, "user.x")}, {"XattrInoPrefix", XattrInoPrefix(ino)},
		{"Pending", Pending(ino, layer, 9)}, {"PendingPrefix", PendingPrefix()}, {"PendingInoPrefix", PendingInoPrefix(ino)},
		{"ChangeInode", ChangeInode(layer, ino)}, {"ChangeName", ChangeName(layer, dir, name)}, {"ChangePrefix", ChangePrefix(layer)},
		{"BaseIno", BaseIno("a/b")}, {"BaseIno-long", BaseIno(strings.Repeat("long/", 300))}, {"BaseLink", BaseLink(2, ino)},
		{"Chunk", Chunk(bytes.Repeat([]byte{0xab}, 32))}, {"ChunkPrefix", ChunkPrefix()},
		{"Journal", Journal(layer)}, {"JournalPrefix", JournalPrefix()},
		{"JournalAt", JournalAt(layer, 2)}, {"Op", Op(7)}, {"OpPrefix", OpPrefix()},
		{"Decision", Decision(7)}, {"DecisionPrefix", DecisionPrefix()},
		{"Message", Message(bytes.Repeat([]byte{0xab}, 32), 1)}, {"MessagePrefix", MessagePrefix(bytes.Repeat([]byte{0xab}, 32))},
		{"Chain", Chain(bytes.Repeat([]byte{0xab}, 32))}, {"Thread", Thread("main", "sub")}, {"ThreadPrefix", ThreadPrefix()},
		{"ExtentsPrefix", ExtentsPrefix()},
		{"PreImage", PreImage("a/b", name, 3)}, {"PreImage-base", PreImage("", "", 3)}, {"PreImage-long", PreImage(strings.Repeat("long/", 300), name, 3)},
		{"PreImageDir", PreImageDir("a/b")}, {"PreImagePrefix", PreImagePrefix()}, {"BaseShared", BaseShared(ino)}, {"PreImageLink", PreImageLink(2, ino, 3)},
		{"Placed", Placed("", "a/"+name, 3)}, {"Placed-other", Placed("/t", "", 3)}, {"Placed-long", Placed("", strings.Repeat("long/", 300), 3)},
		{"PlacedPrefix", PlacedPrefix("/t")}, {"Commit", Commit(3)}, {"CommitSteps", CommitSteps(2)},
		{"TargetNode", TargetNode(bytes.Repeat([]byte{0xab}, 32))}, {"TargetNodePrefix", TargetNodePrefix()},
	} {
		fmt.Fprintf(&out, "%-16s %s %q\n", k.name, hex.EncodeToString(k.key), k.key)
	}
	golden(t, "keys.golden", out.String())
}

func nameGen() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		b := rapid.SliceOfN(rapid.Byte(), 1, 255).Draw(t, "name")
		for i, c := range b {
			if c == 0 || c == '/' {
				b[i] = 1
			}
		}
		return string(b)
	})
}

func TestKeysRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		num := func(label string) uint64 { return rapid.Uint64().Draw(t, label) }
		a, b, c, name := num("a"), num("b"), num("c"), nameGen().Draw(t, "name")
		eq := func(what string, ok bool, got, want any) {
			if !ok || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%s: ok %v, got %v, want %v", what, ok, got, want)
			}
		}
		within := func(key, prefix []byte) {
			if !bytes.HasPrefix(key, prefix) || len(key) == len(prefix) {
				t.Fatalf("%q does not begin with %q", key, prefix)
			}
		}
		type list []any
		{
			x, y, ok := ParseInode(Inode(a, b))
			eq("inode", ok, list{x, y}, list{a, b})
			within(Inode(a, b), InodePrefix(a))
			within(Inode(a, b), InodesPrefix())
			eq("place of a version", true, string(FromVersion(InodePrefix(a), b)), string(Inode(a, b)))
			l, ok := VersionOf(InodePrefix(a), Inode(a, b))
			eq("layer of a version", ok, l, b)
		}
		{
			dir := name + "/" + name
			d, n, g, ok := ParsePreImage(PreImage(dir, name, a))
			eq("pre-image", ok, list{d, n, g}, list{dir, name, a})
			within(PreImage(dir, name, a), PreImageDir(dir))
			within(PreImage(dir, name, a), PreImagePrefix())
			within(PreImage("", "", a), PreImageDir(""))
			x, y, g, ok := ParsePreImageLink(PreImageLink(a, b, c))
			eq("pre-image of a link", ok, list{x, y, g}, list{a, b, c})
			if _, _, _, ok := ParsePreImage(PreImageLink(a, b, c)); ok {
				t.Fatalf("%q is taken for a path's", PreImageLink(a, b, c))
			}
			if _, _, _, ok := ParsePreImageLink(PreImage(dir, name, a)); ok {
				t.Fatalf("%q is taken for a link's", PreImage(dir, name, a))
			}
		}
		{
			d, ok := ParseTargetNode(TargetNode([]byte(name)))
			eq("target node", ok, string(d), name)
			within(TargetNode([]byte(name)), TargetNodePrefix())
		}
		{
			x, n, y, ok := ParseName(Name(a, name, b))
			eq("name", ok, list{x, n, y}, list{a, name, b})
			within(Name(a, name, b), NamePrefix(a, name))
			within(Name(a, name, b), DirPrefix(a))
		}
		{
			x, y, n, z, ok := ParseRName(RName(a, b, name, c))
			eq("rname", ok, list{x, y, n, z}, list{a, b, name, c})
			within(RName(a, b, name, c), RNamePrefix(a))
		}
		{
			x, y, z, ok := ParseExtent(Extent(a, b, c))
			eq("extent", ok, list{x, y, z}, list{a, b, c})
			within(Extent(a, b, c), ExtentPrefix(a, b))
			within(Extent(a, b, c), ExtentInoPrefix(a))
		}
		{
			x, n, y, ok := ParseXattr(Xattr(a, name, b))
			eq("xattr", ok, list{x, n, y}, list{a, name, b})
			within(Xattr(a, name, b), XattrPrefix(a, name))
			within(Xattr(a, name, b), XattrInoPrefix(a))
		}
		{
			x, y, z, ok := ParsePending(Pending(a, b, c))
			eq("pending", ok, list{x, y, z}, list{a, b, c})
			within(Pending(a, b, c), PendingInoPrefix(a))
			within(Pending(a, b, c), PendingPrefix())
		}
		{
			l, isName, ino, n, ok := ParseChange(ChangeInode(a, b))
			eq("change inode", ok, list{l, isName, ino, n}, list{a, false, b, ""})
			l, isName, ino, n, ok = ParseChange(ChangeName(a, b, name))
			eq("change name", ok, list{l, isName, ino, n}, list{a, true, b, name})
			within(ChangeInode(a, b), ChangePrefix(a))
			within(ChangeName(a, b, name), ChangePrefix(a))
		}
		x, ok := ParseBaseShared(BaseShared(a))
		eq("shared", ok, x, a)
		x, ok = ParseLayerKey(LayerKey(a))
		eq("layer", ok, x, a)
		x, ok = ParseJournal(Journal(a))
		eq("journal", ok, x, a)
		x, ok = ParseOp(Op(a))
		eq("op", ok, x, a)
		h, ok := ParseHeadKey(HeadKey(name))
		eq("head", ok, h, name)
		hash, ok := ParseChunk(Chunk([]byte(name)))
		eq("chunk", ok, string(hash), name)
	})
}

// Versions sort newest first, numbers by value, names by their bytes with all
// versions of one name together.
func TestKeysOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		num := func(label string) uint64 { return rapid.Uint64().Draw(t, label) }
		less := func(what string, a, b []byte, want bool) {
			if (bytes.Compare(a, b) < 0) != want {
				t.Fatalf("%s: %q < %q is %v", what, a, b, !want)
			}
		}
		i, j, l, m := num("i"), num("j"), num("l"), num("m")
		n, o := nameGen().Draw(t, "n"), nameGen().Draw(t, "o")
		less("inode versions", Inode(i, l), Inode(i, m), l > m)
		less("name versions", Name(i, n, l), Name(i, n, m), l > m)
		less("extent versions", Extent(i, j, l), Extent(i, j, m), l > m)
		less("xattr versions", Xattr(i, n, l), Xattr(i, n, m), l > m)
		less("reverse versions", RName(i, j, n, l), RName(i, j, n, m), l > m)
		less("layers", LayerKey(l), LayerKey(m), l < m)
		less("pending", Pending(i, l, j), Pending(i, l, m), j < m)
		if i != j {
			less("inodes", Inode(i, l), Inode(j, m), i < j)
			less("regions", Extent(l, i, m), Extent(l, j, l), i < j)
		}
		if n != o {
			less("names", Name(i, n, l), Name(i, o, m), n < o)
			less("change names", ChangeName(l, i, n), ChangeName(l, i, o), n < o)
		}
		less("names before inodes", ChangeName(l, i, n), ChangeInode(l, j), true)
	})
}

// The parsers take anything without a panic, and what they accept they got from
// the builders.
func FuzzParse(f *testing.F) {
	for _, k := range [][]byte{
		nil, Inode(1, 2), Name(1, "n", 2), RName(1, 2, "n", 3), Extent(1, 2, 3), Xattr(1, "n", 2),
		Pending(1, 2, 3), ChangeInode(1, 2), ChangeName(1, 2, "n"), LayerKey(1), Journal(1), Op(1), []byte("c/"),
		PreImage("a", "n", 2), PreImageLink(1, 2, 3),
	} {
		f.Add(k)
	}
	f.Fuzz(func(t *testing.T, k []byte) {
		check := func(ok bool, again []byte) {
			if ok && !bytes.Equal(k, again) {
				t.Fatalf("%q parses but is built as %q", k, again)
			}
		}
		if a, b, ok := ParseInode(k); ok {
			check(ok, Inode(a, b))
		}
		if a, n, b, ok := ParseName(k); ok {
			check(ok, Name(a, n, b))
		}
		if a, b, n, c, ok := ParseRName(k); ok {
			check(ok, RName(a, b, n, c))
		}
		if a, b, c, ok := ParseExtent(k); ok {
			check(ok, Extent(a, b, c))
		}
		if a, n, b, ok := ParseXattr(k); ok {
			check(ok, Xattr(a, n, b))
		}
		if a, b, c, ok := ParsePending(k); ok {
			check(ok, Pending(a, b, c))
		}
		if d, n, g, ok := ParsePreImage(k); ok {
			check(ok, PreImage(d, n, g))
		}
		if a, b, g, ok := ParsePreImageLink(k); ok {
			check(ok, PreImageLink(a, b, g))
		}
		if l, isName, i, n, ok := ParseChange(k); ok && isName {
			check(ok, ChangeName(l, i, n))
		} else if ok {
			check(ok, ChangeInode(l, i))
		}
		if a, ok := ParseLayerKey(k); ok {
			check(ok, LayerKey(a))
		}
		ParseHeadKey(k)
		ParseChunk(k)
		decodeBatch(k, func(key, val []byte) {})
	})
}
