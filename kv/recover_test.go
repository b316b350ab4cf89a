package kv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// logged is a store whose batches are in the log only, and what they were.
type logged struct {
	dir    string
	states []map[string]string // states[i] is what i batches make
	ends   []logPos            // where batch i ends
}

type logPos struct {
	seg  string
	tail int64
}

// writeLog makes a store of n batches in several segments, which nothing flushes.
func writeLog(t testing.TB, n int) *logged {
	t.Helper()
	stuck := errors.New("stuck")
	db := openT(t, t.TempDir(), Options{FlushIdle: manual, sizes: tiny(), Fault: func(step string) error {
		if step == "badger.flush" {
			return stuck
		}
		return nil
	}})
	l := &logged{states: []map[string]string{{}}}
	r := rand.New(rand.NewPCG(1, 2))
	state := map[string]string{}
	for i := range n {
		b := new(Batch)
		gone := fmt.Sprintf("k%02d", r.IntN(40))
		b.Delete([]byte(gone))
		delete(state, gone)
		for range 1 + r.IntN(4) { // last, so that a record does not end with a zero
			k, v := fmt.Sprintf("k%02d", r.IntN(40)), strings.Repeat(fmt.Sprint(i%10), r.IntN(1500))
			b.Put([]byte(k), []byte(v))
			state[k] = v
		}
		must(t, db.Apply(b))
		copied := map[string]string{}
		for k, v := range state {
			copied[k] = v
		}
		l.states = append(l.states, copied)
		l.ends = append(l.ends, logEnd(db))
	}
	l.dir = crashed(t, db)
	if first, last := l.ends[0].seg, l.ends[n-1].seg; first == last {
		t.Fatal("log has one segment only")
	}
	return l
}

// logEnd is where the last record ends. The flusher may have rotated since.
func logEnd(db *DB) logPos {
	db.wmu.Lock()
	defer db.wmu.Unlock()
	s := db.seg
	if s.tail == segHdrLen {
		segs := db.frozen[len(db.frozen)-1].segs
		s = segs[len(segs)-1]
	}
	return logPos{filepath.Base(s.path), s.tail}
}

// kept is how many batches are whole when a segment is cut at pos: those before
// the first one that reaches beyond.
func (l *logged) kept(pos logPos) int {
	for i, end := range l.ends {
		if end.seg == pos.seg && end.tail > pos.tail {
			return i
		}
	}
	return len(l.ends)
}

// damage opens a copy of the store after f changed segment seg, and returns the
// number of batches that are there. Anything but a prefix of whole batches fails.
func (l *logged) damage(t testing.TB, seg string, f func(*os.File) error) (int, *DB) {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	must(t, err)
	copyStore(t, l.dir, dir)
	file, err := os.OpenFile(filepath.Join(dir, logDir, seg), os.O_RDWR, 0)
	must(t, err)
	must(t, f(file))
	must(t, file.Close())
	db, err := Open(dir, Options{FlushIdle: manual, sizes: tiny()})
	must(t, err)
	t.Cleanup(func() { db.Close() })
	n := db.Recovered().Batches
	same(t, dump(t, db), l.states[n])
	return n, db
}

// A log that ends anywhere gives the whole batches before that place.
func TestCutAnywhere(t *testing.T) {
	l := writeLog(t, 40)
	rapid.Check(t, func(rt *rapid.T) {
		end := rapid.SampledFrom(l.ends).Draw(rt, "segment")
		at := rapid.Int64Range(segHdrLen, end.tail).Draw(rt, "at")
		how := rapid.SampledFrom([]string{"truncate", "zero"}).Draw(rt, "how")
		if rapid.Bool().Draw(rt, "at the border") {
			at = end.tail
		}
		if at < segHdrLen {
			rt.Skip()
		}
		n, db := l.damage(t, end.seg, func(f *os.File) error {
			if how == "truncate" {
				return f.Truncate(at)
			}
			size, err := f.Seek(0, io.SeekEnd)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(make([]byte, size-at), at)
			return err
		})
		if want := l.kept(logPos{end.seg, at}); n != want {
			rt.Fatalf("%d batches, want %d", n, want)
		}
		// What comes after the recovery survives the next one, too.
		put(t, db, "after", "1")
		dir := crashed(t, db)
		db = openT(t, dir, Options{FlushIdle: manual})
		want := map[string]string{"after": "1"}
		for k, v := range l.states[n] {
			want[k] = v
		}
		same(t, dump(t, db), want)
		must(t, db.Close())
		must(t, os.RemoveAll(dir))
	})
}

// A flipped bit in a record costs that record and all behind it, and it is said.
func TestBitFlip(t *testing.T) {
	l := writeLog(t, 40)
	for i := range 40 {
		end := l.ends[i]
		at := end.tail - 1 - int64(i%7)
		n, db := l.damage(t, end.seg, func(f *os.File) error { return flip(f, at) })
		if n != i {
			t.Fatalf("flip in batch %d: %d batches", i, n)
		}
		if r := db.Recovered(); i < 39 && (!r.Lost || !strings.Contains(r.Where, end.seg)) {
			t.Errorf("flip in batch %d: recovery says %+v", i, r)
		}
		must(t, db.Close())
	}
}

func flip(f *os.File, at int64) error {
	b := []byte{0}
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	b[0] ^= 0x10
	_, err := f.WriteAt(b, at)
	return err
}

// A damaged header, as a power cut leaves it right after a rotation.
func TestLostHeader(t *testing.T) {
	l := writeLog(t, 40)
	last := l.ends[39].seg
	first := 0
	for l.ends[first].seg != last {
		first++
	}
	n, db := l.damage(t, last, func(f *os.File) error {
		_, err := f.WriteAt(make([]byte, segHdrLen), 0)
		return err
	})
	if n != first || !db.Recovered().Lost {
		t.Errorf("%d batches, want %d; %+v", n, first, db.Recovered())
	}
	put(t, db, "after", "1")
	must(t, db.Close())
}

// A record that stands behind the tail from before a power cut is not taken for
// one when the log has grown up to it, although its sequence number fits.
func TestStaleTail(t *testing.T) {
	db := openT(t, t.TempDir(), Options{FlushIdle: manual})
	for _, k := range []string{"1", "2", "3", "4"} {
		put(t, db, k, strings.Repeat(k, 100))
	}
	dir := crashed(t, db)
	// The power cut took the second record and left the others.
	size := (db.seg.tail - segHdrLen) / 4
	seg := filepath.Join(dir, logDir, filepath.Base(db.seg.path))
	f, err := os.OpenFile(seg, os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteAt(make([]byte, recHdrLen), segHdrLen+size)
	must(t, err)
	must(t, f.Close())

	db = openT(t, dir, Options{FlushIdle: manual})
	if r := db.Recovered(); r.Batches != 1 {
		t.Fatalf("recovered %+v", r)
	}
	// The record of the salt and this one fill the place of the second and third.
	b := new(Batch)
	for n := 0; db.seg.tail+recHdrLen+1+int64(len(b.encode(nil))) < segHdrLen+3*size; n++ {
		b.Reset()
		b.Put([]byte("p"), make([]byte, n))
	}
	must(t, db.Apply(b))
	if db.seg.tail != segHdrLen+3*size || db.nextSeq != 4 {
		t.Fatalf("test is wrong: tail %d, next sequence %d", db.seg.tail, db.nextSeq)
	}
	db = openT(t, crashed(t, db), Options{FlushIdle: manual})
	if got := dump(t, db); len(got) != 2 || got["1"] == "" {
		t.Errorf("%d keys", len(got))
	}
}

// Bytes of users that look like records of the log are not replayed.
func TestForgedRecord(t *testing.T) {
	dir := t.TempDir()
	short := &shortWrite{err: errors.New("fault")}
	var db *DB
	fail := false
	db = openT(t, dir, Options{FlushIdle: manual, Fault: func(step string) error {
		if fail && step == "log.write" {
			return short
		}
		return nil
	}})
	put(t, db, "a", "1")
	forged := make([]byte, recHdrLen)
	forged = batchOf("forged", "x").encode(append(forged, recBatch))
	sealRecord(forged, 0, db.nextSeq+1) // no salt, as the forger does not know it
	short.n = 1 << 20
	fail = true
	if err := db.Apply(batchOf("refused", strings.Repeat(string(forged), 10))); !errors.Is(err, short.err) {
		t.Fatal(err)
	}
	fail = false
	// A record that ends where a forged one begins.
	want := recHdrLen + 1 + 1 + 1 + len("refused") + 2
	b := new(Batch)
	for n := 0; ; n++ {
		b.Reset()
		b.Put([]byte("pad"), bytes.Repeat([]byte("p"), n))
		if size := recHdrLen + 1 + len(b.encode(nil)); size == want+len(forged)*(size/len(forged)) || n > 3*len(forged) {
			break
		}
	}
	must(t, db.Apply(b))
	got := dump(t, openT(t, crashed(t, db), Options{}))
	if _, ok := got["forged"]; ok || len(got) != 2 {
		t.Errorf("store holds %d keys, forged: %v", len(got), ok)
	}
}

// After a reboot, records that name what is not there end the replay.
func TestCheckReplay(t *testing.T) {
	db := openT(t, t.TempDir(), Options{FlushIdle: manual})
	for i := range 10 {
		put(t, db, fmt.Sprintf("k%d", i), fmt.Sprint(i))
	}
	dir := crashed(t, db)
	bad := errors.New("not there")
	opts := Options{FlushIdle: manual, CheckReplay: func(k, v []byte) error {
		if string(v) == "6" {
			return bad
		}
		return nil
	}}
	asIs, err := os.MkdirTemp(t.TempDir(), "")
	must(t, err)
	copyStore(t, dir, asIs)
	if n := openT(t, asIs, opts).Recovered().Batches; n != 10 && bootID() != "" {
		t.Errorf("%d batches without a reboot", n)
	}
	must(t, os.WriteFile(filepath.Join(dir, lockName), fmt.Appendf(nil, "%-10d %-40s\n", 1, "another-boot"), 0o600))
	db = openT(t, dir, opts)
	if r := db.Recovered(); r.Batches != 6 || !r.Lost {
		t.Errorf("after a reboot: %+v", r)
	}
	put(t, db, "k6", "again")
	db = openT(t, crashed(t, db), opts)
	if v, _, _ := db.Get([]byte("k6")); string(v) != "again" || len(dump(t, db)) != 7 {
		t.Errorf("after that: k6 is %q", v)
	}
}

// A put that a later batch takes back is not checked: what it pointed at may be gone.
func TestCheckReplayOfWhatWasDeleted(t *testing.T) {
	db := openT(t, t.TempDir(), Options{FlushIdle: manual})
	put(t, db, "a", "gone")
	put(t, db, "b", "kept")
	var del Batch
	del.Delete([]byte("a"))
	must(t, db.Apply(&del))
	put(t, db, "c", "kept")
	dir := crashed(t, db)
	opts := Options{FlushIdle: manual, CheckReplay: func(k, v []byte) error {
		if string(v) == "gone" {
			return errors.New("not there")
		}
		return nil
	}}
	otherBoot := func() {
		must(t, os.WriteFile(filepath.Join(dir, lockName), fmt.Appendf(nil, "%-10d %-40s\n", 1, "another-boot"), 0o600))
	}
	otherBoot()
	db = openT(t, dir, opts)
	if r := db.Recovered(); r.Batches != 4 || r.Lost || len(dump(t, db)) != 2 {
		t.Errorf("recovered %+v, %d keys", r, len(dump(t, db)))
	}
	put(t, db, "a", "gone") // and again, with nothing behind it
	put(t, db, "d", "kept")
	dir = crashed(t, db)
	otherBoot()
	db = openT(t, dir, opts)
	if r := db.Recovered(); r.Batches != 4 || !r.Lost || len(dump(t, db)) != 2 {
		t.Errorf("then recovered %+v, %d keys", r, len(dump(t, db)))
	}
}

// The log's files look as they always did: a fixed store, byte for byte.
func TestLogGolden(t *testing.T) {
	id := storeID{1, 2, 3, 15: 9}
	salt := [saltLen]byte{7, 6, 5, 4, 3, 2, 1}
	file := appendSegHeader(nil, id, 0x1234, salt)
	seq := uint64(0x1234)
	crc := saltCRC(salt)
	add := func(payload []byte) {
		rec := append(make([]byte, recHdrLen), payload...)
		sealRecord(rec, crc, seq)
		file = append(file, rec...)
		seq++
	}
	add(batchOf("key", "value", "empty", "", "gone", "-").encode([]byte{recBatch}))
	salt2 := [saltLen]byte{9}
	add(append([]byte{recSalt}, salt2[:]...))
	crc = saltCRC(salt2)
	add(batchOf("k", strings.Repeat("v", 200)).encode([]byte{recBatch}))
	golden(t, "log.golden", fmt.Sprintf("%x\n", file))

	// And what it says is read.
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, segName(0x1234)), append(file, make([]byte, 100)...), 0o600))
	got := new(Batch)
	r, err := replayLog(dir, id, func(p []byte) error {
		return decodeBatch(p, func(k, v []byte) { got.ops = append(got.ops, op{k, v}) })
	})
	must(t, err)
	defer r.close()
	if r.records != 2 || r.lost || r.lastSeq != 0x1236 || r.segs[0].tail != int64(len(file)) || len(got.ops) != 4 {
		t.Errorf("replay: %+v, %d ops", r, len(got.ops))
	}
	if v := got.ops[1].val; v == nil || len(v) != 0 || got.ops[2].val != nil {
		t.Error("an empty value and a delete are not told apart")
	}
	if _, err := replayLog(dir, storeID{}, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("log of another store: %v", err)
	}
	newer := bytes.Clone(file)
	binary.BigEndian.PutUint32(newer[4:], segVersion+1)
	binary.BigEndian.PutUint32(newer[40:], crc32.Checksum(newer[:40], crcTable))
	must(t, os.WriteFile(filepath.Join(dir, segName(0x1234)), newer, 0o600))
	if _, err := replayLog(dir, id, nil); !errors.Is(err, ErrNewerFormat) {
		t.Errorf("newer log: %v", err)
	}
}

// A log segment that cannot be read is an error, not an empty log.
func TestUnreadableLog(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make a file that root cannot read")
	}
	db := openT(t, t.TempDir(), Options{FlushIdle: manual})
	put(t, db, "k", "v")
	dir := crashed(t, db)
	seg := filepath.Join(dir, logDir, filepath.Base(db.seg.path))
	must(t, os.Rename(seg, seg+".away"))
	must(t, unix.Mkdir(seg, 0o700))
	if _, err := Open(dir, Options{}); err == nil {
		t.Error("a directory for a log segment is taken for an empty log")
	}
}

// Whatever a segment holds, replay ends without a panic and gives whole batches.
func FuzzReplay(f *testing.F) {
	id := storeID{7}
	salt := [saltLen]byte{1}
	good := append(make([]byte, recHdrLen), batchOf("key", "value").encode([]byte{recBatch})...)
	sealRecord(good, saltCRC(salt), 1)
	f.Add([]byte(nil))
	f.Add(good)
	f.Add(append(bytes.Clone(good), good...))
	f.Add(good[:len(good)-1])
	odd := append(make([]byte, recHdrLen), 99)
	sealRecord(odd, saltCRC(salt), 1)
	f.Add(odd)
	f.Fuzz(func(t *testing.T, records []byte) {
		dir := t.TempDir()
		file := append(appendSegHeader(nil, id, 1, salt), records...)
		must(t, os.WriteFile(filepath.Join(dir, segName(1)), file, 0o600))
		r, err := replayLog(dir, id, func(p []byte) error {
			return decodeBatch(p, func(k, v []byte) {})
		})
		if err != nil {
			return
		}
		defer r.close()
		if s := r.segs[0]; s.tail < segHdrLen || s.tail > int64(len(file)) {
			t.Errorf("tail at %d of %d", s.tail, len(file))
		}
	})
}

// A kill while a flushed segment is recycled leaves no hole in the log: it is out of
// the log before it gets shorter.
func TestKilledWhileRecycling(t *testing.T) {
	z := &sizes{reserve: 1 << 20, step: 16 << 10, segment: 1 << 20}
	dir := t.TempDir()
	killed := false
	var db *DB
	db = openT(t, t.TempDir(), Options{FlushIdle: manual, sizes: z, Fault: func(step string) error {
		if step == "badger.flush" {
			db.dropSpare() // the flusher makes one when it has nothing else to do
		}
		if step != "log.recycle" || killed {
			return nil
		}
		killed = true
		for i := range 10 {
			put(t, db, fmt.Sprintf("k%d", i), "behind it")
		}
		copyStore(t, db.dir, dir) // what a kill at this moment leaves
		return nil
	}})
	put(t, db, "large", strings.Repeat("x", 300<<10)) // its segment gets shorter as the spare
	must(t, db.Flush())
	if !killed {
		t.Fatal("no segment was recycled as the spare")
	}
	left := openT(t, dir, Options{FlushIdle: manual, sizes: z})
	if r := left.Recovered(); r.Lost {
		t.Errorf("the log has a hole: %+v", r)
	}
	if n := len(dump(t, left)); n != 11 {
		t.Errorf("%d records of 11 are there", n)
	}
}
