package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// smallDisk mounts a tmpfs of so many MiB.
func smallDisk(t *testing.T, mib int) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small disk")
	}
	dir := t.TempDir()
	ok(t, unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=0755", mib)))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount the small disk: %v", err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

// fillUp writes files until a write fails, and returns the error and how many
// files were written whole.
func fillUp(dir string, size int) (files int, err error) {
	for ; files < 100000; files++ {
		f, err := os.Create(j(dir, fmt.Sprintf("fill%d", files)))
		if err != nil {
			return files, err
		}
		_, err = f.Write(fstree.Bytes(uint64(files)+1000, size))
		if err == nil && files%32 == 0 {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return files, err
		}
	}
	return files, nil
}

func TestDamageStoreDiskFull(t *testing.T) {
	for _, c := range []struct {
		name         string
		size, rounds int
	}{{"large files", 1 << 20, 2}, {"small files", 3000, 1}} {
		t.Run(c.name, func(t *testing.T) {
			disk := smallDisk(t, 160)
			m := mounttest.New(t, mounttest.Options{Store: j(disk, "store")})
			pid := m.PID()
			m.Checkpoint("clean")
			clean := m.Snapshot()
			for round := range c.rounds {
				files, err := fillUp(m.Dir, c.size)
				wantErr(t, err, unix.ENOSPC)
				if files < 10 {
					t.Fatalf("round %d: the disk was full after %d files", round, files)
				}
				// What was written whole is there, and reads do not care.
				for i := range files {
					if i%97 == 0 {
						content(t, m.Path(fmt.Sprintf("fill%d", i)), string(fstree.Bytes(uint64(i)+1000, c.size)))
					}
				}
				content(t, m.Path("b"), string(fstree.Bytes(2, 5000)))
				// Again and again: no other error, no crash. What a file that failed had
				// taken may be free again.
				for i := range 20 {
					if err := os.WriteFile(m.Path("more"), fstree.Bytes(uint64(i), 4<<20), 0o644); err != nil && !errors.Is(err, unix.ENOSPC) {
						t.Errorf("a write to a full disk: %v", err)
					}
				}
				// Getting out: remove and roll back work.
				ok(t, os.Remove(m.Path("fill0")))
				ok(t, os.RemoveAll(m.Path("src")))
				m.Rollback("clean")
				mounttest.Same(t, clean, m.Snapshot(), fstree.Exact, "at the checkpoint", "after a rollback on a full disk")
				is(t, "the daemon", m.PID(), pid)
				// A larger disk heals it.
				ok(t, unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("size=%dm", 160*(round+2))))
				put(t, m.Path("after"), "space again")
				m.Checkpoint(fmt.Sprint("after", round))
				m.Remount()
				pid = m.PID()
				content(t, m.Path("after"), "space again")
				m.Rollback("clean")
				clean = m.Snapshot() // of this mount
			}
		})
	}
}

// What an agent wrote and deleted again takes no space: on a full store disk the next
// write gets it, without a checkpoint losing anything.
func TestDamageDeletingMakesRoom(t *testing.T) {
	for _, c := range []struct {
		name    string
		size    int
		remount bool
	}{{"large files", 1 << 20, false}, {"small files", 3000, false}, {"after a remount", 1 << 20, true}} {
		t.Run(c.name, func(t *testing.T) {
			m := mounttest.New(t, mounttest.Options{Store: j(smallDisk(t, 64), "store")})
			put(t, m.Path("precious"), string(fstree.Bytes(7, 3<<20)))
			m.Checkpoint("clean")
			ok(t, os.Remove(m.Path("precious"))) // but the checkpoint has it
			most := 0
			for round := range 4 {
				files, err := fillUp(m.Dir, c.size)
				wantErr(t, err, unix.ENOSPC)
				most = max(most, files)
				if files < most/2 { // how much small files take depends on what is in the log still
					t.Fatalf("round %d: the disk was full after %d files, earlier after %d", round, files, most)
				}
				if c.remount {
					m.Remount()
				}
				for i := range files + 1 {
					if err := os.Remove(m.Path(fmt.Sprintf("fill%d", i))); err != nil && (i < files || !errors.Is(err, unix.ENOENT)) {
						t.Fatal(err)
					}
				}
			}
			m.Rollback("clean")
			content(t, m.Path("precious"), string(fstree.Bytes(7, 3<<20)))
		})
	}
}

// The same of bytes that are written over or cut off.
func TestDamageOverwritingMakesRoom(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Store: j(smallDisk(t, 64), "store")})
	m.Checkpoint("clean")
	for i := range 20 {
		want := string(fstree.Bytes(uint64(i), 8<<20))
		put(t, m.Path("same"), want)
		content(t, m.Path("same"), want)
	}
	f, err := os.OpenFile(m.Path("same"), os.O_RDWR, 0)
	ok(t, err)
	defer f.Close()
	for i := range 20 {
		want := fstree.Bytes(uint64(100+i), 8<<20)
		_, err := f.WriteAt(want, 0)
		ok(t, err)
		content(t, m.Path("same"), string(want))
	}
}

func TestDamageUnmountAndRemountOnAFullDisk(t *testing.T) {
	disk := smallDisk(t, 160)
	m := mounttest.New(t, mounttest.Options{Store: j(disk, "store")})
	m.Checkpoint("clean")
	files, err := fillUp(m.Dir, 1<<20)
	wantErr(t, err, unix.ENOSPC)
	// Somebody else takes the rest, the reserve too.
	ballast, err := os.Create(j(disk, "ballast"))
	ok(t, err)
	for {
		if _, err := ballast.Write(make([]byte, 64<<10)); err != nil {
			break
		}
	}
	ballast.Close()
	content(t, m.Path("fill1"), string(fstree.Bytes(1001, 1<<20)))
	if err := os.WriteFile(m.Path("x"), fstree.Bytes(1, 1<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a write with no byte left: %v", err)
	}
	m.Run("unmount")
	ok(t, os.Remove(j(disk, "ballast")))
	if !mounttest.Mounted(m.Dir) {
		m.Mount()
	}
	for i := range files {
		content(t, m.Path(fmt.Sprintf("fill%d", i)), string(fstree.Bytes(uint64(i)+1000, 1<<20)))
	}
	m.Rollback("clean")
	listedBase(t, m)
}

// listedBase fails the test unless the mount lists what the base does.
func listedBase(t *testing.T, m *mounttest.Mount) {
	t.Helper()
	listed(t, m.Dir, names(t, m.Base)...)
}

func TestDamageFlippedBitInAPack(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Fill: mounttest.Empty})
	const files, size = 40, 256 << 10 // two chunks each
	for i := range files {
		ok(t, os.WriteFile(m.Path(fmt.Sprint(i)), fstree.Bytes(uint64(i), size), 0o644))
	}
	m.Checkpoint("c")
	m.Unmount()
	flipped := flipBits(t, m.Store, fstree.Bytes(7, size)[1000:1064])
	if flipped == 0 {
		t.Fatal("the bytes of a file were found in no file of the store")
	}
	m.Mount()
	for i := range files {
		f := open(t, m.Path(fmt.Sprint(i)), os.O_RDONLY)
		want := fstree.Bytes(uint64(i), size)
		for off := 0; off < size; off += 128 << 10 {
			p := make([]byte, 128<<10)
			n, err := f.ReadAt(p, int64(off))
			damaged := i == 7 && off == 0
			switch {
			case damaged && err == nil:
				t.Error("a damaged chunk was read without an error")
			case damaged:
				wantErr(t, err, unix.EIO)
			case err != nil || string(p[:n]) != string(want[off:off+128<<10]):
				t.Errorf("file %d at %d: %v, or wrong bytes", i, off, err)
			}
		}
	}
	// The rest works on, and the damaged file can be replaced.
	put(t, m.Path("7"), "replaced")
	content(t, m.Path("7"), "replaced")
	m.Checkpoint("d")
	m.Rollback("c")
	if _, err := os.ReadFile(m.Path("7")); !errors.Is(err, unix.EIO) {
		t.Errorf("the damaged file after a rollback: %v", err)
	}
}

// flipBits flips a bit in the middle of each occurrence of needle below dir.
func flipBits(t *testing.T, dir string, needle []byte) int {
	t.Helper()
	n := 0
	ok(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		off := strings.Index(string(data), string(needle))
		if off < 0 {
			return nil
		}
		f, err := os.OpenFile(p, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		n++
		_, err = f.WriteAt([]byte{data[off+30] ^ 0x10}, int64(off+30))
		return err
	}))
	return n
}

func TestDamageBaseFileRemoved(t *testing.T) {
	m := mounttest.New(t, mounttest.Options{Loose: true})
	m.Checkpoint("c")
	f := open(t, m.Path("big"), os.O_RDWR)
	_, err := f.WriteAt([]byte("mine"), 0) // depends on the base from now on
	ok(t, err)
	ok(t, f.Close())
	ok(t, os.Remove(j(m.Base, "big")))
	m.Remount()
	p, err := os.ReadFile(m.Path("big"))
	if err == nil {
		t.Errorf("%d bytes were read of a file whose base is gone", len(p))
	} else if !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOENT) {
		t.Errorf("a file whose base is gone: %v", err)
	}
	content(t, m.Path("b"), string(fstree.Bytes(2, 5000)))
	put(t, m.Path("big"), "anew")
	content(t, m.Path("big"), "anew")
}
