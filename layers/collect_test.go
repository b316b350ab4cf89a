package layers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// collect keeps only the layers named.
func (s *store) collect(keep ...Layer) CollectStats {
	s.t.Helper()
	dry, err := s.tree.Collect(context.Background(), keep, CollectOptions{DryRun: true})
	s.ok(err)
	st, err := s.tree.Collect(context.Background(), keep, CollectOptions{})
	s.ok(err)
	if dry.GivenUp != st.GivenUp || dry.Removed != st.Removed {
		s.t.Fatalf("a dry run says %+v, then it is %+v", dry, st)
	}
	return st
}

// states dumps what these layers show.
func (s *store) states(ls []Layer) map[Layer][]string {
	s.t.Helper()
	out := map[Layer][]string{}
	for _, l := range ls {
		v, err := s.tree.View(l)
		s.ok(err)
		out[l] = dump(s.t, v)
		v.Close()
	}
	return out
}

// sameStates checks that these layers show what they showed, and that Diff knows the
// differences of each to its neighbours and to the outermost.
func (s *store) sameStates(want map[Layer][]string) {
	s.t.Helper()
	for l, lines := range s.states(slices.Collect(maps.Keys(want))) {
		if !slices.Equal(lines, want[l]) {
			s.t.Fatalf("layer %d shows\n  %q\nit was\n  %q", l, lines, want[l])
		}
	}
	order := slices.Sorted(maps.Keys(want))
	for i, l := range order {
		for _, j := range []int{0, i - 1, len(order) - 1} {
			if m := order[max(0, j)]; m != l {
				s.checkDiff(l, m, want[l], want[m])
				s.checkDiff(m, l, want[m], want[l])
			}
		}
	}
}

func (s *store) checkDiff(l, m Layer, was, is []string) {
	s.t.Helper()
	said := map[string]string{}
	below := func(lines []string, dir, how string) {
		for _, line := range lines {
			if p, _, _ := strings.Cut(line, " "); p == dir || strings.HasPrefix(p, dir+"/") {
				said[p] += how
			}
		}
	}
	s.ok(s.tree.Diff(l, m, func(c Change) error {
		if c.Status == Renamed { // of a directory it goes for all that is in it
			below(was, c.OldPath, "D")
			below(is, c.Path, "A")
		} else {
			said[c.Path] += string(c.Status)
		}
		return nil
	}))
	before, after := shown(was), shown(is)
	for p, old := range before {
		switch now, there := after[p]; {
		case !there && !strings.Contains(said[p], "D"):
			s.t.Errorf("diff %d..%d: %q is gone, it says %q", l, m, p, said[p])
		case there && old != now && said[p] == "" && !strings.Contains(old+now, linked):
			s.t.Errorf("diff %d..%d: %q differs, it says nothing", l, m, p)
		}
	}
	for p := range after {
		if _, there := before[p]; !there && !strings.Contains(said[p], "A") {
			s.t.Errorf("diff %d..%d: %q came, it says %q", l, m, p, said[p])
		}
	}
	for p, how := range said {
		if before[p] == "" && after[p] == "" {
			s.t.Errorf("diff %d..%d: %q, which is in neither, %s", l, m, p, how)
		}
	}
}

// linked marks what has several names: of a base file, some are known to the base only,
// and Diff need not find them.
const linked = " linked"

// fileLine is the line of dump for a regular file.
func fileLine(p string, a Attr, content string) string {
	if len(content) > 1000 {
		content = fmt.Sprintf("%d bytes, %x", len(content), sha256.Sum256([]byte(content)))
	}
	return fmt.Sprintf("%s mode=%o nlink=%d %q", p, a.Mode, a.Nlink, content)
}

// shown takes the lines of a dump apart: what counts as a change, by path.
func shown(lines []string) map[string]string {
	out := map[string]string{}
	for _, line := range lines {
		p, rest, _ := strings.Cut(line, " ")
		mode, rest, _ := strings.Cut(rest, " nlink=")
		links, content, _ := strings.Cut(rest, " ")
		if links != "1" && content != "" {
			mode += linked
		}
		out[p] = mode + " " + content
	}
	return out
}

func kernelBase(t *testing.T) string {
	t.Helper()
	base := t.TempDir()
	for _, d := range []string{"a/a", "b", "c/d"} {
		os.MkdirAll(filepath.Join(base, d), 0o755)
	}
	for _, f := range []string{"d", "a/b", "a/a/c", "c/a", "c/d/e"} {
		os.WriteFile(filepath.Join(base, f), []byte(f), 0o644)
	}
	os.Link(filepath.Join(base, "d"), filepath.Join(base, "b/b"))
	return base
}

// number is a number from the environment, as in tests/layersdiff, or def.
func number(t *testing.T, name string, def uint64) uint64 {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return def
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestCollectAtRandom plays operations, checkpoints, moves and collections. What is kept
// shows what it showed, differs as it did, and is all there is; and a kernel is told what it must know.
// REWINDFS_TEST_SEED and REWINDFS_TEST_CHECKS choose other sequences.
func TestCollectAtRandom(t *testing.T) {
	first, count := number(t, "REWINDFS_TEST_SEED", 0), number(t, "REWINDFS_TEST_CHECKS", 8)
	for seed := first; seed < first+count; seed++ {
		if t.Failed() {
			return
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) { collectAtRandom(t, seed) })
	}
}

func collectAtRandom(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 11))
	base := kernelBase(t)
	s := newStore(t, base)
	k := newKernel(t, s.b)
	k.linked = s.numberInBase("b/b")
	known := []Layer{}
	for round := range 40 {
		if round%3 == 0 {
			s.ok(s.tree.digestSome(time.Now().Add(time.Hour)))
		}
		if round%4 == 0 {
			s.clean()
		}
		s.checkDigests()
		for range rng.IntN(10) {
			if k.act(rng); rng.IntN(3) == 0 {
				k.actInside(rng)
			}
		}
		if rng.IntN(3) == 0 {
			k.shrink(rng)
		}
		if rng.IntN(8) == 0 {
			s.reopen()
			linked := k.linked
			k = newKernel(t, s.b)
			k.linked = linked
		}
		if rng.IntN(4) == 0 {
			known = append(known, s.otherBranch(rng, known)...)
		}
		switch rng.IntN(5) {
		case 0, 1, 2:
			known = append(known, s.seal())
		case 3:
			to := BaseLayer
			if len(known) > 0 && rng.IntN(4) > 0 {
				to = known[rng.IntN(len(known))]
			}
			m := k.move(s, to)
			if !m.Noop {
				known = append(known, m.From)
			}
			k.check(m)
			k.forgetUnused()
		case 4:
			var keep []Layer
			b, err := s.tree.Branch("other")
			s.ok(err)
			for _, l := range known {
				if rng.IntN(2) == 0 || l == s.b.Parent() || l == b.Parent() {
					keep = append(keep, l)
				}
			}
			all := append([]Layer{BaseLayer, s.b.HeadLayer(), b.HeadLayer()}, keep...)
			want := s.states(all)
			s.collect(keep...)
			s.sameStates(want)
			s.audit()
			for _, l := range known {
				if !slices.Contains(keep, l) {
					s.isGone(l)
				}
			}
			known = keep
			if rng.IntN(3) == 0 {
				_, err := s.tree.Reclaim()
				s.ok(err)
				s.sameStates(want)
			}
		}
	}
}

// actInside changes a file that the kernel knows: attributes, length, and content in chunks.
func (k *kernel) actInside(rng *rand.Rand) {
	var files []Ino
	for _, key := range k.known() {
		if ino := k.names[key]; ino != 0 && !k.isDir(ino) {
			files = append(files, ino)
		}
	}
	if len(files) == 0 {
		return
	}
	ino := files[rng.IntN(len(files))]
	var err error
	switch rng.IntN(6) {
	case 0:
		err = k.b.Setxattr(ino, "user."+string(rune('a'+rng.IntN(2))), fmt.Append(nil, rng.Int()), 0)
	case 1:
		err = k.b.Removexattr(ino, "user."+string(rune('a'+rng.IntN(2))))
	case 2:
		size := int64(rng.IntN(3)) * 40_000
		_, err = k.b.Setattr(ino, SetAttr{Size: &size})
	case 3:
		_, err = k.b.Write(ino, noise(rng.Uint64(), 40_000), int64(rng.IntN(2))*regionSize, WriteFlags{})
	case 4:
		_, err = k.b.Write(ino, []byte("small"), int64(rng.IntN(50_000)), WriteFlags{})
	case 5:
		err = k.b.Fallocate(ino, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(rng.IntN(30_000)), 10_000, false)
	}
	if err != nil && !slices.ContainsFunc([]error{unix.ENODATA, unix.ESTALE, unix.EINVAL}, func(e error) bool { return errors.Is(err, e) }) {
		k.t.Fatalf("change inode %d: %v", ino, err)
	}
	k.stat(ino)
}

// otherBranch lets another head go to a layer that is known, or stay, and change something.
func (s *store) otherBranch(rng *rand.Rand, known []Layer) (sealed []Layer) {
	s.t.Helper()
	b, err := s.tree.Branch("other")
	s.ok(err)
	if len(known) > 0 && rng.IntN(2) == 0 {
		m, err := b.MoveHead(known[rng.IntN(len(known))], false, nil, nil)
		if s.ok(err); !m.Noop {
			sealed = append(sealed, m.From)
		}
	}
	for range 3 {
		name := string(rune('a' + rng.IntN(5)))
		switch rng.IntN(3) {
		case 0:
			a, err := b.Mknod(RootIno, name, unix.S_IFREG|0o644, 0, Cred{})
			if err == nil {
				_, err = b.Write(a.Ino, noise(rng.Uint64(), 40_000), 0, WriteFlags{})
				s.ok(err)
				b.Forget(a.Ino, 1)
			}
		case 1:
			if err := b.Unlink(RootIno, name); errors.Is(err, unix.EISDIR) {
				err = b.Rename(RootIno, name, RootIno, string(rune('a'+rng.IntN(5))), 0)
				if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOTDIR) {
					s.t.Fatal(err)
				}
			}
		case 2:
			if rng.IntN(2) == 0 {
				r, err := b.Seal(nil)
				s.ok(err)
				sealed = append(sealed, r.Layer)
			}
		}
	}
	return sealed
}

// isGone checks that a layer cannot be looked at nor moved to.
func (s *store) isGone(l Layer) {
	s.t.Helper()
	if _, err := s.tree.View(l); !errors.Is(err, ErrNoLayer) {
		s.t.Errorf("view of layer %d, which was given up: %v", l, err)
	}
	if _, err := s.b.MoveHead(l, false, nil, nil); !errors.Is(err, ErrNoLayer) {
		s.t.Errorf("move to layer %d, which was given up: %v", l, err)
	}
	if err := s.tree.Diff(l, BaseLayer, nil); !errors.Is(err, ErrNoLayer) {
		s.t.Errorf("diff of layer %d, which was given up: %v", l, err)
	}
	if s.tree.Has(l) || slices.Contains(s.b.Line(), l) {
		s.t.Errorf("layer %d, which was given up, is said to be there", l)
	}
}
