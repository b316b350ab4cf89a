package kv

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// faulty fails the n-th step, counted from 0, that match accepts.
type faulty struct {
	mu    sync.Mutex
	n     int
	match func(step string) bool
	err   error
	hit   string // the step that failed
}

func (f *faulty) step(step string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.match != nil && !f.match(step) {
		return nil
	}
	f.n--
	if f.n != -1 {
		return nil
	}
	f.hit = step
	return f.err
}

func (f *faulty) failed() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hit
}

// Fails the i-th step of a run for i = 0, 1, 2… until a run has no i-th step. A
// call that reports success did all, one that reports failure did nothing, the
// store is usable after either, and no step's failure is swallowed where the
// caller must know.
func TestFaultWalk(t *testing.T) {
	kinds := map[string]error{
		"EIO":   unix.EIO,
		"full":  unix.ENOSPC,
		"short": &shortWrite{n: 9, err: unix.EIO},
		"whole": &shortWrite{n: 1 << 20, err: unix.EIO},
	}
	for name, injected := range kinds {
		t.Run(name, func(t *testing.T) {
			for i := 0; ; i++ {
				f := &faulty{n: i, err: injected}
				walkOnce(t, f, injected, i%2 == 0)
				if f.failed() == "" {
					if i < 15 {
						t.Errorf("only %d steps", i)
					}
					return
				}
			}
		})
	}
}

func walkOnce(t *testing.T, f *faulty, injected error, crash bool) {
	t.Helper()
	dir := t.TempDir()
	db, err := Open(dir, Options{FlushIdle: manual, sizes: tiny(), Fault: f.step})
	if err != nil {
		if !errors.Is(err, injected) {
			t.Fatalf("open after fault in %s: %v", f.failed(), err)
		}
		db = openT(t, dir, Options{FlushIdle: manual, sizes: tiny()})
	}
	model := map[string]string{}
	reported := err != nil
	note := func(err error) bool {
		if err != nil && !errors.Is(err, injected) {
			t.Fatalf("fault in %s comes out as: %v", f.failed(), err)
		}
		reported = reported || err != nil
		return err == nil
	}
	for i := range 6 {
		k, v := fmt.Sprintf("k%d", i), strings.Repeat("v", 9000)
		if note(db.Apply(batchOf(k, v, "last", k, "gone"+k, "-"))) {
			model[k], model["last"] = v, k
		}
		if got, ok, err := db.Get([]byte("last")); note(err) && (ok != (model["last"] != "") || string(got) != model["last"]) {
			t.Fatalf("fault in %s: last is %q, want %q", f.failed(), got, model["last"])
		}
		if i == 3 {
			note(db.Sync())
			note(db.Flush())
		}
		n := 0
		if note(db.Scan([]byte("k"), nil, func(k, v []byte) bool { n++; return true })) && n != max(0, len(model)-1) {
			t.Fatalf("fault in %s: scan finds %d keys, want %d", f.failed(), n, len(model)-1)
		}
	}
	switch f.failed() {
	case "log.write", "get", "scan":
		if !reported {
			t.Fatalf("fault in %s was swallowed", f.failed())
		}
	}
	if crash {
		dir = crashed(t, db)
	} else {
		note(db.Close())
	}
	db = openT(t, dir, Options{FlushIdle: manual})
	same(t, dump(t, db), model)
	must(t, db.Close())
}

// A flush that fails keeps its table, and is tried again.
func TestFlushRetry(t *testing.T) {
	f := &faulty{n: 0, err: unix.EIO, match: func(s string) bool { return s == "badger.flush" }}
	db := openT(t, t.TempDir(), Options{FlushIdle: manual, Fault: f.step})
	put(t, db, "k", "v")
	if err := db.Flush(); !errors.Is(err, unix.EIO) {
		t.Fatalf("flush: %v", err)
	}
	same(t, dump(t, db), map[string]string{"k": "v"})
	must(t, db.Flush())
	if _, ok, err := db.base.get([]byte("k")); !ok || err != nil {
		t.Errorf("badger has it: %v %v", ok, err)
	}
}

// A hook that fails stops Sync and flushes: records must not get ahead of what
// they point at.
func TestHook(t *testing.T) {
	bad := errors.New("packs are not there")
	calls := 0
	db := openT(t, t.TempDir(), Options{FlushIdle: manual})
	db.SetBeforeFlush(func() error { calls++; return bad })
	put(t, db, "k", "v")
	if err := db.Sync(); !errors.Is(err, bad) {
		t.Errorf("sync: %v", err)
	}
	if err := db.Flush(); !errors.Is(err, bad) {
		t.Errorf("flush: %v", err)
	}
	if _, ok, _ := db.base.get([]byte("k")); ok {
		t.Error("badger has the record")
	}
	db.SetBeforeFlush(nil)
	must(t, db.Sync())
	must(t, db.Flush())
	if calls < 2 {
		t.Errorf("hook ran %d times", calls)
	}
}

// After a failed fdatasync the kernel's next "done" is worth nothing: Sync must
// make the records durable another way before it says so.
func TestSyncAfterFailedSync(t *testing.T) {
	f := &faulty{n: 0, err: unix.EIO, match: func(s string) bool { return s == "log.sync" }}
	db := openT(t, t.TempDir(), Options{FlushIdle: manual, Fault: f.step})
	put(t, db, "k", "v")
	if err := db.Sync(); !errors.Is(err, unix.EIO) {
		t.Fatalf("sync: %v", err)
	}
	must(t, db.Sync())
	if _, ok, err := db.base.get([]byte("k")); !ok || err != nil {
		t.Errorf("badger has it: %v %v", ok, err)
	}
	put(t, db, "k2", "v") // in a segment that can be trusted again
	must(t, db.Sync())
	if _, ok, _ := db.base.get([]byte("k2")); ok {
		t.Error("flushed without need")
	}
}

// While nothing can be flushed, the log takes records, and then refuses them
// instead of growing for ever; deletes go on.
func TestBackpressure(t *testing.T) {
	stuck := errors.New("stuck")
	var mu sync.Mutex
	broken := true
	db := openT(t, t.TempDir(), Options{FlushIdle: time.Millisecond, sizes: tiny(), Fault: func(s string) error {
		mu.Lock()
		defer mu.Unlock()
		if s == "badger.flush" && broken {
			return stuck
		}
		return nil
	}})
	model := map[string]string{}
	refused := false
	for i := 0; !refused; i++ {
		k, v := fmt.Sprintf("k%04d", i), strings.Repeat("v", 4000)
		switch err := db.Apply(batchOf(k, v)); {
		case errors.Is(err, stuck):
			refused = true
		case err != nil:
			t.Fatal(err)
		default:
			model[k] = v
		}
		if i > 1000 {
			t.Fatal("the log grows without an end")
		}
	}
	b := batchOf("k0000", "-")
	b.UseReserve()
	must(t, db.Apply(b))
	delete(model, "k0000")
	same(t, dump(t, db), model)
	mu.Lock()
	broken = false
	mu.Unlock()
	must(t, db.Flush())
	put(t, db, "after", "1")
	model["after"] = "1"
	same(t, dump(t, db), model)
}
