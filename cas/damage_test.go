package cas

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// Whatever happens to a pack, a read is right or ErrCorrupt, and the other chunks
// are not affected.
func TestDamage(t *testing.T) {
	src := t.TempDir()
	s, db := openT(t, src, kv.Options{}, Options{})
	bad, good := random(1, ChunkSize), random(2, 50_000)
	hg, hb := put(t, s, db, good), put(t, s, db, bad)
	at, err := s.find(hb)
	must(t, err)
	must(t, s.Close())
	must(t, db.Close())
	name := filepath.Join("packs", packName(at.pack))
	for what, harm := range map[string]func(path string) error{
		"bit":     func(path string) error { return flip(path, at.off+70_000) },
		"last":    func(path string) error { return flip(path, at.off+int64(at.n)-1) },
		"cut":     func(path string) error { return os.Truncate(path, at.off+1000) },
		"cut off": func(path string) error { return os.Truncate(path, at.off) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(src)))
			must(t, harm(filepath.Join(dir, name)))
			s, db := openT(t, dir, kv.Options{}, Options{})
			check(t, s, hg, good)
			for _, n := range []int{ChunkSize, 10} {
				p := bytes.Repeat([]byte{0xee}, n)
				err := s.ReadAt(hb, p, 0)
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), hb.String()) {
					t.Errorf("read of %d bytes: %v", n, err)
				}
				if bytes.Contains(bad, p[:10]) {
					t.Error("bytes of a damaged chunk got out")
				}
			}
			damaged := 0
			must(t, s.Check(nil, func(k []byte, _ int, err error) bool {
				if err != nil {
					damaged++
					if !bytes.Equal(k, kv.Chunk(hb[:])) || !errors.Is(err, ErrCorrupt) {
						t.Errorf("check of %x: %v", k, err)
					}
				}
				return true
			}))
			if damaged != 1 {
				t.Errorf("check finds %d damaged chunks", damaged)
			}
			// New chunks go behind the damage and are fine.
			fresh := random(3, 30_000)
			check(t, s, put(t, s, db, fresh), fresh)
		})
	}
	t.Run("pack missing", func(t *testing.T) {
		dir := t.TempDir()
		must(t, os.CopyFS(dir, os.DirFS(src)))
		must(t, os.Remove(filepath.Join(dir, name)))
		s, _ := openT(t, dir, kv.Options{}, Options{})
		if err := s.ReadAt(hb, make([]byte, 10), 0); !errors.Is(err, ErrCorrupt) {
			t.Errorf("read: %v", err)
		}
	})
}

func flip(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := []byte{0}
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	b[0] ^= 4
	_, err = f.WriteAt(b, at)
	return err
}

// What a crash leaves at the end of a pack, or as a pack without a header, is
// skipped.
func TestCrashLeftover(t *testing.T) {
	dir := t.TempDir()
	s, db := openT(t, dir, kv.Options{}, Options{})
	data := random(1, 10_000)
	h := put(t, s, db, data)
	must(t, s.Close())
	path := filepath.Join(dir, "packs", packName(1))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.Write(append(recordHeader(Hash{9}, 5000), "half of a reco"...))
	must(t, errors.Join(err, f.Close()))

	s, err = Open(dir, db, Options{})
	must(t, err)
	second := random(2, 20_000)
	h2 := put(t, s, db, second)
	must(t, s.Close())
	must(t, os.WriteFile(filepath.Join(dir, "packs", packName(2)), []byte("RWP"), 0o600))

	s, err = Open(dir, db, Options{})
	must(t, err)
	defer s.Close()
	third := random(3, 20_000)
	h3 := put(t, s, db, third)
	check(t, s, h, data)
	check(t, s, h2, second)
	check(t, s, h3, third)
	if at, err := s.find(h3); err != nil || at.pack != 3 {
		t.Errorf("third chunk is in pack %d, %v", at.pack, err)
	}
}

func TestOtherStoresPack(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	s, db := openT(t, a, kv.Options{}, Options{})
	put(t, s, db, random(1, 100))
	must(t, s.Close())
	_, dbB := openT(t, b, kv.Options{}, Options{})
	must(t, os.CopyFS(filepath.Join(b, "packs"), os.DirFS(filepath.Join(a, "packs"))))
	if _, err := Open(b, dbB, Options{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("pack of another store: %v", err)
	}
	newer := packHeader(dbB.StoreID(), 1)
	newer[7]++
	must(t, os.WriteFile(filepath.Join(b, "packs", packName(1)), resum(newer), 0o600))
	if _, err := Open(b, dbB, Options{}); !errors.Is(err, kv.ErrNewerFormat) {
		t.Errorf("newer pack: %v", err)
	}
}

// The disk is full: nothing is indexed, what is there stays readable, and there is
// no litter in the way when there is space again.
func TestNoSpace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a small disk")
	}
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64M"); err != nil {
		t.Skipf("cannot mount a small disk: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(disk, unix.MNT_DETACH) })
	room := filepath.Join(disk, "room")
	must(t, os.WriteFile(room, make([]byte, 8<<20), 0o600))
	s, db := openT(t, filepath.Join(disk, "store"), kv.Options{}, Options{})
	chunks := map[Hash][]byte{}
	var refused []byte
	for i := uint64(0); refused == nil; i++ {
		data := random(i, ChunkSize)
		var b kv.Batch
		h, err := s.Put(&b, data)
		switch {
		case errors.Is(err, kv.ErrNoSpace) && errors.Is(err, unix.ENOSPC):
			refused = data
			if b.Len() != 0 {
				t.Error("a refused chunk has an index record")
			}
		case err != nil:
			t.Fatal(err)
		default:
			must(t, db.Apply(&b))
			chunks[h] = data
		}
		if i > 1000 {
			t.Fatal("disk does not get full")
		}
	}
	if len(chunks) < 100 {
		t.Errorf("only %d chunks on 64 MiB", len(chunks))
	}
	// Others take the rest: pwrite itself has no space now.
	filler := filepath.Join(disk, "filler")
	must(t, fill(filler))
	must(t, s.Sync())
	p, off, err := s.allot(recHdrLen + ChunkSize)
	must(t, err)
	if err := p.write(off, [][]byte{recordHeader(HashOf(refused), ChunkSize), refused}); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("write on a full disk: %v", err)
	}
	p.writers-- // as store would
	for h, data := range chunks {
		check(t, s, h, data)
	}
	must(t, errors.Join(os.Remove(filler), os.Remove(room)))
	check(t, s, put(t, s, db, refused), refused)
}

func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for buf := make([]byte, 1<<20); len(buf) >= 512; {
		if _, err := f.Write(buf); errors.Is(err, unix.ENOSPC) {
			buf = buf[:len(buf)/2]
		} else if err != nil {
			return err
		}
	}
	return nil
}

// Faults of the disk come out as they are and leave nothing behind.
func TestFaults(t *testing.T) {
	var mu sync.Mutex
	var broken string
	s, db := openT(t, t.TempDir(), kv.Options{FlushIdle: time.Hour}, Options{Fault: func(step string) error {
		mu.Lock()
		defer mu.Unlock()
		if step == broken {
			return unix.EIO
		}
		return nil
	}})
	data := random(1, 30_000)
	for _, step := range []string{"pack.create", "pack.write"} {
		broken = step
		var b kv.Batch
		if _, err := s.Put(&b, data); !errors.Is(err, unix.EIO) || b.Len() != 0 {
			t.Errorf("put with a fault in %s: %v, %d records", step, err, b.Len())
		}
	}
	broken = ""
	h := put(t, s, db, data)
	if at, err := s.find(h); err != nil || at.off != packHdrLen+recHdrLen {
		t.Errorf("chunk is at %d, %v: a failed one is in the way", at.off, err)
	}
	broken = "pack.read"
	if err := s.ReadAt(h, make([]byte, 10), 0); !errors.Is(err, unix.EIO) || errors.Is(err, ErrCorrupt) {
		t.Errorf("read: %v", err)
	}
	// A failed sync is remembered: the next one does not take the kernel's word
	// for it but writes the chunk again.
	broken = "pack.sync"
	if err := s.Sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("sync: %v", err)
	}
	if err := db.Sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("sync of kv goes ahead of the packs: %v", err)
	}
	broken = ""
	must(t, s.Sync())
	must(t, db.Sync())
	check(t, s, h, data)
	// And if the page has gone bad meanwhile, that is said.
	data2 := random(2, 30_000)
	h2 := put(t, s, db, data2)
	broken = "pack.sync"
	if err := s.Sync(); err == nil {
		t.Error("no fault")
	}
	broken = ""
	at, err := s.find(h2)
	must(t, err)
	must(t, flip(filepath.Join(s.dir, packName(at.pack)), at.off))
	if err := s.Sync(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("sync of a chunk that was lost: %v", err)
	}
}
