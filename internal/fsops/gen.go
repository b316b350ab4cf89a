package fsops

import (
	"fmt"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

// The names that operations are drawn from: what fstree.MakeBase makes, and a
// few more, so that most operations meet something.
var (
	genDirs = []string{
		"", "d", "d/e", "d/e/f", "d/empty", "src", "src/pkg", "odd", "odd/" + fstree.NotUTF8Name, "modes",
		"n1", "n2", "n1/n2", "d/n1", "src/dirlink",
	}
	genNames = []string{"a", "b", "c", "big", "hl1", "hl2", "e", "f", "pkg", "n1", "n2", "x", "f0", "f3", fstree.LongName}
	genPaths = []string{
		"a", "b", "c", "big", "d/a", "d/b", "d/e/a", "d/e/f/deep", "hl1", "d/e/hl2", "src/hl3", "src/pkg/f0", "src/pkg/f3",
		"src/pkg/f5", "sym", "dangling", "src/dirlink", "sparse", "fifo", "modes/suid", "modes/sgid", "modes/ro", "modes/none",
		"odd/" + fstree.LongName, "odd/" + fstree.NotUTF8Name + "/x", "odd/" + fstree.NewlineName, "odd/.wh.a",
	}
	genOffsets = []int64{0, 1, 99, 100, 4095, 4096, 4097, 8192, 65536, 131071, 131072, 131073, 262144, 300 << 10, 1 << 20}
	genLengths = []int64{0, 1, 7, 100, 4096, 5000, 20000, 131072, 140000}
)

// GenOptions choose what Gen draws.
type GenOptions struct {
	Held bool // operations on held descriptors and directories
	Maps bool // operations on held mappings
}

// weights says how often each kind is drawn.
var weights = map[Kind]int{
	Create: 6, OpenTrunc: 4, Write: 12, Append: 5, Read: 6, Truncate: 7, Fallocate: 4, CopyRange: 5,
	Mkdir: 6, Rmdir: 4, Unlink: 9, RemoveAll: 3, Rename: 16, Link: 6, Symlink: 3, Mknod: 2,
	Chmod: 4, Chown: 2, Utimens: 4, Setxattr: 3, Rmxattr: 2, Tmplink: 3, Replace: 4, Readdir: 3, Stat: 4,
	FOpen: 5, FWrite: 6, FRead: 4, FTrunc: 2, FStat: 4, FChmod: 1, FUtimes: 1, FLink: 2, FClose: 2,
	DOpen: 3, DRead: 5, DClose: 0, // the harness closes, after it looked at what was seen
	MMap: 3, MWrite: 5, MRead: 4, MSync: 1, MUnmap: 1,
}

// kindOrder makes the choice of kinds independent of map order.
var kindOrder = []Kind{
	Create, OpenTrunc, Write, Append, Read, Truncate, Fallocate, CopyRange, Mkdir, Rmdir, Unlink, RemoveAll, Rename, Link,
	Symlink, Mknod, Chmod, Chown, Utimens, Setxattr, Rmxattr, Tmplink, Replace, Readdir, Stat,
	FOpen, FWrite, FRead, FTrunc, FStat, FChmod, FUtimes, FLink, FClose, DOpen, DRead, MMap, MWrite, MRead, MSync, MUnmap,
}

// Gen draws operations.
func Gen(opt GenOptions) *rapid.Generator[Op] {
	var kinds []Kind
	for _, k := range kindOrder {
		held := k[0] == 'd' || k[0] == 'f' && k != Fallocate
		maps := k == MMap || k == MWrite || k == MRead || k == MSync || k == MUnmap
		if held && !opt.Held || maps && !opt.Maps {
			continue
		}
		for range weights[k] {
			kinds = append(kinds, k)
		}
	}
	return rapid.Custom(func(t *rapid.T) Op {
		o := Op{Kind: pick(t, kinds)}
		drawArgs(t, &o)
		return o
	})
}

// GenSequence draws between lo and hi operations, after a few that fill the slots.
func GenSequence(opt GenOptions, lo, hi int) *rapid.Generator[[]Op] {
	one := Gen(opt)
	return rapid.Custom(func(t *rapid.T) []Op {
		var ops []Op
		for slot := range Slots {
			if opt.Held {
				ops = append(ops, Op{Kind: FOpen, Slot: slot, Path: pick(t, genPaths)}, Op{Kind: DOpen, Slot: slot, Path: pick(t, genDirs)})
			}
			if opt.Maps {
				ops = append(ops, Op{Kind: MMap, Slot: slot, Path: pick(t, genPaths)})
			}
		}
		for range lo + Uniform(t, hi-lo+1) {
			ops = append(ops, one.Draw(t, "op"))
		}
		return ops
	})
}

// Uniform draws uniformly below n, at most 2^14. Rapid's own generators prefer small numbers,
// which here would mean: nearly always the first kind of operation.
func Uniform(t *rapid.T, n int) int {
	v := 0
	for range 14 {
		v <<= 1
		if coin.Draw(t, "bit") {
			v |= 1
		}
	}
	return v * n >> 14
}

var coin = rapid.Bool()

func pick[T any](t *rapid.T, from []T) T { return from[Uniform(t, len(from))] }

func drawPath(t *rapid.T) string {
	if Uniform(t, 10) < 6 {
		return pick(t, genPaths)
	}
	return join(pick(t, genDirs), pick(t, genNames))
}

func drawNew(t *rapid.T) string {
	if Uniform(t, 10) < 2 {
		return pick(t, genPaths)
	}
	return join(pick(t, genDirs), pick(t, genNames))
}

func drawDir(t *rapid.T) string {
	return pick(t, genDirs[1:])
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

func drawArgs(t *rapid.T, o *Op) {
	data := func() {
		o.Len = pick(t, genLengths)
		o.Seed = uint64(1 + Uniform(t, 1000))
	}
	mode := func() { o.Mode = pick(t, []uint32{0o644, 0o600, 0o755, 0o4711, 0o2755, 0o444}) }
	slot := func() { o.Slot = Uniform(t, Slots) }
	switch o.Kind {
	case Create, OpenTrunc, Replace:
		o.Path = drawNew(t)
		if o.Kind == Replace {
			o.Path, o.Path2 = drawPath(t), drawNew(t)
		}
		mode()
		data()
	case Write:
		o.Path, o.Off = drawPath(t), pick(t, genOffsets)
		data()
	case Append:
		o.Path = drawPath(t)
		data()
	case Read:
		o.Path, o.Off, o.Len = drawPath(t), pick(t, genOffsets), 200000
	case Truncate:
		o.Path, o.Len = drawPath(t), pick(t, genOffsets)
	case Fallocate:
		drawFallocate(t, o)
	case CopyRange:
		o.Path, o.Off = drawPath(t), pick(t, genOffsets)
		o.Path2, o.Off2, o.Len = drawPath(t), pick(t, genOffsets), pick(t, genLengths)
	case Mkdir, Rmdir, RemoveAll, DOpen, Unlink, Mknod, Symlink, Rename, Link, Tmplink:
		drawNameArgs(t, o)
		slot()
	case Chmod, Chown, Utimens, Setxattr, Rmxattr, Stat, Readdir:
		drawMetaArgs(t, o)
	case FOpen, MMap:
		o.Path = drawPath(t)
		slot()
	case FLink:
		o.Path2 = drawNew(t)
		slot()
	default:
		o.Off = pick(t, genOffsets)
		if o.Kind == MWrite || o.Kind == MRead {
			o.Off %= MapLen
		}
		data()
		mode()
		slot()
	}
}

func drawFallocate(t *rapid.T, o *Op) {
	o.Path, o.Off, o.Len = drawPath(t), pick(t, genOffsets), pick(t, genLengths)
	o.Flags = pick(t, []uint32{
		0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE,
		unix.FALLOC_FL_ZERO_RANGE, unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE,
	})
}

func drawNameArgs(t *rapid.T, o *Op) {
	switch o.Kind {
	case Mkdir:
		o.Path, o.Mode = drawNew(t), pick(t, []uint32{0o755, 0o700, 0o2775, 0o1777})
	case Rmdir:
		o.Path = pick(t, []string{"d/empty", "n1", "n2", "n1/n2", "d/n1", "d/e/f", "src"})
	case RemoveAll, DOpen:
		o.Path = drawDir(t)
	case Unlink:
		o.Path = drawPath(t)
	case Mknod:
		o.Path = drawNew(t)
		o.Mode = pick(t, []uint32{unix.S_IFIFO | 0o644, unix.S_IFSOCK | 0o600, unix.S_IFCHR | 0o600, unix.S_IFREG | 0o640})
	case Symlink:
		o.Path, o.Value = drawNew(t), pick(t, []string{"a", "../d", "/nowhere", fstree.LongName})
	case Link:
		o.Path, o.Path2 = drawPath(t), drawNew(t)
	case Tmplink:
		o.Path, o.Path2, o.Mode = drawDir(t), drawNew(t), 0o640
		o.Len, o.Seed = 5000, 77
	case Rename:
		if Uniform(t, 2) == 0 {
			o.Path, o.Path2 = drawDir(t), drawDir(t)
		} else {
			o.Path, o.Path2 = drawPath(t), drawNew(t)
		}
		o.Flags = pick(t, []uint32{0, 0, 0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE})
	}
}

func drawMetaArgs(t *rapid.T, o *Op) {
	if Uniform(t, 4) == 0 || o.Kind == Readdir {
		o.Path = drawDir(t)
	} else {
		o.Path = drawPath(t)
	}
	switch o.Kind {
	case Chmod:
		o.Mode = pick(t, []uint32{0o644, 0o600, 0o755, 0o4755, 0o2755, 0o1777, 0})
	case Chown:
		o.Off = pick(t, []int64{0, 1000, -1})
		o.Off2 = pick(t, []int64{0, 1000, -1})
	case Utimens:
		o.Off = pick(t, []int64{-1000, 0, 1 << 29, 1<<32 + 5})
		o.Off2 = pick(t, []int64{0, 1, 999999999})
	case Setxattr, Rmxattr:
		o.Path = pick(t, []string{"a", "b", "d", "d/e/a", "hl1", "src"})
		o.Name = pick(t, []string{"user.k", "user.dir", "user.new"})
		// Never the value that is there: some file systems take that for no change.
		o.Value = pick(t, []string{"v", "\x00\xff", string(fstree.Bytes(3, 1000))}) + fmt.Sprint(Uniform(t, 10000))
		o.Flags = pick(t, []uint32{0, 0, unix.XATTR_CREATE, unix.XATTR_REPLACE})
	}
}
