package kv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dgraph-io/badger/v4/options"
)

// levels counts the table files of the last level and of level 0.
func levels(db *DB) (last, fresh int) {
	db.base.mu.Lock()
	defer db.base.mu.Unlock()
	for _, t := range db.base.tables {
		if t.level == 0 {
			fresh++
		} else {
			last++
		}
	}
	return last, fresh
}

// Random changes through many flushes and merges of every kind against a map.
func TestMerge(t *testing.T) {
	dir := t.TempDir()
	db := openT(t, dir, Options{FlushIdle: manual})
	db.base.tableBytes = 40 << 10 // many files in the last level
	r := rand.New(rand.NewPCG(3, 4))
	model := map[string]string{}
	change := func(keys, lo, hi int) {
		b := new(Batch)
		for range keys {
			k := fmt.Sprintf("key%05d", lo+r.IntN(hi-lo))
			if r.IntN(4) == 0 {
				b.Delete([]byte(k))
				delete(model, k)
				continue
			}
			v := strings.Repeat(string(rune('a'+r.IntN(26))), r.IntN(100))
			b.Put([]byte(k), []byte(v))
			model[k] = v
		}
		must(t, db.Apply(b))
		must(t, db.Flush())
		db.awaitMerge()
	}
	var down, gathered, kept, flushed int
	for i := range 120 {
		last, fresh := levels(db)
		ids := map[uint64]bool{}
		for _, f := range db.base.tables {
			ids[f.id] = f.level > 0
		}
		if i < 10 {
			change(4000, 0, 10_000) // all over, much
		} else {
			lo, n := i/40*2500, 600
			if i/20%2 == 1 {
				n = 30
			}
			change(n, lo, lo+1500) // close together, or few
		}
		nowLast, nowFresh := levels(db)
		switch {
		case nowFresh == fresh+1:
			flushed++
		case nowFresh == 0:
			down++
			for _, f := range db.base.tables {
				if ids[f.id] {
					kept++ // a file of the last level that was left alone
				}
			}
		case nowLast == last:
			gathered++
		}
		if i%10 == 0 {
			same(t, dump(t, db), model)
		}
	}
	last, _ := levels(db)
	if flushed == 0 || down == 0 || gathered == 0 || kept == 0 || last < 4 {
		t.Errorf("test is wrong: %d flushes, %d merges down with %d files kept, %d gathered, %d files in the last level",
			flushed, down, kept, gathered, last)
	}
	same(t, dump(t, db), model)
	must(t, db.Close())
	db = openT(t, dir, Options{FlushIdle: manual})
	same(t, dump(t, db), model)
	emptied(t, db, model)
}

// emptied deletes everything: when that is merged, it is gone from the disk too.
func emptied(t *testing.T, db *DB, model map[string]string) {
	t.Helper()
	b := new(Batch)
	for k := range model {
		b.Delete([]byte(k))
	}
	must(t, db.Apply(b))
	x := noise(1, MaxValue)
	for range 8 { // changes enough to make the merges go down
		must(t, db.Apply(batchOf("x", x)))
		must(t, db.Flush())
		db.awaitMerge()
	}
	mergeAll(t, db)
	same(t, dump(t, db), map[string]string{"x": x})
	var size int64
	for _, i := range db.base.cur.Load().db.Tables() {
		size += int64(i.OnDiskSize)
	}
	if size > 5*MaxValue {
		t.Errorf("%d bytes of tables for one key of %d", size, MaxValue)
	}
}

// Compact gives back what deleted records take, on a disk that has no room for both
// the old files and as much again, while others read and write.
func TestCompact(t *testing.T) {
	free := int64(1 << 40)
	db := openT(t, t.TempDir(), Options{FlushIdle: manual, statfs: func(string) (int64, int64, error) { return free, 1 << 40, nil }})
	key := func(i int) string { return fmt.Sprintf("key%05d", i) }
	for i := range 3000 {
		put(t, db, key(i), noise(i, 1000))
	}
	must(t, db.Flush())
	db.awaitMerge()
	del := new(Batch)
	del.UseReserve()
	for i := range 3000 {
		if i%30 != 0 {
			del.Delete([]byte(key(i)))
		}
	}
	must(t, db.Apply(del))
	size := func() (n int64) {
		for _, f := range db.base.tables {
			n += f.size
		}
		return n
	}
	full := size()
	free = full / 2
	var others sync.WaitGroup
	for w := range 2 {
		others.Go(func() {
			for i := range 200 {
				if _, ok, err := db.Get([]byte(key(30 * (i % 100)))); !ok || err != nil {
					t.Errorf("a key that stays: %v, %v", ok, err)
				}
				var b Batch
				b.UseReserve()
				b.Put(fmt.Appendf(nil, "new%d.%d", w, i), []byte("x"))
				if err := db.Apply(&b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	must(t, db.Compact())
	others.Wait()
	must(t, db.Compact())
	if now := size(); now > full/10 {
		t.Errorf("%d bytes of tables became %d, with 1/30 of the records left", full, now)
	}
	if n := len(dump(t, db)); n != 100+400 {
		t.Errorf("%d records are left", n)
	}
	before := db.base.nextID.Load()
	put2 := new(Batch)
	put2.UseReserve()
	put2.Put([]byte("one more"), []byte("x"))
	must(t, db.Apply(put2))
	must(t, db.Compact())
	if n := db.base.nextID.Load(); n > before+1 {
		t.Errorf("%d files were written though nothing could be gained", n-before)
	}
}

// TrimLog leaves the log little that is allocated ahead, but not on a disk that is nearly full. What is written then gets the usual blocks.
func TestTrimLog(t *testing.T) {
	free := int64(1 << 40)
	db := openT(t, t.TempDir(), Options{FlushIdle: manual, statfs: func(string) (int64, int64, error) { return free, 1 << 40, nil }})
	for i := range 300 {
		put(t, db, fmt.Sprint("k", i), noise(i, 50_000))
	}
	takes := func() int64 {
		n, err := diskBytes(db.logDir)
		must(t, err)
		return n
	}
	must(t, db.Flush())
	before := takes()
	free = defaultReserve
	must(t, db.TrimLog())
	if n := takes(); n != before {
		t.Errorf("on a disk that is nearly full, %d bytes of the log became %d", before, n)
	}
	free = 1 << 40
	must(t, db.TrimLog())
	if after, most := takes(), 2*db.sizes.step/trimmedPart+64<<10; after > most || before < 3*most {
		t.Errorf("the log took %d bytes and takes %d after, want at most %d", before, after, most)
	}
	put(t, db, "one more", noise(1, 300_000))
	if now := takes(); now < db.sizes.step {
		t.Errorf("the log takes %d bytes when it is written to again, want a step of %d ahead", now, db.sizes.step)
	}
}

// Readers stay on the files that they began with while flushes and merges
// replace them.
func TestReadersDuringMerge(t *testing.T) {
	db := openT(t, t.TempDir(), Options{FlushIdle: manual})
	want := map[string]string{}
	for i := range 2000 {
		k := fmt.Sprintf("k%05d", i)
		put(t, db, k, "1")
		want[k] = "1"
	}
	must(t, db.Flush())
	got := map[string]string{}
	must(t, db.Scan(nil, nil, func(k, v []byte) bool {
		if len(got)%200 == 0 {
			put(t, db, "zz", fmt.Sprint(len(got)), "zz", "-") // not seen, not in the way
			put(t, db, string(k), "2")
			must(t, db.Flush())
			db.awaitMerge()
		}
		got[string(k)] = string(v)
		return true
	}))
	same(t, got, want)
	must(t, db.Close())
}

// Damage to Badger's files is found at open, and said; keys are never just missing.
func TestDamagedTables(t *testing.T) {
	src := t.TempDir()
	db := openT(t, src, Options{FlushIdle: manual})
	fill(t, db, 2000)
	must(t, db.Flush())
	must(t, db.Close())
	path, err := filepath.Glob(filepath.Join(src, badgerDir, "*.sst"))
	must(t, err)
	if len(path) != 1 {
		t.Fatalf("tables: %q", path)
	}
	size := func() int64 {
		st, err := os.Stat(path[0])
		must(t, err)
		return st.Size()
	}()
	name := filepath.Join(badgerDir, filepath.Base(path[0]))
	for what, harm := range map[string]func(dir string) error{
		"bit in the first block": func(dir string) error { return flipFile(filepath.Join(dir, name), 100) },
		"bit in a later block":   func(dir string) error { return flipFile(filepath.Join(dir, name), size/2) },
		"bit in the index":       func(dir string) error { return flipFile(filepath.Join(dir, name), size-200) },
		"bit in the last bytes":  func(dir string) error { return flipFile(filepath.Join(dir, name), size-2) },
		"cut off":                func(dir string) error { return os.Truncate(filepath.Join(dir, name), size/2) },
		"empty":                  func(dir string) error { return os.Truncate(filepath.Join(dir, name), 0) },
		"missing":                func(dir string) error { return os.Remove(filepath.Join(dir, name)) },
		"bit in the list":        func(dir string) error { return flipFile(filepath.Join(dir, badgerDir, tablesName), 3) },
		"list cut off":           func(dir string) error { return os.Truncate(filepath.Join(dir, badgerDir, tablesName), 5) },
		"list empty":             func(dir string) error { return os.Truncate(filepath.Join(dir, badgerDir, tablesName), 0) },
		"list missing":           func(dir string) error { return os.Remove(filepath.Join(dir, badgerDir, tablesName)) },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			copyStore(t, src, dir)
			must(t, harm(dir))
			if db, err := Open(dir, Options{FlushIdle: manual}); !errors.Is(err, ErrCorrupt) {
				t.Errorf("open: %v", err)
				if err == nil {
					db.Close()
				}
			}
		})
	}
}

// Badger's manifest is made from our list, so no harm comes from damage to it.
func TestDamagedManifest(t *testing.T) {
	dir := t.TempDir()
	db := openT(t, dir, Options{FlushIdle: manual})
	fill(t, db, 100)
	want := dump(t, db)
	must(t, db.Flush())
	path := filepath.Join(dir, badgerDir, "MANIFEST")
	for _, harm := range []func() error{
		func() error { return flipFile(path, 16) },
		func() error { return flipFile(path, 5) },
		func() error { return os.Truncate(path, 16) },
		func() error { return os.Remove(path) },
	} {
		must(t, db.Close())
		must(t, harm())
		db = openT(t, dir, Options{FlushIdle: manual})
		same(t, dump(t, db), want)
	}
}

func TestTablesGolden(t *testing.T) {
	last := tableFile{1 << 33, 6, 1 << 40, 0xffffffff, options.Snappy}
	text := formatTables([]tableFile{{1, 0, 4711, 0xabc, options.None}, last})
	golden(t, "tables.golden", text)
	got, err := parseTables(text)
	if err != nil || len(got) != 2 || got[1] != last {
		t.Errorf("%+v %v", got, err)
	}
	for i := range text {
		if _, err := parseTables(text[:i]); err == nil {
			t.Errorf("list cut off at %d is accepted", i)
		}
		if _, err := parseTables(text[:i] + "1" + text[i+1:]); err == nil && text[i] != '1' {
			t.Errorf("list changed at %d is accepted", i)
		}
	}
}

// testdata/v1 was left by a kill of the last program of format 1: tables in both levels, none of them compressed, and
// records in the log. It is read, changed, merged with new tables and read again.
func TestFormat1(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	must(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "v1"))))
	want := map[string]string{}
	for i := range 200 {
		round := 0
		if i%4 == 0 {
			round = 3
		}
		want[fmt.Sprintf("key%03d", i)] = strings.Repeat(fmt.Sprint(round), 10+i%5)
		if i%10 == 0 && i%4 != 0 {
			delete(want, fmt.Sprintf("key%03d", i))
		}
	}
	open := func() *DB { return openT(t, dir, Options{FlushIdle: manual}) }
	db := open()
	same(t, dump(t, db), want)
	text, err := os.ReadFile(filepath.Join(dir, formatName))
	if err != nil || string(text) != formatFile(formatNow, db.StoreID()) {
		t.Errorf("the format file says %q: %v", text, err)
	}
	for i := range 3 {
		k := fmt.Sprintf("new%d", i)
		want[k] = strings.Repeat("n", 1000)
		put(t, db, k, want[k])
		must(t, db.Flush())
		db.awaitMerge()
		kinds := map[options.CompressionType]int{}
		for _, f := range db.base.tables {
			kinds[f.pack]++
		}
		if i == 0 && (kinds[options.None] == 0 || kinds[tablePack] == 0) {
			t.Errorf("tables by compression: %v, want some of both", kinds)
		}
		same(t, dump(t, db), want)
		must(t, db.Close())
		db = open()
		same(t, dump(t, db), want)
	}
	must(t, db.Scrub())
	same(t, dump(t, db), want)
	for _, f := range db.base.tables {
		if f.pack != tablePack {
			t.Errorf("table %d is not compressed after all was written anew", f.id)
		}
	}
}

func flipFile(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(flip(f, at), f.Close())
}
