package kv

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A flush may finish at any moment of a scan, and fn may read.
func TestScanDuringFlush(t *testing.T) {
	db := openT(t, t.TempDir(), Options{FlushIdle: manual})
	const n = 3000
	want := map[string]string{}
	for i := range n {
		k := fmt.Sprintf("k%05d", i)
		put(t, db, k, "old", "gone"+k, "x")
		want[k] = "new"
	}
	must(t, db.Flush())
	for i := range n {
		k := fmt.Sprintf("k%05d", i)
		put(t, db, k, "new", "gone"+k, "-")
	}
	got := map[string]string{}
	calls := 0
	must(t, db.Scan(nil, nil, func(k, v []byte) bool {
		if calls++; calls == 10 || calls == 1000 {
			must(t, db.Flush())
		}
		if again, ok, err := db.Get(k); err != nil || !ok || !bytes.Equal(again, v) {
			t.Fatalf("get %q inside of scan: %q %v %v", k, again, ok, err)
		}
		inner := 0
		must(t, db.Scan(k, nil, func(_, _ []byte) bool { inner++; return true }))
		if inner != 1 {
			t.Fatalf("scan of %q inside of scan finds %d keys", k, inner)
		}
		got[string(k)] = string(v)
		return true
	}))
	same(t, got, want)
}

// Readers, writers, flushes and syncs at once, for the race detector; every
// reader must see a value at least as new as what was applied before it looked.
func TestConcurrent(t *testing.T) {
	db := openT(t, t.TempDir(), Options{FlushIdle: time.Millisecond, sizes: tiny()})
	const writers, rounds = 4, 150
	var done [writers]atomic.Int64
	var wg, readers sync.WaitGroup
	stop := make(chan struct{})
	for w := range writers {
		wg.Go(func() {
			for i := 1; i <= rounds; i++ {
				val := fmt.Appendf(nil, "%06d%s", i, strings.Repeat("v", 400))
				b := new(Batch)
				b.Put(fmt.Appendf(nil, "w%d/a", w), val)
				b.Put(fmt.Appendf(nil, "w%d/b", w), val)
				if err := db.Apply(b); err != nil {
					t.Error(err)
					return
				}
				done[w].Store(int64(i))
				if i%50 == 0 {
					if err := errors.Join(db.Sync(), db.Flush()); err != nil {
						t.Error(err)
					}
				}
			}
		})
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				atLeast := done[w].Load()
				check := func(v []byte) {
					var i int64
					fmt.Sscanf(string(v[:6]), "%d", &i)
					if i < atLeast {
						t.Errorf("writer %d: read %d after %d was applied", w, i, atLeast)
					}
				}
				if v, ok, err := db.Get(fmt.Appendf(nil, "w%d/a", w)); err != nil || ok != (v != nil) || !ok && atLeast > 0 {
					t.Errorf("get: %v %v", ok, err)
				} else if ok {
					check(v)
				}
				n := 0
				if err := db.Scan(fmt.Appendf(nil, "w%d/", w), nil, func(k, v []byte) bool { n++; check(v); return true }); err != nil || atLeast > 0 && n != 2 {
					t.Errorf("scan finds %d keys: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	readers.Wait()
	if n := len(dump(t, db)); n != 2*writers {
		t.Errorf("%d keys at the end", n)
	}
}

func TestCloseUnderLoad(t *testing.T) {
	for range 5 {
		dir := t.TempDir()
		db := openT(t, dir, Options{FlushIdle: time.Millisecond, sizes: tiny()})
		var wg sync.WaitGroup
		var acked atomic.Int64
		for r := range 4 {
			wg.Go(func() {
				for i := 0; ; i++ {
					var err error
					switch r {
					case 0:
						if err = db.Apply(batchOf(fmt.Sprintf("k%06d", i), strings.Repeat("v", 500))); err == nil {
							acked.Store(int64(i) + 1)
						}
					case 1:
						_, _, err = db.Get([]byte("k000001"))
					case 2:
						err = db.Scan([]byte("k"), nil, func(k, v []byte) bool { return true })
					case 3:
						err = db.Sync()
					}
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for acked.Load() < 100 {
			time.Sleep(time.Millisecond) // until there is a load
		}
		must(t, db.Close())
		wg.Wait()
		must(t, db.Close())
		if err := db.Apply(batchOf("k", "v")); !errors.Is(err, ErrClosed) {
			t.Errorf("apply after close: %v", err)
		}
		if err := db.Flush(); !errors.Is(err, ErrClosed) {
			t.Errorf("flush after close: %v", err)
		}
		db = openT(t, dir, Options{})
		if n := len(dump(t, db)); n < int(acked.Load()) {
			t.Errorf("%d of %d batches after close and open", n, acked.Load())
		}
		must(t, db.Close())
	}
}

func TestLimits(t *testing.T) {
	db := openT(t, t.TempDir(), Options{FlushIdle: manual})
	big := bytes.Repeat([]byte("x"), MaxValue)
	key := bytes.Repeat([]byte("k"), MaxKey)
	b := new(Batch)
	b.Put(key, big)
	b.Put([]byte("e"), nil)
	must(t, db.Apply(b))
	for range 2 {
		if v, ok, err := db.Get(key); err != nil || !ok || !bytes.Equal(v, big) {
			t.Fatalf("largest value: %d bytes, %v %v", len(v), ok, err)
		}
		if v, ok, err := db.Get([]byte("e")); err != nil || !ok || len(v) != 0 {
			t.Fatalf("empty value: %q %v %v", v, ok, err)
		}
		must(t, db.Flush())
	}
	for _, bad := range []struct{ k, v []byte }{{nil, nil}, {append(key, 'k'), nil}, {[]byte("k"), append(big, 'x')}} {
		b := new(Batch)
		b.Put([]byte("good"), nil)
		b.Put(bad.k, bad.v)
		if err := db.Apply(b); !errors.Is(err, ErrTooBig) {
			t.Errorf("key of %d, value of %d bytes: %v", len(bad.k), len(bad.v), err)
		}
	}
	if _, ok, _ := db.Get([]byte("good")); ok {
		t.Error("half of a refused batch is there")
	}
	must(t, db.Apply(new(Batch)))
	b.Reset()
	if b.Len() != 0 {
		t.Error("batch is not empty after Reset")
	}
}

// Many batches of one large table, more than one Badger transaction holds.
func TestLargeFlush(t *testing.T) {
	dir := t.TempDir()
	db := openT(t, dir, Options{FlushIdle: manual})
	want := map[string]string{}
	for i := range 60 {
		b := new(Batch)
		for j := range 500 {
			k := fmt.Sprintf("key/%03d/%04d", j, i)
			v := strings.Repeat(fmt.Sprint(i), 300)
			b.Put([]byte(k), []byte(v))
			want[k] = v
		}
		must(t, db.Apply(b))
	}
	must(t, db.Flush())
	same(t, dump(t, db), want)
	must(t, db.Close())
	same(t, dump(t, openT(t, dir, Options{})), want)
}

func TestIdleFlush(t *testing.T) {
	db := openT(t, t.TempDir(), Options{FlushIdle: time.Millisecond})
	put(t, db, "a", "1", "a", "2") // two ops, one key
	for i := range 10 {
		put(t, db, fmt.Sprint(i), strings.Repeat("v", MaxValue))
	}
	db.wmu.Lock()
	defer db.wmu.Unlock()
	for db.doneN == 0 {
		db.flushed.Wait() // hangs if nobody flushes
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	db := openT(t, dir, Options{})
	_, err := Open(dir, Options{})
	var in *InUseError
	if !errors.Is(err, ErrInUse) || !errors.As(err, &in) || in.PID != os.Getpid() || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("second open: %v", err)
	}
	must(t, db.Close())
	openT(t, dir, Options{})
}

func TestFormat(t *testing.T) {
	golden(t, "format.golden", formatFile(formatNew, storeID{0: 1, 15: 0xff}))
	dir := t.TempDir()
	must(t, openT(t, dir, Options{}).Close())
	path := filepath.Join(dir, formatName)
	good, err := os.ReadFile(path)
	must(t, err)
	for _, c := range []struct {
		text string
		want error
	}{
		{strings.Replace(string(good), fmt.Sprintf("%s %d", formatMagic, formatNew), fmt.Sprintf("%s %d", formatMagic, formatNow+1), 1), ErrNewerFormat},
		{"something else\n", ErrCorrupt}, {"", ErrCorrupt}, {formatMagic + " 0\n", ErrCorrupt},
		{formatMagic + " 1", ErrCorrupt}, {formatMagic + " 1\nstore zz\n", ErrCorrupt},
		{formatFile(formatNow, storeID{1}), nil}, // another store's: its log is not
	} {
		must(t, os.WriteFile(path, []byte(c.text), 0o600))
		if _, err := Open(dir, Options{}); c.want != nil && !errors.Is(err, c.want) || err == nil {
			t.Errorf("format file %q: %v, want %v", c.text, err, c.want)
		}
	}
	must(t, os.Remove(path))
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("without a format file: %v", err)
	}
	must(t, os.WriteFile(path, good, 0o600))
	db := openT(t, dir, Options{})
	id := db.StoreID()
	for range 2 {
		must(t, db.RaiseFormat(FormatTargets))
		if text, err := os.ReadFile(path); err != nil || string(text) != formatFile(FormatTargets, id) {
			t.Errorf("raised: %q, %v", text, err)
		}
	}
	must(t, db.RaiseFormat(formatNew)) // never back
	must(t, db.Close())
	if got := openT(t, dir, Options{}).StoreID(); got != id {
		t.Errorf("the raised store has another id")
	}
}

// Everything is for the owner only, whatever the umask.
func TestModes(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	dir := filepath.Join(t.TempDir(), "store")
	db := openT(t, dir, Options{FlushIdle: manual})
	check := func() {
		t.Helper()
		must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			must(t, err)
			info, err := d.Info()
			must(t, err)
			want := os.FileMode(0o600)
			if d.IsDir() {
				want = 0o700
			}
			if info.Mode().Perm() != want {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
			return nil
		}))
	}
	check()
	fill(t, db, 10_000)
	must(t, db.Flush())
	check()
	must(t, db.Close())
	check()
}
