package layers

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStorm lets writers, readers, checkpoints and reclaims run into each other. Each
// writer owns its files and knows what must be in them.
func TestStorm(t *testing.T) {
	s := newStore(t, sampleBase(t))
	const writers, rounds, checkpoints = 6, 60, 200
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := stormWriter(s.b, w, rounds); err != nil {
				t.Errorf("writer %d: %v", w, err)
			}
		}()
	}
	var others sync.WaitGroup
	others.Go(func() { // what the writers overwrite goes at once
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := s.tree.Reclaim(); err != nil {
				t.Errorf("reclaim: %v", err)
				return
			}
		}
	})
	others.Go(func() { // checkpoints
		for range checkpoints {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := s.b.Seal(nil); err != nil {
				t.Errorf("seal: %v", err)
				return
			}
		}
	})
	others.Go(func() { // somebody who looks at everything
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := stormReader(&s.b.View, RootIno); err != nil {
				t.Errorf("reader: %v", err)
				return
			}
		}
	})
	wg.Wait()
	close(stop)
	others.Wait()
	before := dump(t, &s.b.View)
	s.reopen()
	same(t, dump(t, &s.b.View), before)
}

func stormWriter(b *Branch, w, rounds int) error {
	rng := rand.New(rand.NewPCG(1, uint64(w)))
	dir, err := b.Mkdir(RootIno, fmt.Sprintf("w%d", w), 0o755, Cred{})
	if err != nil {
		return err
	}
	for i := range rounds {
		name := fmt.Sprintf("f%d", i%7)
		a, err := b.Mknod(dir.Ino, name, unix.S_IFREG|0o644, 0, Cred{})
		if errors.Is(err, unix.EEXIST) {
			a, err = b.Lookup(dir.Ino, name)
		}
		if err != nil {
			return fmt.Errorf("open %s: %w", name, err)
		}
		model := make([]byte, a.Size)
		if _, err := b.ReadAt(a.Ino, model, 0); err != nil {
			return err
		}
		for range 8 {
			off, n := rng.IntN(300_000), 1+rng.IntN(1+rng.IntN(200_000))
			p := bytes.Repeat([]byte{byte(rng.IntN(255) + 1)}, n)
			if rng.IntN(6) == 0 {
				size := int64(rng.IntN(200_000))
				if _, err := b.Setattr(a.Ino, SetAttr{Size: &size}); err != nil {
					return err
				}
				model = append(model, make([]byte, max(0, int(size)-len(model)))...)[:size]
				continue
			}
			if _, err := b.Write(a.Ino, p, int64(off), WriteFlags{}); err != nil {
				return err
			}
			model = append(model, make([]byte, max(0, off+n-len(model)))...)
			copy(model[off:], p)
		}
		got := make([]byte, len(model)+10)
		n, err := b.ReadAt(a.Ino, got, 0)
		if err != nil || !bytes.Equal(got[:n], model) {
			return fmt.Errorf("round %d, %s: %d of %d bytes are not what was written (%v)", i, name, n, len(model), err)
		}
		switch rng.IntN(4) {
		case 0:
			err = b.Unlink(dir.Ino, name)
		case 1:
			err = b.Rename(dir.Ino, name, dir.Ino, fmt.Sprintf("f%d", rng.IntN(7)), 0)
		}
		if err != nil {
			return err
		}
		b.Forget(a.Ino, 1)
	}
	return nil
}

func stormReader(v *View, dir Ino) error {
	var entries []Entry
	if err := v.ReadDir(dir, 0, func(e Entry) bool { entries = append(entries, e); return true }); err != nil {
		return err
	}
	for _, e := range entries {
		a, err := v.Lookup(dir, e.Name)
		if errors.Is(err, unix.ENOENT) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		if a.IsDir() {
			err = stormReader(v, a.Ino)
		} else if a.Mode&unix.S_IFMT == unix.S_IFREG {
			_, err = v.ReadAt(a.Ino, make([]byte, 4096), 0)
		}
		v.Forget(a.Ino, 1)
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	return nil
}
