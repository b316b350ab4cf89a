package fstree

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Time is a file time: seconds since 1970 and nanoseconds.
type Time struct {
	Sec, Nsec int64
}

// Before reports whether t is earlier than u.
func (t Time) Before(u Time) bool {
	return t.Sec < u.Sec || t.Sec == u.Sec && t.Nsec < u.Nsec
}

func (t Time) String() string {
	return fmt.Sprintf("%s.%09d", time.Unix(t.Sec, 0).UTC().Format("2006-01-02T15:04:05"), t.Nsec)
}

// TimeOf converts t.
func TimeOf(t time.Time) Time { return Time{t.Unix(), int64(t.Nanosecond())} }

// Entry is one object as one of its names shows it.
type Entry struct {
	Path                string // below the root, "." for the root itself; any bytes
	Mode                uint32 // st_mode
	UID, GID            uint32
	Nlink, Ino, Dev     uint64
	Rdev                uint64
	Size, Blocks        int64 // bytes; 512-byte units
	Atime, Mtime, Ctime Time
	Xattrs              map[string]string
	Target              string // of a symlink
	Hash                string // of the content of a regular file
	Err                 string // what went wrong reading it, "" if nothing
}

// Type returns the S_IFMT bits.
func (e *Entry) Type() uint32 { return e.Mode & unix.S_IFMT }

// IsDir reports whether e is a directory.
func (e *Entry) IsDir() bool { return e.Type() == unix.S_IFDIR }

// Tree is a set of entries by path.
type Tree struct {
	Entries map[string]*Entry
}

// New returns an empty tree.
func New() *Tree { return &Tree{Entries: map[string]*Entry{}} }

// Add puts e into the tree.
func (t *Tree) Add(e *Entry) { t.Entries[e.Path] = e }

// Paths returns all paths in order.
func (t *Tree) Paths() []string { return slices.Sorted(maps.Keys(t.Entries)) }

// Groups maps each path of an object that has several names in the tree to the
// smallest of them.
func (t *Tree) Groups() map[string]string {
	type id struct{ dev, ino uint64 }
	first := map[id]string{}
	out := map[string]string{}
	for _, p := range t.Paths() {
		e := t.Entries[p]
		if e.IsDir() || e.Nlink < 2 {
			continue
		}
		k := id{e.Dev, e.Ino}
		if _, ok := first[k]; !ok {
			first[k] = p
		}
		out[p] = first[k]
	}
	return out
}

// LinkProblems returns a line for each directory whose link count is neither 1
// nor 2 plus its subdirectories.
func (t *Tree) LinkProblems() []string {
	subdirs := map[string]uint64{}
	for p, e := range t.Entries {
		if e.IsDir() && p != "." {
			subdirs[path.Dir(p)]++
		}
	}
	var out []string
	for _, p := range t.Paths() {
		e := t.Entries[p]
		if e.IsDir() && e.Err == "" && e.Nlink != 1 && e.Nlink != 2+subdirs[p] {
			out = append(out, fmt.Sprintf("%q: directory has link count %d and %d subdirectories", p, e.Nlink, subdirs[p]))
		}
	}
	return out
}

// Moved says for each path that is the same object in both trees whether its
// ctime differs between them.
func Moved(before, after *Tree) map[string]bool {
	out := map[string]bool{}
	for p, b := range before.Entries {
		if a := after.Entries[p]; a != nil && a.Ino == b.Ino && a.Dev == b.Dev {
			out[p] = a.Ctime != b.Ctime
		}
	}
	return out
}

// Fields chooses what Diff compares beside path, type, permissions, owner, link
// groups, rdev, size of what is no directory, content, target and xattrs.
type Fields struct {
	Nlink  bool // of directories only where neither side uses 1 for all of them
	Mtime  bool
	Ctime  bool
	Atime  bool
	Ino    bool // inode number and device
	Blocks bool
	// Fresh, if set, makes all mtimes within a day after it equal to each other:
	// what happened "now" in both trees happened at different instants.
	Fresh *Time
}

// Exact is everything that must not change when nothing changed, atime aside.
var Exact = Fields{Nlink: true, Mtime: true, Ctime: true, Ino: true, Blocks: true}

// Diff returns one line for each difference, in path order; wantName and
// gotName say whose side is whose.
func Diff(want, got *Tree, f Fields, wantName, gotName string) []string {
	var out []string
	all := map[string]bool{}
	for p := range want.Entries {
		all[p] = true
	}
	for p := range got.Entries {
		all[p] = true
	}
	wg, gg := want.Groups(), got.Groups()
	for _, p := range slices.Sorted(maps.Keys(all)) {
		w, g := want.Entries[p], got.Entries[p]
		switch {
		case g == nil:
			out = append(out, fmt.Sprintf("%q: only in %s (%s)", p, wantName, describe(w)))
		case w == nil:
			out = append(out, fmt.Sprintf("%q: only in %s (%s)", p, gotName, describe(g)))
		default:
			for _, d := range diffEntry(w, g, f, wg[p], gg[p]) {
				out = append(out, fmt.Sprintf("%q: %s: %s %s, %s %s", p, d.field, wantName, d.want, gotName, d.got))
			}
		}
	}
	return out
}

func (f *Fields) fresh(t Time) bool {
	return f.Fresh != nil && !t.Before(*f.Fresh) && t.Before(Time{Sec: f.Fresh.Sec + 86400})
}

type fieldDiff struct{ field, want, got string }

func diffEntry(w, g *Entry, f Fields, wantGroup, gotGroup string) []fieldDiff {
	var out []fieldDiff
	add := func(field string, want, got any) {
		if ws, gs := fmt.Sprint(want), fmt.Sprint(got); ws != gs {
			out = append(out, fieldDiff{field, ws, gs})
		}
	}
	add("error", w.Err, g.Err)
	add("mode", fmt.Sprintf("%o", w.Mode), fmt.Sprintf("%o", g.Mode))
	add("uid", w.UID, g.UID)
	add("gid", w.GID, g.GID)
	add("rdev", w.Rdev, g.Rdev)
	if !w.IsDir() && !g.IsDir() {
		add("size", w.Size, g.Size)
		add("links", fmt.Sprintf("%q", wantGroup), fmt.Sprintf("%q", gotGroup))
	}
	add("target", fmt.Sprintf("%q", w.Target), fmt.Sprintf("%q", g.Target))
	add("content", w.Hash, g.Hash)
	add("xattrs", xattrString(w.Xattrs), xattrString(g.Xattrs))
	if f.Nlink && !(w.IsDir() && g.IsDir() && (w.Nlink == 1 || g.Nlink == 1)) {
		add("nlink", w.Nlink, g.Nlink)
	}
	if f.Ino {
		add("ino", w.Ino, g.Ino)
		add("dev", w.Dev, g.Dev)
	}
	if f.Blocks && !w.IsDir() {
		add("blocks", w.Blocks, g.Blocks)
	}
	if f.Atime {
		add("atime", w.Atime, g.Atime)
	}
	if f.Ctime {
		add("ctime", w.Ctime, g.Ctime)
	}
	if f.Mtime && !(f.fresh(w.Mtime) && f.fresh(g.Mtime)) {
		add("mtime", w.Mtime, g.Mtime)
	}
	return out
}

func describe(e *Entry) string {
	return fmt.Sprintf("mode %o, size %d, nlink %d, ino %d", e.Mode, e.Size, e.Nlink, e.Ino)
}

func xattrString(m map[string]string) string {
	var parts []string
	for k, v := range m {
		parts = append(parts, fmt.Sprintf("%s=%q", k, v))
	}
	sort.Strings(parts)
	return "[" + strings.Join(parts, " ") + "]"
}
