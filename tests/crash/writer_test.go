package crash

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

// writer works in a directory of its own and knows what must be there: the state
// after the last acknowledged operation, or after the one in flight.
type writer struct {
	dir    string
	rng    *rand.Rand
	n      int
	now    *model // acknowledged
	flight *model // with the operation in flight, nil if there is none
	what   string // the operation in flight
	log    []string
}

// about returns what was done to a name, oldest first.
func (w *writer) about(name string) []string {
	var out []string
	for _, l := range w.log {
		if slices.Contains(strings.Fields(l), name) {
			out = append(out, l)
		}
	}
	return out
}

// model is a flat directory: names to contents.
type model struct {
	files map[string][]byte
}

func newModel() *model { return &model{files: map[string][]byte{}} }

func (m *model) clone() *model {
	c := newModel()
	for n, p := range m.files {
		c.files[n] = p // contents are never changed in place
	}
	return c
}

func (m *model) any(rng *rand.Rand) (string, bool) {
	if len(m.files) == 0 {
		return "", false
	}
	names := make([]string, 0, len(m.files))
	for n := range m.files {
		names = append(names, n)
	}
	// Map order is random: sort by choosing the smallest of a hash.
	best := names[0]
	salt := rng.Uint64()
	for _, n := range names {
		if hash(n, salt) < hash(best, salt) {
			best = n
		}
	}
	return best, true
}

func hash(s string, salt uint64) uint64 {
	h := salt
	for _, c := range []byte(s) {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	return h
}

// step does one operation and returns its error. What it leaves in now and
// flight is right whether or not the operation was done.
func (w *writer) step() error {
	w.n++
	next := w.now.clone()
	do := w.choose(next)
	w.flight = next
	w.log = append(w.log, fmt.Sprintf("%d %s", w.n, w.what))
	if err := do(); err != nil {
		return err
	}
	w.now, w.flight = next, nil
	return nil
}

// choose picks an operation, applies it to the model and returns how to do it.
// Each is one system call that changes something, so it is there whole or not.
func (w *writer) choose(next *model) func() error {
	path := func(n string) string { return filepath.Join(w.dir, n) }
	name, ok := next.any(w.rng)
	kind := w.rng.IntN(10)
	fresh := fmt.Sprintf("f%d", w.n)
	switch {
	case !ok || kind < 3:
		w.what = "create " + fresh
		next.files[fresh] = nil
		return func() error {
			fd, err := unix.Open(path(fresh), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}
	case kind < 7:
		return w.chooseWrite(next, name, path(name))
	case kind == 7:
		w.what = fmt.Sprintf("rename %s to %s", name, fresh)
		next.files[fresh] = next.files[name]
		delete(next.files, name)
		return func() error { return unix.Rename(path(name), path(fresh)) }
	case kind == 8:
		w.what = "truncate " + name
		size := w.rng.IntN(len(next.files[name]) + 1)
		next.files[name] = next.files[name][:size]
		return func() error { return unix.Truncate(path(name), int64(size)) }
	default:
		w.what = "unlink " + name
		delete(next.files, name)
		return func() error { return unix.Unlink(path(name)) }
	}
}

// chooseWrite writes within one page: the kernel sends it as one request.
func (w *writer) chooseWrite(next *model, name, path string) func() error {
	old := next.files[name]
	off := 0
	if len(old) > 0 {
		off = w.rng.IntN(len(old) + 1)
	}
	n := 1 + w.rng.IntN(4096-off%4096)
	p := fstree.Bytes(w.rng.Uint64(), n)
	now := make([]byte, max(len(old), off+n))
	copy(now, old)
	copy(now[off:], p)
	next.files[name] = now
	w.what = fmt.Sprintf("write %s at %d+%d", name, off, n)
	return func() error {
		fd, err := unix.Open(path, unix.O_WRONLY, 0)
		if err != nil {
			return err
		}
		m, err := unix.Pwrite(fd, p, int64(off))
		if err == nil && m != n {
			err = errors.New("short write")
		}
		// With the writeback cache it is close that carries the bytes over.
		return errors.Join(err, unix.Close(fd))
	}
}

// read describes what is in the directory now.
func read(dir string) (*model, error) {
	m := newModel()
	ents, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range ents {
		p, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		m.files[e.Name()] = p
	}
	return m, nil
}

// diff says which name differs and how, "" and "" if none does.
func diff(want, got *model) (name, how string) {
	for n, p := range want.files {
		g, ok := got.files[n]
		if !ok {
			return n, fmt.Sprintf("(%d bytes) is missing", len(p))
		}
		if string(g) != string(p) {
			return n, fmt.Sprintf("has %d bytes, want %d; they differ from byte %d on", len(g), len(p), firstDiff(g, p))
		}
	}
	for n, g := range got.files {
		if _, ok := want.files[n]; !ok {
			return n, fmt.Sprintf("(%d bytes) should not be there", len(g))
		}
	}
	return "", ""
}

func firstDiff(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
