package kv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of size bytes and returns a directory on it.
func smallDisk(t testing.TB, kind, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a small disk")
	}
	dir := t.TempDir()
	var cmds [][]string
	if kind == "tmpfs" {
		cmds = [][]string{{"mount", "-t", "tmpfs", "-o", "size=" + size, "tmpfs", dir}}
	} else {
		image := filepath.Join(t.TempDir(), "image")
		cmds = [][]string{
			{"truncate", "-s", size, image},
			{"mkfs." + kind, "-q", "-m", "0", image},
			{"mount", "-o", "loop", image, dir},
		}
	}
	for _, c := range cmds {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Skipf("cannot mount a small disk: %v: %v: %s", c, err, out)
		}
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fillDisk takes every free block of the disk of dir, as another process would.
func fillDisk(t testing.TB, dir string) (undo func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	for buf := make([]byte, 1<<20); len(buf) >= 512; {
		if _, err := f.Write(buf); errors.Is(err, unix.ENOSPC) {
			buf = buf[:len(buf)/2]
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if free, _, err := statfs(dir); err != nil || free > 64<<10 {
		t.Fatalf("%d bytes are still free: %v", free, err)
	}
	return func() { must(t, os.Remove(path)) }
}

// grow applies batches until one is refused, and returns how many were not.
func grow(t testing.TB, db *DB, model map[string]string, name string, limit int) int {
	t.Helper()
	for i := range limit {
		k, v := fmt.Sprintf("%s%05d", name, i), noise(i, 50_000)
		err := db.Apply(batchOf(k, v))
		if errors.Is(err, ErrNoSpace) && errors.Is(err, unix.ENOSPC) {
			return i
		}
		must(t, err)
		model[k] = v
	}
	t.Fatalf("%d batches and the disk is not full", limit)
	return 0
}

func reserved(kv ...string) *Batch {
	b := batchOf(kv...)
	b.UseReserve()
	return b
}

// The store itself fills the disk: it stops at the reserve, what it has stays
// readable, what frees space goes on, and nothing is lost.
func TestFillDisk(t *testing.T) {
	for _, size := range []string{"64M", "96M"} {
		t.Run(size, func(t *testing.T) {
			disk := smallDisk(t, "tmpfs", size)
			dir := filepath.Join(disk, "store")
			db := openT(t, dir, Options{FlushIdle: time.Millisecond, Logger: testLog(t)})
			model := map[string]string{}
			if n := grow(t, db, model, "k", 5000); n < 200 {
				t.Errorf("full after %d batches of 50 KB", n)
			}
			if err := db.CheckSpace(96 << 20); !errors.Is(err, ErrNoSpace) {
				t.Errorf("CheckSpace: %v", err)
			}
			for i := range 100 {
				k := fmt.Sprintf("k%05d", i)
				must(t, db.Apply(reserved(k, "-")))
				delete(model, k)
			}
			same(t, dump(t, db), model)
			must(t, db.Sync())
			must(t, db.Close())
			db = openT(t, dir, Options{FlushIdle: manual, Logger: testLog(t)})
			same(t, dump(t, db), model)
			must(t, db.Close())
		})
	}
}

// Another process fills the disk to the last block, at a moment when half of the
// data is in the log only. The store lives, closes, opens again on the full disk,
// and works when there is space again.
func TestDiskFullByOthers(t *testing.T) {
	for _, c := range []struct{ kind, size string }{{"tmpfs", "96M"}, {"tmpfs", "200M"}, {"ext4", "128M"}} {
		t.Run(c.kind+c.size, func(t *testing.T) {
			disk := smallDisk(t, c.kind, c.size)
			dir := filepath.Join(disk, "store")
			opts := Options{FlushIdle: manual, Logger: testLog(t)}
			db := openT(t, dir, opts)
			model := map[string]string{}
			add := func(k, v string) {
				t.Helper()
				must(t, db.Apply(reserved(k, v)))
				model[k] = v
			}
			for i := range 200 {
				add(fmt.Sprintf("old%04d", i), strings.Repeat("o", 20_000))
			}
			must(t, db.Flush())
			for i := range 100 {
				add(fmt.Sprintf("new%04d", i), strings.Repeat("n", 10_000))
			}
			undo := fillDisk(t, disk)
			time.Sleep(2 * spaceAge) // a reading of the free space may be that old
			if err := db.Apply(batchOf("grow", "1")); !errors.Is(err, ErrNoSpace) {
				t.Errorf("apply on a full disk: %v", err)
			}
			for i := range 500 {
				k := fmt.Sprintf("old%04d", i%200)
				must(t, db.Apply(reserved(k, "-", fmt.Sprintf("note%03d", i), "rolled back")))
				delete(model, k)
				model[fmt.Sprintf("note%03d", i)] = "rolled back"
			}
			same(t, dump(t, db), model)
			must(t, db.Sync())
			if err := db.Flush(); err != nil && !errors.Is(err, ErrNoSpace) {
				t.Errorf("flush on a full disk: %v", err)
			}
			same(t, dump(t, db), model)
			must(t, db.Close())

			db = openT(t, dir, opts)
			same(t, dump(t, db), model)
			if err := db.CheckSpace(96 << 20); !errors.Is(err, ErrNoSpace) {
				t.Errorf("CheckSpace on a full disk after opening: %v", err)
			}
			must(t, db.Apply(reserved("note000", "-")))
			delete(model, "note000")

			undo()
			time.Sleep(2 * spaceAge)
			must(t, db.Apply(batchOf("grow", "1")))
			model["grow"] = "1"
			must(t, db.Flush())
			same(t, dump(t, db), model)
			must(t, db.Close())
			db = openT(t, dir, opts)
			same(t, dump(t, db), model)
			must(t, db.Close())
		})
	}
}

// The reserve's own end: batches with UseReserve go on until log, spare and
// ballast are used up, then get ErrNoSpace, and everything accepted is there.
func TestReserveRunsOut(t *testing.T) {
	disk := smallDisk(t, "tmpfs", "96M")
	dir := filepath.Join(disk, "store")
	db := openT(t, dir, Options{FlushIdle: manual, Logger: testLog(t)})
	model := map[string]string{}
	undo := fillDisk(t, disk)
	n := 0
	for ; ; n++ {
		k, v := fmt.Sprintf("k%05d", n), strings.Repeat("v", 20_000)
		err := db.Apply(reserved(k, v))
		if errors.Is(err, ErrNoSpace) {
			break
		}
		must(t, err)
		model[k] = v
	}
	if n < 100 {
		t.Errorf("reserve is used up after %d batches of 20 KB", n)
	}
	same(t, dump(t, db), model)
	db = openT(t, crashedInPlace(t, db), Options{FlushIdle: manual, Logger: testLog(t)})
	same(t, dump(t, db), model)
	undo()
	must(t, db.Flush())
	must(t, db.Close())
}

// crashedInPlace ends db as a kill would and leaves its files where they are.
func crashedInPlace(t testing.TB, db *DB) string {
	t.Helper()
	db.wmu.Lock()
	db.closing = true
	db.wmu.Unlock()
	close(db.stop)
	<-db.stopped
	db.awaitMerge()
	db.readers.close()
	db.abandon()
	return db.dir
}

// Writers are at work while the disk gets full and empty again and again. A
// fault in one of Badger's mappings would end this process.
func TestDiskFullUnderLoad(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) { fullUnderLoad(t, smallDisk(t, kind, "160M")) })
	}
}

func fullUnderLoad(t *testing.T, disk string) {
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	dir := filepath.Join(disk, "store")
	db := openT(t, dir, Options{FlushIdle: time.Millisecond})
	var wg sync.WaitGroup
	var stop atomic.Bool
	var accepted, refused atomic.Int64
	const writers = 3
	last := make([]map[string]string, writers)
	for w := range writers {
		last[w] = map[string]string{}
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				k, v := fmt.Sprintf("w%d/%03d", w, i%500), fmt.Sprintf("%d %s", i, strings.Repeat("v", 3000))
				switch err := db.Apply(batchOf(k, v)); {
				case err == nil:
					last[w][k] = v
					accepted.Add(1)
				case errors.Is(err, ErrNoSpace):
					refused.Add(1)
					b := reserved(k, "-")
					if err := db.Apply(b); err == nil {
						delete(last[w], k)
					} else if !errors.Is(err, ErrNoSpace) {
						t.Error(err)
					}
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	wait := func(what *atomic.Int64) {
		giveUp := time.Now().Add(time.Minute)
		for goal := what.Load() + 300; what.Load() < goal && !t.Failed(); {
			time.Sleep(time.Millisecond)
			if time.Now().After(giveUp) {
				free, _, _ := statfs(disk)
				t.Errorf("stuck: %d accepted, %d refused, %d KiB free, %v", accepted.Load(), refused.Load(), free>>10, db.CheckSpace(3000))
				out, _ := exec.Command("ls", "-lsR", dir).Output()
				t.Logf("%s", out)
				db.wmu.Lock()
				t.Log(db.flushErr, db.active.bytes, db.frozenN-db.doneN)
				db.wmu.Unlock()
			}
		}
	}
	for range rounds {
		wait(&accepted)
		undo := fillTogether(t, disk)
		wait(&refused)
		undo()
	}
	wait(&accepted)
	stop.Store(true)
	wg.Wait()
	want := map[string]string{}
	for _, m := range last {
		for k, v := range m {
			want[k] = v
		}
	}
	same(t, dump(t, db), want)
	must(t, db.Close())
	db = openT(t, dir, Options{FlushIdle: manual})
	same(t, dump(t, db), want)
	must(t, db.Close())
}

// fillTogether is fillDisk while others use the disk too.
func fillTogether(t testing.TB, dir string) (undo func()) {
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	buf := make([]byte, 1<<20)
	for {
		if _, err := f.Write(buf); err != nil {
			return func() { must(t, os.Remove(path)) }
		}
	}
}

// Small disks get small reserves; a file system without a size counts as endless.
func TestSizes(t *testing.T) {
	for _, c := range []struct{ total, reserve int64 }{{0, defaultReserve}, {1 << 40, defaultReserve}, {64 << 20, 8 << 20}} {
		if got := sizesFor(c.total, 0); got.reserve != c.reserve || got.step <= 0 || got.segment < got.step {
			t.Errorf("disk of %d: %+v", c.total, got)
		}
	}
	if got := sizesFor(1<<40, 5); got.reserve != 5 {
		t.Errorf("own reserve: %+v", got)
	}
	db := openT(t, t.TempDir(), Options{statfs: func(string) (int64, int64, error) { return 0, 0, nil }})
	put(t, db, "k", "v")
	must(t, db.Flush())
}
