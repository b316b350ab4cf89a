package kv

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// manual keeps the flusher from doing anything by itself.
const manual = time.Hour

func openT(t testing.TB, dir string, o Options) *DB {
	t.Helper()
	db, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put applies one batch of key, value pairs; "-" as a value deletes.
func put(t testing.TB, db *DB, kv ...string) {
	t.Helper()
	must(t, db.Apply(batchOf(kv...)))
}

func batchOf(kv ...string) *Batch {
	b := new(Batch)
	for i := 0; i < len(kv); i += 2 {
		if kv[i+1] == "-" {
			b.Delete([]byte(kv[i]))
		} else {
			b.Put([]byte(kv[i]), []byte(kv[i+1]))
		}
	}
	return b
}

// dump returns all that is in db, by Scan, and checks that Get agrees.
func dump(t testing.TB, db *DB) map[string]string {
	t.Helper()
	out := map[string]string{}
	last := ""
	must(t, db.Scan(nil, nil, func(k, v []byte) bool {
		if string(k) <= last {
			t.Fatalf("scan gives %q after %q", k, last)
		}
		last = string(k)
		out[last] = string(v)
		return true
	}))
	for k, v := range out {
		got, ok, err := db.Get([]byte(k))
		if err != nil || !ok || string(got) != v {
			t.Fatalf("get %q = %q %v %v, scan says %q", k, got, ok, err, v)
		}
	}
	return out
}

func same(t testing.TB, got, want map[string]string) {
	t.Helper()
	if maps.Equal(got, want) {
		return
	}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if v, ok := got[k]; !ok || v != want[k] {
			t.Errorf("key %q: got %.40q %v, want %.40q", k, v, ok, want[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok {
			t.Errorf("key %q should not be there", k)
		}
	}
	t.FailNow()
}

// tiny makes segments rotate after a few records.
func tiny() *sizes {
	return &sizes{reserve: 1 << 20, ballast: 64 << 10, step: 16 << 10, segment: 32 << 10}
}

// Random batches, reads, flushes and reopenings against a map.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		must(t, err)
		opts := Options{FlushIdle: manual, sizes: tiny()}
		db, err := Open(dir, opts)
		must(t, err)
		defer func() { db.Close(); os.RemoveAll(dir) }()
		model := map[string]string{}
		key := rapid.StringMatching(`[abc]{1,3}`)
		rt.Repeat(map[string]func(*rapid.T){
			"apply": func(rt *rapid.T) {
				b := new(Batch)
				for range rapid.IntRange(1, 12).Draw(rt, "ops") {
					k := key.Draw(rt, "key")
					if rapid.IntRange(0, 3).Draw(rt, "kind") == 0 {
						b.Delete([]byte(k))
						delete(model, k)
						continue
					}
					v := strings.Repeat(rapid.StringMatching(`[x-z]`).Draw(rt, "v"),
						rapid.SampledFrom([]int{0, 1, 40, 9000}).Draw(rt, "len"))
					b.Put([]byte(k), []byte(v))
					model[k] = v
				}
				if err := db.Apply(b); err != nil {
					rt.Fatal(err)
				}
			},
			"get": func(rt *rapid.T) {
				k := key.Draw(rt, "key")
				v, ok, err := db.Get([]byte(k))
				want, there := model[k]
				if err != nil || ok != there || string(v) != want {
					rt.Fatalf("get %q = %.20q %v %v, want %.20q %v", k, v, ok, err, want, there)
				}
			},
			"scan": func(rt *rapid.T) {
				prefix := rapid.StringMatching(`[abc]{0,2}`).Draw(rt, "prefix")
				from := rapid.StringMatching(`[abc]{0,3}`).Draw(rt, "from")
				limit := rapid.IntRange(1, 20).Draw(rt, "limit")
				checkScan(rt, db, model, prefix, from, limit)
			},
			"flush": func(rt *rapid.T) {
				if err := db.Flush(); err != nil {
					rt.Fatal(err)
				}
			},
			"sync": func(rt *rapid.T) {
				if err := db.Sync(); err != nil {
					rt.Fatal(err)
				}
			},
			"reopen": func(rt *rapid.T) {
				if seldom(rt) {
					must(t, db.Close())
					db, err = Open(dir, opts)
					must(t, err)
				}
			},
			"crash": func(rt *rapid.T) {
				if seldom(rt) {
					old := dir
					dir = crashed(t, db)
					os.RemoveAll(old)
					db, err = Open(dir, opts)
					must(t, err)
					same(t, dump(t, db), model)
				}
			},
		})
		same(t, dump(t, db), model)
	})
}

// seldom thins out what is slow.
func seldom(rt *rapid.T) bool { return rapid.IntRange(0, 4).Draw(rt, "seldom") == 0 }

func checkScan(rt *rapid.T, db *DB, model map[string]string, prefix, from string, limit int) {
	var want, got []string
	for _, k := range slices.Sorted(maps.Keys(model)) {
		if strings.HasPrefix(k, prefix) && k >= from && len(want) < limit {
			want = append(want, k+"="+model[k])
		}
	}
	err := db.Scan([]byte(prefix), []byte(from), func(k, v []byte) bool {
		got = append(got, string(k)+"="+string(v))
		return len(got) < limit
	})
	if err != nil || !slices.Equal(got, want) {
		rt.Fatalf("scan %q from %q limit %d: %v\n got %.200q\nwant %.200q", prefix, from, limit, err, got, want)
	}
}

// crashed ends db as a kill would, and returns a copy of what it leaves. The page
// cache survives, so that is everything that was written.
func crashed(t testing.TB, db *DB) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	must(t, err)
	db.wmu.Lock()
	db.closing = true
	db.flushed.Broadcast()
	db.wmu.Unlock()
	close(db.stop)
	<-db.stopped
	db.readers.close()
	copyStore(t, db.dir, dir)
	db.abandon()
	return dir
}

// copyStore copies the files of a store at one moment. Badger may still be busy
// turning a memtable into a table, so it copies again until nothing has changed.
func copyStore(t testing.TB, from, to string) {
	t.Helper()
	names := func() string {
		var out []string
		must(t, filepath.WalkDir(from, func(path string, _ os.DirEntry, err error) error {
			out = append(out, path)
			return nil
		}))
		return strings.Join(out, "\n")
	}
	for {
		before := names()
		err := copyTree(from, to)
		if before == names() {
			must(t, err)
			return
		}
		must(t, os.RemoveAll(to))
	}
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		if d.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		return copySparse(path, target)
	})
}

// copySparse copies only what was ever written: a store is mostly blocks
// allocated ahead.
func copySparse(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	size, err := src.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	for off := int64(0); ; {
		data, err := src.Seek(off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return dst.Truncate(size)
		}
		if err != nil {
			return err
		}
		if off, err = src.Seek(data, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(dst, data), io.NewSectionReader(src, data, off-data)); err != nil {
			return err
		}
	}
}

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
	const writers, rounds = 4, 300
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
	golden(t, "format.golden", formatFile(formatNow, storeID{0: 1, 15: 0xff}))
	dir := t.TempDir()
	must(t, openT(t, dir, Options{}).Close())
	path := filepath.Join(dir, formatName)
	good, err := os.ReadFile(path)
	must(t, err)
	for _, c := range []struct {
		text string
		want error
	}{
		{strings.Replace(string(good), fmt.Sprintf("%s %d", formatMagic, formatNow), fmt.Sprintf("%s %d", formatMagic, formatNow+1), 1), ErrNewerFormat},
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
	openT(t, dir, Options{})
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
	fill(t, db, 40_000) // more than one memtable
	must(t, db.Flush())
	must(t, db.base.tidy())
	check()
	must(t, db.Close())
	check()
}

// testLog sends what the store logs to the test's output.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, nil))
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}
