package layers

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// StagePrefix begins the name of the directory, in the root of the base, in which a commit
// gets its files ready. No view of the base shows such a name.
const StagePrefix = ".rewindfs-commit-"

// staged reports whether p is the directory of a commit.
func staged(p string) bool {
	return strings.HasPrefix(p, StagePrefix) && !strings.Contains(p, "/")
}

// Dup returns an O_PATH descriptor of the base's root, for whoever writes to it.
func (b *Base) Dup() (int, error) {
	fd, err := unix.FcntlInt(uintptr(b.root), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the base once more: %w", err)
	}
	return fd, nil
}

// FromBase reports whether i is the number of an object that the base has or had, not of one made here.
func (i Ino) FromBase() bool { return i.ofBase() }

// Touched calls fn for the paths at which l shows what was changed since the base its line is built on: also where
// Diff has nothing to compare with, as the base has since lost what it had there. In no order, and some more than once.
func (t *Tree) Touched(l Layer, fn func(path string)) error {
	v, err := t.View(l)
	if err != nil {
		return err
	}
	defer v.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	v.keep = true
	if v.stale {
		return fmt.Errorf("layer %d: %w", l, ErrNoLayer)
	}
	inos, names, err := t.changes(t.between(BaseLayer, l), nil)
	if err != nil {
		return err
	}
	for ino := range inos {
		n, err := v.find(ino)
		if err == nil && !n.gone && ino != RootIno {
			var keys []NameKey
			keys, err = v.namesOf(n)
			for _, k := range keys {
				names[k] = struct{}{}
			}
		}
		if err = notThere(err); err != nil {
			return fmt.Errorf("list what layer %d changed: %w", l, err)
		}
	}
	for k := range names {
		dn, err := v.find(k.Dir)
		if err == nil && !dn.gone {
			var dir string
			if dir, err = v.pathOf(dn); err == nil {
				fn(join(dir, k.Name))
			}
		}
		if err = notThere(err); err != nil {
			return fmt.Errorf("list what layer %d changed: %w", l, err)
		}
	}
	return nil
}
