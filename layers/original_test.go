package layers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// oldBase is a base whose files nobody has changed for a while.
func oldBase(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for p, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, p), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for p := range files { // a ctime cannot be set: wait until it is old enough for its kernel
		for {
			var st unix.Stat_t
			if err := unix.Lstat(filepath.Join(dir, p), &st); err != nil {
				t.Fatal(err)
			}
			left := originalGrain - time.Since(time.Unix(st.Ctim.Unix()))
			if left <= 0 {
				break
			}
			<-time.After(left)
		}
	}
	return dir
}

// original returns what is kept of p, as the head is built on it.
func (s *store) original(p string) string {
	s.t.Helper()
	s.ok(s.tree.KeepOriginals(context.Background()))
	is, err := s.b.Built(p)
	s.ok(err)
	o, err := s.tree.Original(p, is)
	s.ok(err)
	if o == nil {
		return "none"
	}
	if o.Ctime != is.Ctime || o.Mode != unix.S_IFREG|0o644 {
		s.t.Errorf("%q: %+v, built on %+v", p, o, is)
	}
	return string(o.Text)
}

func (s *store) wantOriginals(want map[string]string) {
	s.t.Helper()
	for p, text := range want {
		if got := s.original(p); got != text {
			s.t.Errorf("the original of %q is %q, want %q", p, got, text)
		}
	}
}

// What the base has is kept of text files whose content changes, in whatever way, and of no others.
func TestOriginals(t *testing.T) {
	files := map[string]string{}
	for _, p := range []string{"written", "cut", "replaced", "again", "moded", "gone", "d/moved", "host", "d/below"} {
		files[p] = p + " 1\n" + p + " 2\n"
	}
	files["binary"], files["empty"], files["large"] = "a\x00b", "", strings.Repeat("large\n", maxOriginal/6+1)
	s := newStore(t, oldBase(t, files))
	for _, p := range []string{"binary", "empty", "large", "host", "d/below"} {
		s.write(p, "new")
	}
	_, err := s.b.Write(s.ino("written"), []byte("W"), 3, WriteFlags{})
	s.ok(err)
	five := int64(5)
	_, err = s.b.Setattr(s.ino("cut"), SetAttr{Size: &five})
	s.ok(err)
	s.write("tmp", "atomic save")
	s.ok(s.b.Rename(RootIno, "tmp", RootIno, "replaced", 0))
	s.ok(s.b.Unlink(RootIno, "again"))
	s.write("again", "made again")
	mode := uint32(0o600)
	_, err = s.b.Setattr(s.ino("moded"), SetAttr{Mode: &mode})
	s.ok(err)
	s.ok(s.b.Unlink(RootIno, "gone"))
	s.ok(s.b.Rename(s.ino("d"), "moved", RootIno, "moved", 0))
	s.change(put("host", "the user was faster"))
	want := map[string]string{
		"written": files["written"], "cut": files["cut"], "replaced": files["replaced"], "again": files["again"], "d/below": files["d/below"],
		"binary": "none", "empty": "none", "large": "none", "moded": "none", "gone": "none", "d/moved": "none", "host": "none",
	}
	s.wantOriginals(want)
	s.write("moded", "now changed")
	want["moded"] = files["moded"]
	s.ok(s.b.Rename(RootIno, "d", RootIno, "e", 0))
	s.wantOriginals(map[string]string{"d/below": files["d/below"], "moded": files["moded"]})
	s.seal()
	s.change(put("written", "changed now"), put("again", "changed now"), del("replaced"))
	s.reopen()
	s.wantOriginals(want)
	before := s.count(kv.OriginalPrefix())
	_, err = s.tree.Collect(context.Background(), nil, CollectOptions{})
	s.ok(err)
	if got := s.count(kv.OriginalPrefix()); got != before {
		t.Errorf("a collection left %d of %d originals that are built on", got, before)
	}
	s.wantOriginals(want)
}

// Bytes of changes that a kill kept from their chunks are changes, too: after the next start their originals are kept.
func TestOriginalsOfOpenLayer(t *testing.T) {
	s := newStore(t, oldBase(t, map[string]string{"a": "a\n", "b": "b\n"}))
	s.write("a", "x")
	s.write("tmp", "y")
	s.ok(s.b.Rename(RootIno, "tmp", RootIno, "b", 0))
	s.tree.mu.Lock()
	s.tree.wanted = nil // as when the daemon is killed
	s.tree.mu.Unlock()
	s.reopen()
	s.wantOriginals(map[string]string{"a": "a\n", "b": "b\n"})
}

// Originals go when nothing is built on them any more, and the oldest when there are too many.
func TestOriginalsGo(t *testing.T) {
	s := newStore(t, oldBase(t, map[string]string{"a": "a\n", "b": "b\n"}))
	first := s.seal()
	s.write("a", "x")
	s.write("tmp", "y")
	s.ok(s.b.Rename(RootIno, "tmp", RootIno, "b", 0))
	s.wantOriginals(map[string]string{"a": "a\n", "b": "b\n"})
	_, err := s.b.MoveHead(first, false, nil, nil)
	s.ok(err)
	_, err = s.tree.Collect(context.Background(), []Layer{first}, CollectOptions{})
	s.ok(err)
	if n := s.count(kv.OriginalPrefix()); n != 0 {
		t.Errorf("%d originals are left of what nobody sees", n)
	}
	var b kv.Batch
	noise := make([]byte, 480<<10)
	for i := range noise {
		noise[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-"[(i*i>>3^i*7919>>5)%64]
	}
	size := int64(0)
	for i := 0; size <= maxOriginals; i++ {
		copy(noise, fmt.Sprint(i))
		is := Built{Exists: true, Ino: uint64(i), Size: int64(len(noise))}
		s.tree.PutOriginal(&b, "big", is, unix.S_IFREG, noise)
		s.ok(s.db.Apply(&b))
		b = kv.Batch{}
		size += 256 << 10 // at least: it is noise of 6 bits a byte
	}
	s.write("b", "z")
	s.wantOriginals(map[string]string{"b": "b\n"})
	size = 0
	s.ok(s.tree.eachOriginal(func(r originalRec) error { size += r.size; return nil }))
	if size > maxOriginals*3/4+(1<<20) {
		t.Errorf("%d bytes of originals are kept", size)
	}
}

func stateOf(b Built) Built {
	b.Known, b.MergedAt, b.Markers = false, 0, false
	return b
}

// takeIn merges as the user of TakeIn does.
func (s *store) takeIn(p, text, host string, markers bool) (Moved, error) {
	s.t.Helper()
	a, err := s.b.Resolve(p)
	s.ok(err)
	st, err := s.host.stat(p)
	s.ok(err)
	is := Built{Exists: true, Type: unix.S_IFREG, Ino: st.ino, Btime: st.btime, Mtime: st.mtime, Ctime: st.ctime, Size: st.size}
	return s.b.TakeIn([]TakeIn{{Path: p, Seen: a, Text: []byte(text), Host: is, HostMode: st.mode, HostText: []byte(host), Markers: markers}}, nil, nil)
}

func TestTakeIn(t *testing.T) {
	for how, edit := range map[string]func(s *store){
		"in place": func(s *store) { s.write("d/f", "ours\n") },
		"replaced": func(s *store) {
			s.write("tmp", "ours\n")
			s.ok(s.b.Rename(RootIno, "tmp", s.ino("d"), "f", 0))
		},
	} {
		t.Run(how, func(t *testing.T) {
			s := newStore(t, oldBase(t, map[string]string{"d/f": "base\n"}))
			edit(s)
			s.seal()
			s.write("other", "being written")
			s.change(put("d/f", "theirs\n"))
			old, err := s.b.Built("d/f")
			s.ok(err)
			ino := s.ino("d/f")
			mv, err := s.takeIn("d/f", "both\n", "theirs\n", true)
			s.ok(err)
			if got := s.read("d/f"); got != "both\n" {
				t.Errorf("the file has %q", got)
			}
			if s.b.Parent() != mv.From || s.ino("d/f") != ino || len(mv.Names) == 0 || len(mv.Inos) != 1 {
				t.Errorf("moved %+v, parent %d, inode %d, was %d", mv, s.b.Parent(), s.ino("d/f"), ino)
			}
			is, err := s.b.Built("d/f")
			s.ok(err)
			if is.MergedAt != 1 || !is.Markers || is == old {
				t.Errorf("now built on %+v, was %+v", is, old)
			}
			s.wantOriginals(map[string]string{"d/f": "theirs\n"})
			a, err := s.b.Resolve("d/f")
			s.ok(err)
			earlier := a
			earlier.Ctime.Sec--
			refused := func(what string, in TakeIn, extra error) {
				t.Helper()
				_, err := s.b.TakeIn([]TakeIn{in}, func(*kv.Batch, Moved) error { return extra }, nil)
				if err == nil || extra == nil && !errors.Is(err, ErrMoved) || s.read("d/f") != "both\n" || s.b.Parent() != mv.From || s.b.HeadLayer() != mv.Open {
					t.Errorf("%s: %v; the head is %d on %d, the file has %q", what, err, s.b.HeadLayer(), s.b.Parent(), s.read("d/f"))
				}
			}
			refused("a file that has changed since", TakeIn{Path: "d/f", Seen: earlier, Host: stateOf(is)}, nil)
			refused("a file that has gone", TakeIn{Path: "d/g", Seen: a, Host: stateOf(is)}, nil)
			refused("a journal that cannot", TakeIn{Path: "d/f", Seen: a, Host: stateOf(is), Text: []byte("x")}, errors.New("no"))
			s.change(put("d/f", "theirs\n")) // the same in another file
			refused("a host that has changed since", TakeIn{Path: "d/f", Seen: a, Host: stateOf(is)}, nil)
			s.write("d/f", "resolved\n")
			s.reopen()
			if again, err := s.b.Built("d/f"); err != nil || again != is {
				t.Errorf("after the file changed and the store was opened again: built on %+v, was %+v (%v)", again, is, err)
			}
			s.seal()
			_, err = s.b.MoveHead(mv.From, false, nil, nil)
			s.ok(err)
			if got, err := s.b.Built("d/f"); err != nil || got != old || s.read("d/f") != "ours\n" || s.read("other") != "being written" {
				t.Errorf("taken back: built on %+v, want %+v (%v); the file has %q", got, old, err, s.read("d/f"))
			}
		})
	}
}

func FuzzDecodeOriginal(f *testing.F) {
	f.Add((&original{Original: Original{Text: []byte("a\nb\n"), Mode: 0o644}, at: NameKey{1, "x"}, ino: 7, since: time.Unix(9, 0)}).encode())
	f.Fuzz(func(t *testing.T, v []byte) {
		o, err := decodeOriginal(v, true)
		if err != nil {
			return
		}
		again, err := decodeOriginal(o.encode(), true)
		if err != nil || !bytes.Equal(again.Text, o.Text) || again.at != o.at {
			t.Fatalf("%+v became %+v (%v)", o, again, err)
		}
	})
}

// BenchmarkKeepOriginal is what the cutter does for a text file of 4 KiB whose content was changed for the first time.
func BenchmarkKeepOriginal(b *testing.B) {
	dir := b.TempDir()
	const files = 1000
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte(strings.Repeat(fmt.Sprintf("text %d\n", i), 512)), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	t, _ := benchStore(b, dir)
	var todo []wantedText
	for i := range files {
		st, err := t.base.stat(fmt.Sprint(i))
		if err != nil {
			b.Fatal(err)
		}
		o := st.origin("")
		todo = append(todo, wantedText{Built: (&inode{mode: st.mode, origin: o}).wasBase(1).Built})
	}
	for i := 0; b.Loop(); i++ {
		w := todo[i%files]
		var batch kv.Batch
		if n, err := t.readOriginal(&batch, fmt.Sprint(i%files), &w); err != nil || n == 0 && i < files {
			b.Fatal(n, err)
		}
		batch.Delete(kv.Original(fmt.Sprint((i+files/2)%files), todo[(i+files/2)%files].stateID())) // to be read again
		if err := t.db.Apply(&batch); err != nil {
			b.Fatal(err)
		}
	}
}

// A file of which a part was changed goes on showing the rest as it was when the base's changes, if its original is known; else it is EIO.
func TestOriginalsAreRead(t *testing.T) {
	files := map[string]string{}
	for _, p := range []string{"appended", "middle", "removed", "other", "unknown"} {
		files[p] = strings.Repeat(p+" as it was\n", 1000)
	}
	s := newStore(t, oldBase(t, files))
	for p, text := range files {
		if p == "unknown" {
			continue
		}
		off := int64(len(text))
		if p == "middle" {
			off = 2000
		}
		_, err := s.b.Write(s.ino(p), []byte("ours"), off, WriteFlags{})
		s.ok(err)
		files[p] = text[:off] + "ours" + text[min(int(off)+4, len(text)):]
	}
	s.ok(s.tree.KeepOriginals(context.Background()))
	_, err := s.b.Write(s.ino("unknown"), []byte("ours"), 0, WriteFlags{})
	s.ok(err)
	s.change(put("appended", "theirs"), put("middle", strings.Repeat("theirs\n", 3000)), del("removed"), put("new", "theirs"), put("unknown", "theirs"))
	s.ok(os.Rename(filepath.Join(s.base, "new"), filepath.Join(s.base, "other")))
	s.tree.BaseChanged()
	check := func() {
		t.Helper()
		for p, text := range files {
			buf := make([]byte, len(text))
			n, err := s.b.ReadAt(s.ino(p), buf, 0)
			if p == "unknown" {
				if !errors.Is(err, unix.EIO) {
					t.Errorf("of %q nothing is known: %d bytes, %v", p, n, err)
				}
				continue
			}
			if err != nil || string(buf[:n]) != text {
				t.Errorf("%q: %d of %d bytes, or others, %v", p, n, len(text), err)
			}
			if at, err := s.b.Seek(s.ino(p), 100, unix.SEEK_DATA); at != 100 || err != nil {
				t.Errorf("%q: data at %d, %v", p, at, err)
			}
			if at, err := s.b.Seek(s.ino(p), 100, unix.SEEK_HOLE); at != int64(len(text)) || err != nil {
				t.Errorf("%q: a hole at %d, %v", p, at, err)
			}
		}
	}
	check()
	s.seal()
	s.reopen()
	check()
}
