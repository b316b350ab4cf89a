package layers

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Ino is an inode number. It never gets reused within a store.
type Ino uint64

// RootIno is the inode of the mount's root directory.
const RootIno Ino = 1

// Layer numbers a layer. Numbers rise for the life of a store. Layer 0 is the
// base itself: the ancestor of every layer, sealed and never changed.
type Layer uint64

// BaseLayer is the layer that shows the base as it is.
const BaseLayer Layer = 0

// ErrNoLayer is returned for a layer that the store does not hold.
var ErrNoLayer = errors.New("no such layer")

// ErrGeneration is returned for a layer that is built on another generation of the base
// than the head: what the base shows would change under programs.
var ErrGeneration = errors.New("built on another state of the base")

// ErrCorrupt marks damage found in the store. It maps to EIO.
var ErrCorrupt = errors.New("store is damaged")

// Time is a file time with the full range of stat(2).
type Time struct {
	Sec  int64
	Nsec uint32
}

// TimeOf converts t.
func TimeOf(t time.Time) Time {
	return Time{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())}
}

// Attr is what stat(2) shows. Mode holds type and permission bits as in st_mode;
// Blocks counts 512-byte units.
type Attr struct {
	Ino                        Ino
	Mode, Nlink, UID, GID      uint32
	Rdev                       uint32 // in the kernel's new_encode_dev form, as FUSE carries it
	Size, Blocks               int64
	Atime, Mtime, Ctime, Btime Time
}

// IsDir reports whether a is a directory.
func (a *Attr) IsDir() bool { return a.Mode&unix.S_IFMT == unix.S_IFDIR }

// Entry is one name in a directory listing. Cookie is the position behind the
// entry, valid as a start for another ReadDir for as long as the directory
// exists, whatever is added or removed meanwhile. Type holds S_IFMT bits.
type Entry struct {
	Name   string
	Ino    Ino
	Type   uint32
	Cookie uint64
}

// Cred is what a new object gets besides its mode: its owner, and the extended
// attributes that its directory hands down (ACLs), nil for none.
type Cred struct {
	UID, GID uint32
	Xattrs   map[string][]byte
}

// SetAttr says what Branch.Setattr changes; a nil field stays as it is.
type SetAttr struct {
	Mode         *uint32 // permission bits incl. suid, sgid, sticky
	UID, GID     *uint32
	Size         *int64
	Atime, Mtime *Time
	Ctime        *Time // nil: now
	KillPriv     bool  // clear setuid, setgid (if group-executable) and security.capability
	// Xattrs sets extended attributes in the same step; a nil value removes one if it is there.
	Xattrs map[string][]byte
}

// WriteFlags modify Branch.Write.
type WriteFlags struct {
	KillPriv bool // clear setuid, setgid and security.capability
	Chunks   bool // store small parts as chunks at once, too, to be found by their hash
	atEnd    bool // errEnd unless the file ends where the write begins
}

// ChangeStatus is the kind of a Change, spelled as git's --name-status does.
type ChangeStatus string

// The kinds of Change. A Modified entry changed content, size, mode, owner,
// mtime, target or extended attributes.
const (
	Added    ChangeStatus = "A"
	Modified ChangeStatus = "M"
	Deleted  ChangeStatus = "D"
	Renamed  ChangeStatus = "R"
	Retyped  ChangeStatus = "T"
)

// Change is one path that differs between two layers. Path has no leading
// slash; OldPath is set for Renamed only. Sizes are bytes, -1 where there is no object.
type Change struct {
	Status           ChangeStatus
	Path, OldPath    string
	Type             uint32 // S_IFMT bits of the newer object
	OldSize, NewSize int64
	Content          bool // content may differ, not only metadata
}

// NameKey is a name in a directory.
type NameKey struct {
	Dir  Ino
	Name string
}

// Sealed is the result of Branch.Seal.
type Sealed struct {
	Layer, Parent Layer // the sealed layer and what lies under it
	Open          Layer // the new, empty head
	Changed       int64 // paths changed in the sealed layer
	At            time.Time
}

// Moved is the result of Branch.MoveHead: the head left From (now sealed) and is
// Open, a new layer on top of Target. Of what callers hold references to, Names
// lead elsewhere and Inos show something else than before, so the kernel's caches
// of them are void. Names also has the known names, before and after, of the Inos
// that are no directories, changed or not.
type Moved struct {
	From, Target, Open Layer
	Changed            int64 // paths that differ, estimated from the change indexes
	Names              []NameKey
	Inos               []Ino
	// Renew are those of Inos that need a new identity towards the kernel: regular
	// files, so that descriptors from before can be told from new ones, and
	// directories that had been removed while in use, which the kernel holds for dead.
	// Both are in ascending order.
	Renew []Ino
	// Dirs are the paths of directories in use that were elsewhere before, maxDirs at most.
	Dirs []string
	// Merged: the files of Renew still have what programs wrote, and besides what others did to them. So an append is right through old descriptors, too.
	Merged bool
	At     time.Time
	// Untouched: no program changed anything in From, so it is as the layer below it, but for spared paths.
	Untouched bool
	Spared    int64 // paths that differ from the target because they are spared, see Options.Spare
	Noop      bool  // the head already was an empty layer on top of Target: nothing moved
}

// Drift is a base object that is no longer what the layers were built on.
type Drift struct {
	Path   string
	Reason string // "changed", "removed", "replaced"
}
