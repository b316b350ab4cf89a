package kv

import (
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// noise is n bytes that cannot be compressed, the same for the same seed.
func noise(seed, n int) string {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)}).Read(b)
	return string(b)
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
	return &sizes{reserve: 1 << 20, step: 16 << 10, segment: 32 << 10}
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
	db.awaitMerge()
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

// testLog sends what the store logs to the test's output.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, nil))
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}
