package faults

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// takes is what the files below dir take on the disk, as du counts.
func takes(t *testing.T, dir string) (sum int64) {
	t.Helper()
	ok(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			sum += stat(t, p).Blocks * 512
		}
		return err
	}))
	return sum
}

// Checkpoints that fill the disk to the last byte: gc needs no room, and afterwards there is some. What it
// keeps is there, byte for byte.
func TestGCOnAFullDisk(t *testing.T) {
	for _, c := range []struct {
		name string
		size int
	}{{"large files", 1 << 20}, {"small files", 3000}} {
		t.Run(c.name, func(t *testing.T) {
			m := mounttest.New(t, mounttest.Options{Store: j(smallDisk(t, 64), "store")})
			put(t, m.Path("precious"), string(fstree.Bytes(7, 3<<20)))
			m.Checkpoint("clean")
			var files int
			for round := 0; ; round++ {
				var err error
				for files = 0; files < 5<<20/c.size && err == nil; files++ {
					err = writeTo(m.Path(fmt.Sprint("f", files)), fstree.Bytes(uint64(round*10_000+files), c.size))
				}
				if err != nil {
					wantErr(t, err, unix.ENOSPC)
					break
				}
				if r := m.Run("checkpoint", fmt.Sprint("c", round)); r.Code != 0 {
					break // no room for that either
				}
			}
			if r := m.Run("gc", "--keep", "1"); r.Code != 0 {
				t.Fatalf("gc on a full disk: %s%s", r.Stdout, r.Stderr)
			}
			ok(t, writeTo(m.Path("after"), fstree.Bytes(1, 4<<20)))
			content(t, m.Path("precious"), string(fstree.Bytes(7, 3<<20)))
			if r := m.Run("fsck"); r.Code != 0 {
				t.Fatalf("after gc on a full disk: %s%s", r.Stdout, r.Stderr)
			}
		})
	}
}

func writeTo(path string, b []byte) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	for len(b) > 0 && err == nil {
		var n int
		if n, err = unix.Write(fd, b[:min(len(b), 64<<10)]); err == nil {
			b = b[n:]
		}
	}
	if cerr := unix.Close(fd); err == nil {
		err = cerr
	}
	return err
}

// After gc the files of the store take at most 1.2 times what they hold: here of some large files and many small ones.
func TestGCShrinksTheFilesOfTheStore(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{})
	live := int64(0)
	for round := range 6 {
		live = 0
		for i := range 12 {
			put(t, m.Path(fmt.Sprint("large", i)), string(fstree.Bytes(uint64(round*100+i), 1<<20)))
			live += 1 << 20
		}
		m.Sh("rm -rf small; mkdir small")
		for i := range 1000 {
			put(t, m.Path(fmt.Sprint("small/f", i)), string(fstree.Bytes(uint64(round*10_000+i), 3000)))
			live += 3000
		}
		m.Checkpoint(fmt.Sprint("c", round))
	}
	before := takes(t, m.Store)
	if r := m.Run("gc", "--keep", "1"); r.Code != 0 {
		t.Fatal(r)
	}
	after := takes(t, m.Store)
	for _, d := range []string{"packs", "kv/log", "kv/badger", "ledger"} {
		t.Logf("%s takes %d KiB", d, takes(t, j(m.Store, d))>>10)
	}
	t.Logf("%d MiB live: %d MiB before, %d MiB after", live>>20, before>>20, after>>20)
	if after > live*12/10 || before < 5*live {
		t.Errorf("the store takes %d bytes for %d (before: %d)", after, live, before)
	}
	content(t, m.Path("large3"), string(fstree.Bytes(503, 1<<20)))
}
