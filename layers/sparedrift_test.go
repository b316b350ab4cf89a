package layers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// However the base changes, and be it above a kept path, going back works.
func TestSpareWithDrift(t *testing.T) {
	for name, drift := range map[string]func(base string) error{
		"replaced": func(base string) error {
			return errors.Join(os.Rename(filepath.Join(base, "pkg"), filepath.Join(base, "old")), os.Mkdir(filepath.Join(base, "pkg"), 0o755))
		},
		"gone": func(base string) error { return os.RemoveAll(filepath.Join(base, "pkg")) },
		"a file": func(base string) error {
			return errors.Join(os.RemoveAll(filepath.Join(base, "pkg")), os.WriteFile(filepath.Join(base, "pkg"), nil, 0o644))
		},
		"a symlink": func(base string) error {
			return errors.Join(os.RemoveAll(filepath.Join(base, "pkg")), os.Symlink("/tmp", filepath.Join(base, "pkg")))
		},
		"kept file replaced": func(base string) error {
			p := filepath.Join(base, "pkg/kept/in-base")
			return errors.Join(os.WriteFile(p+".new", []byte("other"), 0o644), os.Rename(p+".new", p))
		},
		"kept file gone": func(base string) error { return os.Remove(filepath.Join(base, "pkg/kept/in-base")) },
		"kept gone":      func(base string) error { return os.RemoveAll(filepath.Join(base, "pkg/kept")) },
	} {
		for i := range 8 {
			restart, before, only := i&1 > 0, i&2 > 0, i&4 > 0
			t.Run(fmt.Sprint(name, ", restart ", restart, ", changed before ", before, ", and nothing else ", only), func(t *testing.T) {
				base := t.TempDir()
				s := newStore(t, base)
				s.ok(os.MkdirAll(filepath.Join(base, "pkg/kept/sub"), 0o755))
				s.ok(os.WriteFile(filepath.Join(base, "pkg/kept/in-base"), []byte("base"), 0o644))
				s.ok(os.WriteFile(filepath.Join(base, "pkg/kept/sub/y"), []byte("base"), 0o644))
				s.ok(os.WriteFile(filepath.Join(base, "pkg/src"), []byte("base"), 0o644))
				s.reopen()
				s.sparing()
				if before {
					s.write("pkg/kept/x", "start")
				}
				s.write("f", "start")
				start := s.seal()
				s.write("pkg/kept/x", "later")
				s.write("pkg/kept/new", "later")
				_, err := s.b.Write(s.ino("pkg/kept/in-base"), []byte("B"), 0, WriteFlags{})
				s.ok(err)
				s.write("pkg/kept/sub/z", "later")
				s.unlink("pkg/kept/sub/y")
				if !only {
					s.write("pkg/src2", "later")
				}
				s.write("f", "later")
				s.ok(drift(base))
				if restart {
					s.reopen()
					s.sparing()
				}
				m := s.back(start)
				s.want("f", "start")
				if before || name != "a file" && name != "a symlink" { // else that is what the target has there
					s.want("pkg/kept/x", "later")
				}
				s.back(m.From)
				s.want("f", "later")
				s.back(BaseLayer)
			})
		}
	}
}

// TestSpareWhileTheBaseChanges has a program and the host change a tree with kept paths at random: moving the head never fails.
func TestSpareWhileTheBaseChanges(t *testing.T) {
	dirs := []string{"a", "a/kept", "a/b", "a/b/kept", "a/b/c", "kept", "d", "d/kept", "d/kept/e"}
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 177))
		base := t.TempDir()
		for _, d := range dirs {
			for _, f := range []string{"f", "g.log"} {
				if err := errors.Join(os.MkdirAll(filepath.Join(base, d), 0o755), os.WriteFile(filepath.Join(base, d, f), []byte(d), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := os.Link(filepath.Join(base, "a/kept/f"), filepath.Join(base, "d/h")); err != nil {
			t.Fatal(err)
		}
		s := newStore(t, base)
		s.sparing()
		seals := []Layer{BaseLayer}
		var log []string
		for range 60 {
			p, q := anyPath(r, dirs), anyPath(r, dirs)
			switch k := r.IntN(12); k {
			case 0, 1, 2, 3, 4:
				log = append(log, fmt.Sprint(k, " ", p, " ", q, ": ", s.tryChange(k, p, q)))
			case 5:
				seals = append(seals, s.seal())
				log = append(log, "seal")
			case 6:
				s.reopen()
				s.sparing()
				log = append(log, "reopen")
			case 7, 8, 9, 10:
				log = append(log, fmt.Sprint("host ", k, " ", p, " ", q, ": ", driftAt(base, k, p, q)))
			case 11:
				l := seals[r.IntN(len(seals))]
				m, err := s.b.MoveHead(l, false, nil, nil)
				if log = append(log, fmt.Sprint("back to ", l)); err != nil {
					t.Fatalf("seed %d: %v after\n%q", seed, err, log)
				}
				if !m.Noop {
					seals = append(seals, m.From)
				}
			}
		}
		s.close()
	}
}

func anyPath(r *rand.Rand, dirs []string) string {
	return dirs[r.IntN(len(dirs))] + []string{"", "/f", "/g.log", "/n0", "/n1"}[r.IntN(5)]
}

// tryChange does something to the tree, if it can be done.
func (s *store) tryChange(k int, p, q string) error {
	dir, name := split(p)
	a, err := s.b.Resolve(dir)
	if err != nil {
		return err
	}
	switch k {
	case 0:
		f, err := s.b.Lookup(a.Ino, name)
		if err != nil {
			f, err = s.b.Mknod(a.Ino, name, unix.S_IFREG|0o644, 0, cred)
		}
		if err == nil {
			_, err = s.b.Write(f.Ino, []byte(q), 0, WriteFlags{})
		}
		return err
	case 1:
		return s.b.Unlink(a.Ino, name)
	case 2:
		qdir, qname := split(q)
		to, err := s.b.Resolve(qdir)
		if err == nil {
			err = s.b.Rename(a.Ino, name, to.Ino, qname, 0)
		}
		return err
	case 3:
		f, err := s.b.Lookup(a.Ino, name)
		if err == nil {
			mode := uint32(0o700)
			_, err = s.b.Setattr(f.Ino, SetAttr{Mode: &mode})
		}
		return err
	}
	_, err = s.b.Mkdir(a.Ino, name, 0o755, cred)
	return err
}

// driftAt does something to the base, if it can be done.
func driftAt(base string, k int, p, q string) error {
	p, q = filepath.Join(base, p), filepath.Join(base, q)
	switch k {
	case 7:
		return os.Rename(p, q)
	case 8:
		return os.RemoveAll(p)
	case 9:
		return errors.Join(os.RemoveAll(p), os.MkdirAll(p, 0o755))
	}
	return os.WriteFile(p, []byte("new"), 0o644)
}
