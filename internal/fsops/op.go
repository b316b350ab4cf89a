package fsops

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

// Kind says what an Op does.
type Kind string

// The operations. Paths are below the root; symlinks are never followed: one
// within a path is ELOOP. The ones that start with F work on a held descriptor,
// those with D on a held directory, those with M on a held shared mapping.
const (
	Create    Kind = "create"    // Path, Mode; then writes Len bytes. O_EXCL
	OpenTrunc Kind = "opentrunc" // Path, Mode; O_CREAT|O_TRUNC, then writes Len bytes
	Write     Kind = "write"     // Path, Off, Len
	Append    Kind = "append"    // Path, Len
	Read      Kind = "read"      // Path, Off, Len
	Truncate  Kind = "truncate"  // Path, Len: the new size
	Fallocate Kind = "fallocate" // Path, Off, Len, Flags
	CopyRange Kind = "copyrange" // Path, Off -> Path2, Off2, Len
	Mkdir     Kind = "mkdir"
	Rmdir     Kind = "rmdir"
	Unlink    Kind = "unlink"
	RemoveAll Kind = "removeall"
	Rename    Kind = "rename" // Path -> Path2, Flags of renameat2(2)
	Link      Kind = "link"   // Path -> Path2
	Symlink   Kind = "symlink"
	Mknod     Kind = "mknod"   // Path, Mode with type
	Chmod     Kind = "chmod"   // Path, Mode; of a symlink: EOPNOTSUPP
	Chown     Kind = "chown"   // Path, Off: uid, Off2: gid
	Utimens   Kind = "utimens" // Path, Off: seconds, Off2: nanoseconds
	Setxattr  Kind = "setxattr"
	Rmxattr   Kind = "rmxattr"
	Tmplink   Kind = "tmplink" // O_TMPFILE in Path, Len bytes, linked as Path2
	Replace   Kind = "replace" // write Path2, rename it to Path: an editor's save
	Readdir   Kind = "readdir"
	Stat      Kind = "stat"

	FOpen   Kind = "fopen" // Slot, Path; read and write
	FWrite  Kind = "fwrite"
	FRead   Kind = "fread"
	FTrunc  Kind = "ftrunc"
	FStat   Kind = "fstat"
	FChmod  Kind = "fchmod"
	FUtimes Kind = "futimes"
	FLink   Kind = "flink" // Slot -> Path2
	FClose  Kind = "fclose"

	DOpen  Kind = "dopen" // Slot, Path
	DRead  Kind = "dread" // Slot; some entries
	DClose Kind = "dclose"

	MMap   Kind = "mmap"   // Slot, Path
	MWrite Kind = "mwrite" // and msync
	MDirty Kind = "mdirty" // without
	MRead  Kind = "mread"
	MSync  Kind = "msync"
	MUnmap Kind = "munmap"
)

// Slots is how many descriptors, directories and mappings of each sort a target holds.
const Slots = 2

// Op is one operation. Which fields count depends on Kind.
type Op struct {
	Kind        Kind
	Path, Path2 string
	Slot        int
	Off, Off2   int64
	Len         int64
	Mode, Flags uint32
	Seed        uint64 // what the written bytes are made of
	Name, Value string
}

// Data is what a writing operation writes.
func (o *Op) Data() []byte { return fstree.Bytes(o.Seed, int(o.Len)) }

func (o Op) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "{Kind: %q", o.Kind)
	str := func(k, v string) {
		v = strings.ReplaceAll(v, fstree.LongName, "LONG")
		if len(v) > 300 {
			v = v[:20] + "..."
		}
		if v != "" {
			fmt.Fprintf(&b, ", %s: %q", k, v)
		}
	}
	num := func(k string, v int64, format string) {
		if v != 0 {
			fmt.Fprintf(&b, ", %s: "+format, k, v)
		}
	}
	str("Path", o.Path)
	str("Path2", o.Path2)
	num("Slot", int64(o.Slot), "%d")
	num("Off", o.Off, "%d")
	num("Off2", o.Off2, "%d")
	num("Len", o.Len, "%d")
	num("Mode", int64(o.Mode), "0o%o")
	num("Flags", int64(o.Flags), "%#x")
	num("Seed", int64(o.Seed), "%d")
	str("Name", o.Name)
	str("Value", o.Value)
	return b.String() + "}"
}

// GoString keeps rapid's reports short.
func (o Op) GoString() string { return o.String() }

// Result is the outcome of an Op. Data is a description of what was read.
type Result struct {
	Errno syscall.Errno
	N     int64
	Data  string
}

func (r Result) String() string {
	if r.Errno != 0 {
		return fmt.Sprintf("%s (%d)", r.Errno.Error(), int(r.Errno))
	}
	return fmt.Sprintf("ok n=%d %s", r.N, r.Data)
}

// Target carries out operations.
type Target interface {
	Do(Op) Result
}

// StatLine is the Data of Stat and FStat: what all file systems agree on. The
// link count of directories and their size are left to fstree.
func StatLine(mode, uid, gid uint32, nlink uint64, size int64) string {
	if mode&syscall.S_IFMT == syscall.S_IFDIR {
		nlink, size = 0, 0
	}
	return fmt.Sprintf("mode %o owner %d:%d nlink %d size %d", mode, uid, gid, nlink, size)
}

// ReadLine is the Data of the reading operations.
func ReadLine(p []byte) string { return fstree.HashBytes(p) }
