package fsops

import (
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rewindfs/rewindfs/internal/fstree"
)

// TestTwinDirectoriesAgree holds the harness against itself: two copies of one
// directory on one file system give the same results and trees. It also shows
// that most operations do something.
func TestTwinDirectoriesAgree(t *testing.T) {
	base, scratch := fstree.FastTemp(t), fstree.FastTemp(t)
	if err := fstree.MakeBase(base); err != nil {
		t.Fatal(err)
	}
	ok, failed := map[Kind]int{}, map[Kind]int{}
	ops := GenSequence(GenOptions{Held: true, Maps: true}, 30, 90)
	rapid.Check(t, func(rt *rapid.T) {
		var twins [2]*Dir
		var dirs [2]string
		for i := range twins {
			var err error
			if dirs[i], err = os.MkdirTemp(scratch, "twin"); err != nil {
				rt.Fatal(err)
			}
			defer os.RemoveAll(dirs[i])
			if err := fstree.Copy(base, dirs[i]); err != nil {
				rt.Fatal(err)
			}
			if twins[i], err = NewDir(dirs[i]); err != nil {
				rt.Fatal(err)
			}
			twins[i].Emulate = true
			defer twins[i].Close()
		}
		start := fstree.Time{Sec: time.Now().Unix() - 1} // the clock of file times is a tick behind
		for n, o := range ops.Draw(rt, "ops") {
			a, b := twins[0].Do(o), twins[1].Do(o)
			if a != b {
				rt.Fatalf("operation %d %v: %v, and %v", n, o, a, b)
			}
			if a.Errno == 0 {
				ok[o.Kind]++
			} else {
				failed[o.Kind]++
			}
		}
		x, err := fstree.Scan(dirs[0])
		if err != nil {
			rt.Fatal(err)
		}
		y, err := fstree.Scan(dirs[1])
		if err != nil {
			rt.Fatal(err)
		}
		for _, d := range fstree.Diff(x, y, fstree.Fields{Nlink: true, Mtime: true, Fresh: &start}, "one", "two") {
			rt.Error(d)
		}
	})
	for _, k := range kindOrder {
		if ok[k] < 3 {
			t.Errorf("%s succeeded %d times and failed %d times: it tests nothing", k, ok[k], failed[k])
		}
		t.Logf("%-10s ok %4d failed %4d", k, ok[k], failed[k])
	}
}
