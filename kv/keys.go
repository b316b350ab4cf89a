package kv

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// All keys of a store are made and taken apart here; the table in
// ARCHITECTURE.md names their meaning. Numbers are big-endian uint64, so they
// sort by value; a version carries the complement of its layer, so the newest
// sorts first. Names may hold any byte but NUL and '/': NUL ends a name, so a
// name sorts before every longer name that it begins.

const (
	numLen = 8
	// inoPrefixLen is the length of "n/<ino>/" and of its kin.
	inoPrefixLen = 2 + numLen + 1
	// maxBasePath is the longest path kept readable in a BaseIno key, in bytes.
	maxBasePath = 1024
)

func appendNum(k []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(k, n) }

func appendVersion(k []byte, layer uint64) []byte { return appendNum(k, ^layer) }

// FromVersion is where, among the keys that are prefix and a version each, that of layer stands, or would.
func FromVersion(prefix []byte, layer uint64) []byte {
	return appendVersion(append(make([]byte, 0, len(prefix)+numLen), prefix...), layer)
}

// VersionOf returns the layer of a key that is prefix and a version.
func VersionOf(prefix, k []byte) (layer uint64, ok bool) {
	if len(k) != len(prefix)+numLen {
		return 0, false
	}
	return ^num(k[len(prefix):]), true
}

// key1 makes "<class>/<n>".
func key1(class byte, n uint64) []byte {
	return appendNum(append(make([]byte, 0, 2+numLen), class, '/'), n)
}

// inoKey makes "<class>/<ino>/" with room for extra more bytes.
func inoKey(class byte, ino uint64, extra int) []byte {
	k := append(make([]byte, 0, inoPrefixLen+extra), class, '/')
	return append(appendNum(k, ino), '/')
}

// nameKey makes "<class>/<ino>/<name>\0" with room for extra more bytes.
func nameKey(class byte, ino uint64, name string, extra int) []byte {
	k := inoKey(class, ino, len(name)+1+extra)
	return append(append(k, name...), 0)
}

// num reads the number at the start of k.
func num(k []byte) uint64 { return binary.BigEndian.Uint64(k) }

func hasClass(k []byte, class byte) bool {
	return len(k) >= 2 && k[0] == class && k[1] == '/'
}

// parse1 reads "<class>/<n>".
func parse1(k []byte, class byte) (n uint64, ok bool) {
	if len(k) != 2+numLen || !hasClass(k, class) {
		return 0, false
	}
	return num(k[2:]), true
}

// parseIno reads "<class>/<ino>/" and returns what follows.
func parseIno(k []byte, class byte) (ino uint64, rest []byte, ok bool) {
	if len(k) < inoPrefixLen || !hasClass(k, class) || k[inoPrefixLen-1] != '/' {
		return 0, nil, false
	}
	return num(k[2:]), k[inoPrefixLen:], true
}

// parseNamed reads "<name>\0^L".
func parseNamed(k []byte) (name string, layer uint64, ok bool) {
	n := len(k) - numLen - 1
	if n < 0 || bytes.IndexByte(k, 0) != n {
		return "", 0, false
	}
	return string(k[:n]), ^num(k[n+1:]), true
}

// Meta is the key of a record about the whole store.
func Meta(name string) []byte { return append([]byte("m/"), name...) }

// LayerKey is the key of a layer's record.
func LayerKey(l uint64) []byte { return key1('l', l) }

// LayerPrefix starts all keys made by LayerKey.
func LayerPrefix() []byte { return []byte("l/") }

// ParseLayerKey undoes LayerKey.
func ParseLayerKey(k []byte) (l uint64, ok bool) { return parse1(k, 'l') }

// Digest is the key of the digest of what a sealed layer has of its own.
func Digest(l uint64) []byte { return key1('g', l) }

// DigestPrefix starts all keys made by Digest.
func DigestPrefix() []byte { return []byte("g/") }

// ParseDigest undoes Digest.
func ParseDigest(k []byte) (l uint64, ok bool) { return parse1(k, 'g') }

// HeadKey is the key of a branch's head.
func HeadKey(branch string) []byte { return append([]byte("h/"), branch...) }

// HeadPrefix starts all keys made by HeadKey.
func HeadPrefix() []byte { return []byte("h/") }

// ParseHeadKey undoes HeadKey.
func ParseHeadKey(k []byte) (branch string, ok bool) {
	if !hasClass(k, 'h') {
		return "", false
	}
	return string(k[2:]), true
}

// Inode is the key of the version of an inode that layer wrote.
func Inode(ino, layer uint64) []byte { return appendVersion(inoKey('n', ino, numLen), layer) }

// InodePrefix starts all versions of an inode, newest first.
func InodePrefix(ino uint64) []byte { return inoKey('n', ino, 0) }

// InodesPrefix starts all keys made by Inode.
func InodesPrefix() []byte { return []byte("n/") }

// ParseInode undoes Inode.
func ParseInode(k []byte) (ino, layer uint64, ok bool) {
	ino, rest, ok := parseIno(k, 'n')
	if !ok || len(rest) != numLen {
		return 0, 0, false
	}
	return ino, ^num(rest), true
}

// Name is the key of the version of a directory entry that layer wrote.
func Name(dir uint64, name string, layer uint64) []byte {
	return appendVersion(nameKey('d', dir, name, numLen), layer)
}

// NamePrefix starts all versions of one directory entry, newest first.
func NamePrefix(dir uint64, name string) []byte { return nameKey('d', dir, name, 0) }

// DirPrefix starts all versions of all entries of a directory.
func DirPrefix(dir uint64) []byte { return inoKey('d', dir, 0) }

// ParseName undoes Name.
func ParseName(k []byte) (dir uint64, name string, layer uint64, ok bool) {
	dir, rest, ok := parseIno(k, 'd')
	if !ok {
		return 0, "", 0, false
	}
	name, layer, ok = parseNamed(rest)
	return dir, name, layer, ok
}

// RName is the key of the version of a reverse name: ino has had this name.
func RName(ino, dir uint64, name string, layer uint64) []byte {
	k := inoKey('r', ino, numLen+1+len(name)+1+numLen)
	k = append(appendNum(k, dir), '/')
	k = append(append(k, name...), 0)
	return appendVersion(k, layer)
}

// RNamePrefix starts all reverse names of an inode.
func RNamePrefix(ino uint64) []byte { return inoKey('r', ino, 0) }

// ParseRName undoes RName.
func ParseRName(k []byte) (ino, dir uint64, name string, layer uint64, ok bool) {
	ino, rest, ok := parseIno(k, 'r')
	if !ok || len(rest) <= numLen || rest[numLen] != '/' {
		return 0, 0, "", 0, false
	}
	dir = num(rest)
	name, layer, ok = parseNamed(rest[numLen+1:])
	return ino, dir, name, layer, ok
}

// Extent is the key of the version of one region's extents that layer wrote.
func Extent(ino, region, layer uint64) []byte {
	k := inoKey('x', ino, numLen+1+numLen)
	return appendVersion(append(appendNum(k, region), '/'), layer)
}

// ExtentsPrefix starts all keys made by Extent.
func ExtentsPrefix() []byte { return []byte("x/") }

// ExtentPrefix starts all versions of one region, newest first.
func ExtentPrefix(ino, region uint64) []byte {
	return append(appendNum(inoKey('x', ino, numLen+1), region), '/')
}

// ExtentInoPrefix starts all extents of an inode, by region.
func ExtentInoPrefix(ino uint64) []byte { return inoKey('x', ino, 0) }

// ParseExtent undoes Extent.
func ParseExtent(k []byte) (ino, region, layer uint64, ok bool) {
	ino, rest, ok := parseIno(k, 'x')
	if !ok || len(rest) != numLen+1+numLen || rest[numLen] != '/' {
		return 0, 0, 0, false
	}
	return ino, num(rest), ^num(rest[numLen+1:]), true
}

// Xattr is the key of the version of an extended attribute that layer wrote.
func Xattr(ino uint64, name string, layer uint64) []byte {
	return appendVersion(nameKey('a', ino, name, numLen), layer)
}

// XattrPrefix starts all versions of one extended attribute, newest first.
func XattrPrefix(ino uint64, name string) []byte { return nameKey('a', ino, name, 0) }

// XattrInoPrefix starts all extended attributes of an inode.
func XattrInoPrefix(ino uint64) []byte { return inoKey('a', ino, 0) }

// ParseXattr undoes Xattr.
func ParseXattr(k []byte) (ino uint64, name string, layer uint64, ok bool) {
	ino, rest, ok := parseIno(k, 'a')
	if !ok {
		return 0, "", 0, false
	}
	name, layer, ok = parseNamed(rest)
	return ino, name, layer, ok
}

// Pending is the key of written bytes that are not yet cut into chunks.
func Pending(ino, layer, seq uint64) []byte {
	k := append(appendNum(inoKey('w', ino, 2*numLen+1), layer), '/')
	return appendNum(k, seq)
}

// PendingPrefix starts all keys made by Pending.
func PendingPrefix() []byte { return []byte("w/") }

// PendingInoPrefix starts the pending bytes of an inode, by layer and sequence.
func PendingInoPrefix(ino uint64) []byte { return inoKey('w', ino, 0) }

// ParsePending undoes Pending.
func ParsePending(k []byte) (ino, layer, seq uint64, ok bool) {
	ino, rest, ok := parseIno(k, 'w')
	if !ok || len(rest) != numLen+1+numLen || rest[numLen] != '/' {
		return 0, 0, 0, false
	}
	return ino, num(rest), num(rest[numLen+1:]), true
}

// ChangeInode is the key that says: layer changed this inode.
func ChangeInode(layer, ino uint64) []byte {
	return appendNum(append(inoKey('c', layer, 2+numLen), 'n', '/'), ino)
}

// ChangeName is the key that says: layer changed this directory entry.
func ChangeName(layer, dir uint64, name string) []byte {
	k := append(inoKey('c', layer, 2+numLen+1+len(name)), 'd', '/')
	return append(append(appendNum(k, dir), '/'), name...)
}

// ChangePrefix starts the change index of a layer: names first, then inodes.
func ChangePrefix(layer uint64) []byte { return inoKey('c', layer, 0) }

// ParseChange undoes ChangeName, with isName true and ino the directory, and
// ChangeInode.
func ParseChange(k []byte) (layer uint64, isName bool, ino uint64, name string, ok bool) {
	layer, rest, ok := parseIno(k, 'c')
	if !ok || len(rest) < 2+numLen || rest[1] != '/' {
		return 0, false, 0, "", false
	}
	ino = num(rest[2:])
	tail := rest[2+numLen:]
	switch {
	case rest[0] == 'n' && len(tail) == 0:
		return layer, false, ino, "", true
	case rest[0] == 'd' && len(tail) > 0 && tail[0] == '/':
		return layer, true, ino, string(tail[1:]), true
	}
	return 0, false, 0, "", false
}

// BaseIno is the key of the inode number given to the base object at path. A
// very long path is replaced by its SHA-256 behind a NUL, which no path holds,
// because Badger limits the length of keys.
func BaseIno(path string) []byte {
	if len(path) <= maxBasePath {
		return append([]byte("i/"), path...)
	}
	sum := sha256.Sum256([]byte(path))
	return append([]byte("i/\x00"), sum[:]...)
}

// BaseLink is the key of the inode number given to the base object that is number
// ino of device dev, if it has several names. No path gives a key of this length
// behind a NUL.
func BaseLink(dev, ino uint64) []byte {
	return appendNum(appendNum([]byte("i/\x00"), dev), ino)
}

// PreImage is the key of what the base had as name in dir, a path of the base,
// before the commit that ended generation gen. The base itself is name "" in "".
// A very long dir is replaced by its SHA-256, in hex behind a slash, with which no
// path of the base begins.
func PreImage(dir, name string, gen uint64) []byte {
	p := PreImageDir(dir)
	k := append(make([]byte, 0, len(p)+len(name)+1+numLen), p...)
	return appendNum(append(append(k, name...), 0), gen)
}

// PreImageDir starts the pre-images of everything directly in dir, by name and generation.
func PreImageDir(dir string) []byte {
	if PreImageHashed(dir) {
		sum := sha256.Sum256([]byte(dir))
		dir = "/" + hex.EncodeToString(sum[:])
	}
	return append(append(PreImagePrefix(), dir...), 0)
}

// PreImageHashed reports whether keys hold only the hash of dir.
func PreImageHashed(dir string) bool { return len(dir) > maxBasePath }

// PreImagePrefix starts all keys made by PreImage and PreImageLink.
func PreImagePrefix() []byte { return []byte("y/") }

// ParsePreImage undoes PreImage, but for the hash of a long dir.
func ParsePreImage(k []byte) (dir, name string, gen uint64, ok bool) {
	if !hasClass(k, 'y') {
		return "", "", 0, false
	}
	d, rest, ok := bytes.Cut(k[2:], []byte{0})
	n, g, ok2 := bytes.Cut(rest, []byte{0})
	if !ok || !ok2 || len(g) != numLen {
		return "", "", 0, false
	}
	return string(d), string(n), num(g), true
}

// PreImageLink is the key of what the base object that is number ino of device dev,
// and has several names, was before the commit that ended generation gen: whichever
// of its names is asked for. It is longer than the key of the base itself, with which it begins.
func PreImageLink(dev, ino, gen uint64) []byte {
	return appendNum(appendNum(appendNum([]byte("y/\x00\x00"), dev), ino), gen)
}

// ParsePreImageLink undoes PreImageLink.
func ParsePreImageLink(k []byte) (dev, ino, gen uint64, ok bool) {
	if len(k) != 4+3*numLen || string(k[:4]) != "y/\x00\x00" {
		return 0, 0, 0, false
	}
	return num(k[4:]), num(k[4+numLen:]), num(k[4+2*numLen:]), true
}

// Original is the key of the text that the base had at path before layers changed it; id tells one state of it from another. A path of
// more than MaxOriginalPath bytes has none.
func Original(path string, id uint64) []byte {
	return appendNum(append(append(OriginalPrefix(), path...), 0), id)
}

// MaxOriginalPath is the longest path that Original takes, in bytes.
const MaxOriginalPath = maxBasePath

// OriginalPrefix starts all keys made by Original.
func OriginalPrefix() []byte { return []byte("e/") }

// ParseOriginal undoes Original.
func ParseOriginal(k []byte) (path string, id uint64, ok bool) {
	n := len(k) - numLen - 1
	if !hasClass(k, 'e') || n < 2 || bytes.IndexByte(k, 0) != n {
		return "", 0, false
	}
	return string(k[2:n]), num(k[n+1:]), true
}

// BaseShared is the key that says: number ino of the host is that of several base objects,
// of different times, and some of them were given others. No path begins with a slash.
func BaseShared(ino uint64) []byte { return appendNum(BaseSharedPrefix(), ino) }

// BaseSharedPrefix starts all keys made by BaseShared.
func BaseSharedPrefix() []byte { return []byte("i//") }

// ParseBaseShared undoes BaseShared.
func ParseBaseShared(k []byte) (ino uint64, ok bool) {
	if len(k) != 3+numLen || string(k[:3]) != "i//" {
		return 0, false
	}
	return num(k[3:]), true
}

// Chunk is the key of the index record of a chunk.
func Chunk(hash []byte) []byte {
	return append(append(make([]byte, 0, 2+len(hash)), 'b', '/'), hash...)
}

// ChunkPrefix starts all keys made by Chunk.
func ChunkPrefix() []byte { return []byte("b/") }

// ParseChunk undoes Chunk; hash is part of k.
func ParseChunk(k []byte) (hash []byte, ok bool) {
	if !hasClass(k, 'b') {
		return nil, false
	}
	return k[2:], true
}

// Journal is the key of the journal entry of the checkpoint that sealed layer.
func Journal(layer uint64) []byte { return key1('j', layer) }

// JournalAt is Journal for the checkpoints that share a layer, counted by seq from 0.
func JournalAt(layer, seq uint64) []byte {
	if seq == 0 {
		return Journal(layer)
	}
	return appendNum(inoKey('j', layer, numLen), seq)
}

// JournalPrefix starts all keys made by Journal and JournalAt.
func JournalPrefix() []byte { return []byte("j/") }

// ParseJournal undoes Journal.
func ParseJournal(k []byte) (layer uint64, ok bool) { return parse1(k, 'j') }

// Op is the key of a record of the operation log.
func Op(op uint64) []byte { return key1('p', op) }

// OpPrefix starts all keys made by Op.
func OpPrefix() []byte { return []byte("p/") }

// ParseOp undoes Op.
func ParseOp(k []byte) (op uint64, ok bool) { return parse1(k, 'p') }

// Decision is the key of a decision about a recorded checkpoint.
func Decision(n uint64) []byte { return key1('q', n) }

// DecisionPrefix starts all keys made by Decision.
func DecisionPrefix() []byte { return []byte("q/") }

// Orphan marks an inode that lost its last name in layer while it was in use.
func Orphan(layer, ino uint64) []byte { return appendNum(inoKey('o', layer, numLen), ino) }

// OrphanPrefix is the prefix of every orphan mark.
func OrphanPrefix() []byte { return []byte("o/") }

// ParseOrphan takes an Orphan key apart.
func ParseOrphan(k []byte) (layer, ino uint64, ok bool) {
	layer, rest, ok := parseIno(k, 'o')
	if !ok || len(rest) != numLen {
		return 0, 0, false
	}
	return layer, num(rest), true
}

// Message is the key of a part of a conversation's message, which is known by hash.
func Message(hash []byte, part uint32) []byte {
	k := append(append(make([]byte, 0, 4+len(hash)+1+4), "v/m/"...), hash...)
	return binary.BigEndian.AppendUint32(append(k, '/'), part)
}

// MessagePrefix starts the parts of a message, in order.
func MessagePrefix(hash []byte) []byte {
	return append(append(append(make([]byte, 0, 4+len(hash)+1), "v/m/"...), hash...), '/')
}

// Chain is the key of the last link of a history, which is known by its digest.
func Chain(digest []byte) []byte {
	return append(append(make([]byte, 0, 4+len(digest)), "v/c/"...), digest...)
}

// ChainPrefix starts all keys made by Chain.
func ChainPrefix() []byte { return []byte("v/c/") }

// MessagesPrefix starts all keys made by Message.
func MessagesPrefix() []byte { return []byte("v/m/") }

// Thread is the key of a live conversation of a branch.
func Thread(branch, thread string) []byte {
	return append(append(ThreadPrefix(), branch...), "\x00"+thread...)
}

// ThreadPrefix starts all keys made by Thread.
func ThreadPrefix() []byte { return []byte("t/") }

// ParseThread undoes Thread.
func ParseThread(k []byte) (branch, thread string, ok bool) {
	if !hasClass(k, 't') {
		return "", "", false
	}
	b, t, ok := bytes.Cut(k[2:], []byte{0})
	return string(b), string(t), ok
}
