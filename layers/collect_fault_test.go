package layers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// history makes a store with lines to give up and to keep, and returns the layers to keep.
func (s *store) history() (keep, other []Layer) {
	s.t.Helper()
	rng := rand.New(rand.NewPCG(3, 3))
	k := newKernel(s.t, s.b)
	var known []Layer
	for i := range 30 {
		for range 8 {
			k.act(rng)
			k.actInside(rng)
		}
		if i%5 == 4 {
			known = append(known, k.move(s, known[rng.IntN(len(known))]).From)
			continue
		}
		known = append(known, s.seal())
	}
	for _, l := range known {
		if l%4 == 1 || l == s.b.Parent() {
			keep = append(keep, l)
		} else {
			other = append(other, l)
		}
	}
	return keep, other
}

// openWith is open with faults: from the failing batch on none is applied any more.
func (s *store) openWith(fault func(step string) error) {
	s.t.Helper()
	s.faults = fault
	s.open()
}

var errCut = errors.New("cut off by the test")

// TestCollectCutOff stops collections at every batch, as a crash would. What is kept is
// whole, also while the next start goes on with it, and then all else is gone.
func TestCollectCutOff(t *testing.T) {
	made := newStore(t, kernelBase(t))
	keep, other := made.history()
	all := append([]Layer{BaseLayer, made.b.HeadLayer()}, keep...)
	want := made.states(all)
	made.close()
	const stride = 3 // of the batches; each trial opens the store twice
	trials := 0
	for n := int64(1); ; n += stride {
		var left atomic.Int64
		left.Store(1 << 60)
		s := &store{t: t, base: made.base, dir: filepath.Join(t.TempDir(), "store")}
		if out, err := exec.Command("cp", "-a", made.dir, s.dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		s.openWith(func(step string) error {
			if step == "log.write" && left.Add(-1) < 0 {
				return errCut
			}
			return nil
		})
		left.Store(n)
		_, err := s.tree.Collect(context.Background(), keep, CollectOptions{})
		hit := errors.Is(err, errCut)
		if err != nil && !hit {
			t.Fatal(err)
		}
		left.Store(1 << 60)
		s.close()

		s.openWith(nil)
		s.sameStates(want)
		s.collect(keep...)
		s.sameStates(want)
		for _, l := range other {
			s.isGone(l)
		}
		s.audit()
		s.close()
		trials++
		if !hit {
			break
		}
	}
	if trials < 5 {
		t.Errorf("only %d places to stop at", trials)
	}
}

// A collection that is told to stop goes on when the store is opened again.
func TestCollectIsResumed(t *testing.T) {
	s := newStore(t, kernelBase(t))
	keep, other := s.history()
	all := append([]Layer{BaseLayer, s.b.HeadLayer()}, keep...)
	want := s.states(all)
	ctx, cancel := context.WithCancel(context.Background())
	_, err := s.tree.Collect(ctx, keep, CollectOptions{Marked: cancel})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("a collection that was stopped: %v", err)
	}
	s.sameStates(want)
	s.reopen()
	for s.unfinished() {
		runtime.Gosched()
	}
	s.sameStates(want)
	for _, l := range other {
		s.isGone(l)
	}
	s.audit()
}

func (s *store) unfinished() bool {
	s.tree.mu.RLock()
	defer s.tree.mu.RUnlock()
	return s.tree.unfinished()
}

// Keeping what is not there, or what was given up, changes nothing.
func TestCollectRefuses(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.write("f", "1")
	one := s.seal()
	s.write("f", "2")
	two := s.seal()
	s.write("f", "3")
	three := s.seal()
	if _, err := s.tree.Collect(context.Background(), []Layer{one, 99}, CollectOptions{}); !errors.Is(err, ErrNoLayer) {
		t.Errorf("keeping layer 99: %v", err)
	}
	stop := errors.New("no")
	if _, err := s.tree.Collect(context.Background(), nil, CollectOptions{Extra: func(*kv.Batch, []Layer) error { return stop }}); !errors.Is(err, stop) {
		t.Errorf("collect whose extra fails: %v", err)
	}
	for _, l := range []Layer{one, two, three} {
		if !s.tree.Has(l) {
			t.Errorf("layer %d went", l)
		}
	}
	var gone []Layer
	st, err := s.tree.Collect(context.Background(), []Layer{two}, CollectOptions{Extra: func(b *kv.Batch, ls []Layer) error {
		gone = append(gone, ls...)
		b.Put(kv.Meta("test"), []byte("x"))
		return nil
	}})
	s.ok(err)
	if !slices.Equal(gone, []Layer{one}) || st.GivenUp != 1 || st.Removed != 0 { // three is under the head
		t.Errorf("gone: %v, %+v", gone, st)
	}
	if _, ok, err := s.db.Get(kv.Meta("test")); !ok || err != nil {
		t.Errorf("the extra record is not there: %v", err)
	}
	if _, err := s.tree.Collect(context.Background(), []Layer{one}, CollectOptions{}); !errors.Is(err, ErrNoLayer) {
		t.Errorf("keeping a layer that was given up: %v", err)
	}
	s.isGone(one)
	s.audit()
}

// A view of a layer that is given up says so, whatever is asked of it, and so does what it was reading.
func TestViewOfALayerGivenUp(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.write("f", strings.Repeat("x", 100_000))
	l := s.seal()
	v, err := s.tree.View(l)
	s.ok(err)
	defer v.Close()
	a, err := v.Lookup(RootIno, "f")
	s.ok(err)
	s.remove("f")
	s.seal()
	s.collect()
	s.reclaim()
	_, err1 := v.Lookup(RootIno, "README")
	_, err2 := v.ReadAt(a.Ino, make([]byte, 10), 0)
	_, err3 := v.Getattr(RootIno)
	err4 := v.ReadDir(RootIno, 0, func(Entry) bool { return true })
	for i, err := range []error{err1, err2, err3, err4} {
		if !errors.Is(err, unix.ESTALE) {
			t.Errorf("question %d to a view of a layer that is gone: %v", i, err)
		}
	}
	v.Forget(a.Ino, 1)
}

// A file that is in use without a name keeps its bytes, and they go once it is closed.
func TestCollectSparesOpenFiles(t *testing.T) {
	s := newStore(t, sampleBase(t))
	want := string(noise(1, 300_000))
	s.write("f", want)
	ino := s.ino("f")
	for range 3 {
		s.seal()
	}
	s.unlink("f")
	for range 3 {
		s.seal()
		s.collect()
		s.reclaim()
		if got, err := readAll(&s.b.View, ino); err != nil || got != want {
			t.Fatalf("a file in use has lost its bytes: %d of them, %v", len(got), err)
		}
	}
	full := s.used()
	a, err := s.b.Link(ino, RootIno, "again")
	s.ok(err)
	s.seal()
	s.collect()
	s.reclaim()
	if got, err := readAll(&s.b.View, ino); err != nil || got != want {
		t.Fatalf("a file that has a name again has lost its bytes: %d of them, %v", len(got), err)
	}
	s.b.Forget(a.Ino, 1)
	s.remove("again")
	s.seal()
	s.collect()
	s.reclaim()
	if now := s.used(); now > full-300_000 {
		t.Errorf("the chunks take %d bytes, they took %d", now, full)
	}
	s.audit()
}

// What is not cut yet of a layer that becomes a link is not lost, nor is what lies under it.
func TestCollectWithPendingBytes(t *testing.T) {
	s := newStore(t, sampleBase(t))
	s.write("f", strings.Repeat("a", 50_000))
	first := s.seal()
	for i := range 5 {
		_, err := s.b.Write(s.ino("f"), fmt.Appendf(nil, "<%d>", i), int64(i)*9_000, WriteFlags{})
		s.ok(err)
		s.seal()
	}
	want := s.states([]Layer{BaseLayer, s.b.HeadLayer(), first, s.b.Parent()})
	s.collect(first)
	s.sameStates(want)
	s.audit()
	s.reopen()
	s.sameStates(want)
	// Of a line that goes, pending bytes go, too.
	_, err := s.b.Write(s.ino("f"), []byte("gone"), 0, WriteFlags{})
	s.ok(err)
	s.back(first)
	s.collect(first)
	if n := s.tree.Usage().PendingBytes; n != 0 {
		t.Errorf("%d bytes are pending", n)
	}
	s.audit()
	s.reopen()
	if got, err := readAll(&s.b.View, s.ino("f")); err != nil || got != strings.Repeat("a", 50_000) {
		t.Errorf("the file has %d bytes, %v", len(got), err)
	}
}

// TestCollectSpace: after many checkpoints that each write the same file anew, the store
// holds little more than what is kept.
func TestCollectSpace(t *testing.T) {
	const mib, checkpoints = 1 << 20, 200
	s := newStore(t, sampleBase(t))
	s.write("f", "")
	ino := s.ino("f")
	var all []Layer
	for i := range checkpoints {
		_, err := s.b.Write(ino, noise(uint64(i), mib), 0, WriteFlags{})
		s.ok(err)
		s.write(fmt.Sprintf("made%d", i), "once") // and what comes and goes with them
		if i > 0 {
			s.remove(fmt.Sprintf("made%d", i-1))
		}
		all = append(all, s.seal())
	}
	keep := all[checkpoints-3:]
	want := s.states(append([]Layer{BaseLayer}, keep...))
	dry, err := s.tree.Collect(context.Background(), keep, CollectOptions{DryRun: true})
	s.ok(err)
	st, err := s.tree.Collect(context.Background(), keep, CollectOptions{})
	s.ok(err)
	if dry != st {
		t.Errorf("a dry run says %+v, then it is %+v", dry, st)
	}
	if st.GivenUp != checkpoints-3 || st.Bytes < (checkpoints-3)*mib || st.Bytes > (checkpoints-2)*mib {
		t.Errorf("collected %+v", st)
	}
	s.reclaim()
	s.ok(s.db.Flush())
	s.ok(s.db.Compact())
	s.sameStates(want)
	s.audit()
	s.close() // the log has blocks ahead while it is open
	var total int64
	s.ok(filepath.WalkDir(s.dir, func(p string, d os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Stat(p, &st) == nil && !strings.Contains(p, "/log/") {
			total += st.Blocks * 512
		}
		return err
	}))
	t.Logf("%d bytes on the disk for %d live", total, 3*mib)
	if total > 3*mib*12/10 {
		t.Errorf("the store takes %d bytes for %d live ones", total, 3*mib)
	}
}

// A file of very many regions does not go in one batch, and being cut off in the middle of it
// does no harm.
func TestCollectLargeFile(t *testing.T) {
	const regions = spillAt + 500
	s := newStore(t, sampleBase(t))
	s.write("f", "")
	s.write("gone", "")
	var third Layer
	for i := range 3 {
		for _, name := range []string{"f", "gone"} {
			ino := s.ino(name)
			for r := range int64(regions) {
				_, err := s.b.Write(ino, []byte{byte(i + 1)}, r*regionSize, WriteFlags{})
				s.ok(err)
			}
		}
		third = s.seal()
	}
	s.remove("gone")
	s.seal()
	want := s.b.HeadLayer()
	check := func() {
		t.Helper()
		v, err := s.tree.View(want)
		s.ok(err)
		defer v.Close()
		a, err := v.Lookup(RootIno, "f")
		s.ok(err)
		for _, r := range []int64{0, 1, spillAt, regions - 1} {
			var p [1]byte
			if n, err := v.ReadAt(a.Ino, p[:], r*regionSize); n != 1 || err != nil || p[0] != 3 {
				t.Errorf("region %d: %d, %v, %v", r, n, p, err)
			}
		}
	}
	var left atomic.Int64
	left.Store(1 << 60)
	s.close()
	s.openWith(func(step string) error {
		if step == "log.write" && left.Add(-1) < 0 {
			return errCut
		}
		return nil
	})
	s.ok(s.tree.cutAll())
	for n := int64(3); ; n += 2 {
		left.Store(n)
		_, err := s.tree.Collect(context.Background(), nil, CollectOptions{})
		left.Store(1 << 60)
		check()
		if err == nil {
			break
		}
		if !errors.Is(err, errCut) {
			t.Fatal(err)
		}
	}
	s.isGone(third)
	s.audit()
	n := 0
	s.ok(s.db.Scan(kv.ExtentsPrefix(), nil, func(_, _ []byte) bool { n++; return true }))
	if n != regions {
		t.Errorf("%d extent records are left of a file of %d regions", n, regions)
	}
}
