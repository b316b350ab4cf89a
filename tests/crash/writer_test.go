package crash

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

const (
	liveMax = 192                     // files that a writer changes
	keptMax = 320                     // files put aside that it keeps
	names   = 2 * (liveMax + keptMax) // names it uses, again and again
	farMax  = 1536 << 10              // bytes: how far from the start a write may be
)

// writer works in a directory of its own and knows what must be there: the state
// after the last acknowledged operation, or after the one in flight.
type writer struct {
	dir    string
	back   bool // with the writeback cache
	rng    *rand.Rand
	pool   []string // every name it uses
	n      int      // operations begun
	done   int      // operations acknowledged
	now    model    // acknowledged
	live   []string // the names in now that it works on
	kept   []string // those it leaves alone
	aside  int      // files put aside so far, kept or not
	flight []edit   // of the operation in flight, nil if there is none
	what   string   // the operation in flight
	log    []string // since the last check
	wrong  string   // an operation that a living daemon refused
}

func newWriter(dir string, rng *rand.Rand, back bool) *writer {
	w := &writer{dir: dir, rng: rng, back: back, now: model{}}
	for i := range names {
		w.pool = append(w.pool, fmt.Sprint("f", i))
	}
	return w
}

// work does operations until the daemon is gone or, with limit >= 0, that many.
func (w *writer) work(limit int) {
	for i := 0; i != limit; i++ {
		if w.step() != nil {
			return
		}
	}
}

// step does one operation and returns its error. What it leaves in now and
// flight is right whether or not the operation was done.
func (w *writer) step() error {
	edits, do := w.choose()
	w.flight = edits
	if err := do(); err != nil {
		// What it says is the kernel's choice, EIO for one. Only whether the daemon lives counts.
		if w.answers() == nil {
			w.wrong = fmt.Sprintf("after %d operations: %q failed, but the daemon was there: %v", w.n, w.what, err)
		}
		return err
	}
	w.done++
	w.acknowledge()
	return nil
}

// acknowledge takes the operation in flight for done.
func (w *writer) acknowledge() {
	w.now.apply(w.flight)
	for _, e := range w.flight {
		if e.file == nil {
			w.live = without(w.live, e.name)
			w.kept = without(w.kept, e.name)
		} else if !slices.Contains(w.live, e.name) {
			w.live = append(w.live, e.name)
		}
	}
	w.flight = nil
}

func without(list []string, name string) []string {
	if i := slices.Index(list, name); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// check holds what is there against what must be there. It takes the operation in
// flight for done or not, and what it saw for what must be there from now on.
// It returns what is wrong, "" if nothing.
func (w *writer) check() string {
	if w.wrong != "" {
		return w.wrong
	}
	got, err := read(w.dir, w.pool)
	if err != nil {
		return fmt.Sprintf("after %d operations, in flight: %q: %v", w.n, w.what, err)
	}
	name, how := diff(w.now, got)
	if how != "" && w.flight != nil {
		done := maps.Clone(w.now)
		done.apply(w.flight)
		if doneName, doneHow := diff(done, got); doneHow == "" {
			w.acknowledge()
			how = ""
		} else {
			how += fmt.Sprintf(" (the state after the operation in flight: %s %s)", doneName, doneHow)
		}
	}
	if how != "" {
		return fmt.Sprintf("after %d operations, in flight: %q: neither the state before nor after: %s %s\n\t%s",
			w.n, w.what, name, how, strings.Join(w.about(name), "\n\t"))
	}
	w.now, w.flight, w.log = got, nil, nil
	return ""
}

// answers asks something that the kernel never knows itself.
func (w *writer) answers() error {
	var st unix.Statfs_t
	return unix.Statfs(w.dir, &st)
}

// about returns what was done to a name since the last check, oldest first.
func (w *writer) about(name string) []string {
	var out []string
	for _, l := range w.log {
		if slices.Contains(strings.Fields(l), name) {
			out = append(out, l)
		}
	}
	return append(out, "(and nothing else since the last check)")
}

// choose picks an operation and returns what it changes and how to do it.
// Each is one system call that changes something, so it is there whole or not.
func (w *writer) choose() (edits []edit, do func() error) {
	w.n++
	defer func() { w.log = append(w.log, fmt.Sprintf("%d %s", w.n, w.what)) }()
	kind := w.rng.IntN(12)
	if len(w.live) == 0 || kind < 3 {
		if len(w.live) < liveMax {
			return w.create()
		}
		if name := w.putAside(); name != "" {
			return w.unlink(name)
		}
		return w.create()
	}
	name := w.live[w.rng.IntN(len(w.live))]
	switch kind {
	case 3, 4, 5, 6, 7:
		return w.write(name)
	case 8:
		return w.rename(name)
	case 9:
		return w.truncate(name)
	case 10:
		return w.unlink(name)
	default:
		if w.rng.IntN(2) == 0 {
			return w.chmod(name)
		}
		return w.utimes(name)
	}
}

// putAside moves one of the live files to those kept, so that each that was ever
// put aside is among them with the same probability. It returns the file that has
// to go for it, "" if none has.
func (w *writer) putAside() string {
	i := w.rng.IntN(len(w.live))
	name := w.live[i]
	w.aside++
	if len(w.kept) < keptMax {
		w.kept = append(w.kept, name)
		w.live = slices.Delete(w.live, i, i+1)
		return ""
	}
	j := w.rng.IntN(w.aside)
	if j >= keptMax {
		return name
	}
	w.live[i], w.kept[j] = w.kept[j], name
	return w.live[i]
}

func (w *writer) path(name string) string { return filepath.Join(w.dir, name) }

// free is a name that is not in use.
func (w *writer) free() string {
	for {
		name := w.pool[w.rng.IntN(len(w.pool))]
		if _, ok := w.now[name]; !ok {
			return name
		}
	}
}

// look is put behind an operation that does not say which mtime: half of the time
// a program looks at it, and then it must stay. Not so with the writeback cache,
// which is less exact (README): of two writes within one tick of the kernel's clock
// it tells the daemon the time of the first, and the daemon takes its own for the second.
func (w *writer) look(f *file, path string, do func() error) func() error {
	f.mtime = 0
	if w.back || w.rng.IntN(2) == 0 {
		return do
	}
	return func() error {
		if err := do(); err != nil {
			return err
		}
		seen, err := seenMtime(path)
		if err != nil {
			return err
		}
		f.mtime = seen
		return nil
	}
}

func (w *writer) create() ([]edit, func() error) {
	name := w.free()
	path := w.path(name)
	f := &file{mode: 0o644}
	w.what = "create " + name
	return []edit{{name, f}}, w.look(f, path, func() error {
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, f.mode)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

// write writes within one page: the kernel sends it as one request.
func (w *writer) write(name string) ([]edit, func() error) {
	f, path := w.now[name], w.path(name)
	old := f.content
	off := w.rng.IntN(len(old) + 1)
	if w.rng.IntN(200) == 0 {
		off = w.rng.IntN(farMax)
	}
	n := 1 + w.rng.IntN(4096-off%4096)
	p := fstree.Bytes(w.rng.Uint64(), n)
	f.content = make([]byte, max(len(old), off+n))
	copy(f.content, old)
	copy(f.content[off:], p)
	w.what = fmt.Sprintf("write %s at %d+%d", name, off, n)
	return []edit{{name, &f}}, w.look(&f, path, func() error {
		fd, err := unix.Open(path, unix.O_WRONLY, 0)
		if err != nil {
			return err
		}
		m, err := unix.Pwrite(fd, p, int64(off))
		if err == nil && m != n {
			err = errors.New("short write")
		}
		err = errors.Join(err, unix.Close(fd))
		if err == nil && w.back {
			// It is close that carries the bytes over, but once the daemon is gone the kernel
			// drops them and says nothing. An answer afterwards shows that it was there.
			err = w.answers()
		}
		return err
	})
}

// rename moves a file to a free name, or over another file.
func (w *writer) rename(name string) ([]edit, func() error) {
	to := w.live[w.rng.IntN(len(w.live))]
	if to == name || w.rng.IntN(2) == 0 {
		to = w.free()
	}
	f := w.now[name]
	w.what = fmt.Sprintf("rename %s to %s", name, to)
	return []edit{{name, nil}, {to, &f}}, func() error { return unix.Rename(w.path(name), w.path(to)) }
}

func (w *writer) truncate(name string) ([]edit, func() error) {
	f, path := w.now[name], w.path(name)
	old := f.content
	size := w.rng.IntN(len(old) + 1)
	if size == len(old) { // it grows
		size += 1 + w.rng.IntN(8192)
	}
	f.content = make([]byte, size)
	copy(f.content, old)
	w.what = fmt.Sprintf("truncate %s from %d to %d", name, len(old), size)
	return []edit{{name, &f}}, w.look(&f, path, func() error { return unix.Truncate(path, int64(size)) })
}

func (w *writer) unlink(name string) ([]edit, func() error) {
	w.what = "unlink " + name
	return []edit{{name, nil}}, func() error { return unix.Unlink(w.path(name)) }
}

func (w *writer) chmod(name string) ([]edit, func() error) {
	f := w.now[name]
	f.mode ^= 1 << w.rng.IntN(6) // the owner goes on reading and writing
	mode := f.mode
	w.what = fmt.Sprintf("chmod %s to %#o", name, mode)
	return []edit{{name, &f}}, func() error { return unix.Chmod(w.path(name), mode) }
}

func (w *writer) utimes(name string) ([]edit, func() error) {
	f := w.now[name]
	f.mtime = 1 + w.rng.Int64N(int64(50*365*24*time.Hour))
	at := f.mtime
	w.what = fmt.Sprintf("utimes %s to %d", name, at)
	return []edit{{name, &f}}, func() error {
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(at)}
		return unix.UtimesNanoAt(unix.AT_FDCWD, w.path(name), ts, 0)
	}
}
