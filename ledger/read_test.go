package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFilters(t *testing.T) {
	dir := testDir(t)
	l := open(t, dir, Options{MaxFile: 700})
	for i, e := range []Event{
		{Kind: KindMount, Session: "web", Branch: "main"},
		{Kind: KindCheckpoint, Session: "web", Branch: "main", Label: "a", Checkpoint: "01JDW5Z0000000000000000001"},
		{Kind: KindCheckpoint, Session: "web", Branch: "try", Label: "b", Checkpoint: "01JDW5Z0000000000000000002"},
		{Kind: KindRollback, Session: "web", Branch: "main", Label: "a", Checkpoint: "01JDW5Z0000000000000000001"},
		{Kind: KindExec, Session: "api", Branch: "main"},
		{Kind: KindUnmount, Session: "web", Branch: "main"},
	} {
		e.At = time.Date(2026, 11, 29, 12, i, 0, 0, time.UTC)
		if _, err := l.Append(e); err != nil {
			t.Fatal(err)
		}
	}
	closeLedger(t, l)
	at := func(m int) time.Time { return time.Date(2026, 11, 29, 12, m, 0, 0, time.UTC) }
	for name, c := range map[string]struct {
		f    Filter
		want string
	}{
		"all":            {Filter{}, "1 2 3 4 5 6"},
		"kind":           {Filter{Kinds: []Kind{KindCheckpoint}}, "2 3"},
		"kinds":          {Filter{Kinds: []Kind{KindExec, KindMount}}, "1 5"},
		"label":          {Filter{Checkpoint: "a"}, "2 4"},
		"id":             {Filter{Checkpoint: "01JDW5Z0000000000000000002"}, "3"},
		"id's beginning": {Filter{Checkpoint: "01jdw5"}, "2 3 4"},
		"too short":      {Filter{Checkpoint: "01JDW"}, ""},
		"session":        {Filter{Session: "api"}, "5"},
		"branch":         {Filter{Branch: "try"}, "3"},
		"since":          {Filter{Since: at(4)}, "5 6"},
		"until":          {Filter{Until: at(1)}, "1"},
		"between":        {Filter{Since: at(1), Until: at(3)}, "2 3"},
		"after":          {Filter{After: 4}, "5 6"},
		"several":        {Filter{Checkpoint: "a", Kinds: []Kind{KindRollback}, Branch: "main"}, "4"},
	} {
		var got []string
		for _, r := range records(t, dir, c.f) {
			got = append(got, fmt.Sprint(r.Seq))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %s, want %s", name, s, c.want)
		}
	}
}

func TestReadGoesOnBehindDamage(t *testing.T) {
	dir, _ := closedLedger(t)
	edit(t, dir, fileName(2), func(s string) string {
		return strings.Replace(s, `"event":"exec"`, `"event":"eXec"`, 2) + strings.Repeat("x", 2*maxLine) + "\n" + `{"v":1`
	})
	if err := errors.Join(os.Remove(filepath.Join(dir, fileName(3))), os.Mkdir(filepath.Join(dir, fileName(3)), 0o700)); err != nil {
		t.Fatal(err)
	}
	var got []uint64
	err := Read(dir, Filter{}, func(r *Record) error { got = append(got, r.Seq); return nil })
	var u *UnreadableError
	if !errors.As(err, &u) || u.Lines != 4 || !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "4 lines of the ledger could not be read") {
		t.Errorf("%v", err)
	}
	if len(got) < 30 || got[len(got)-1] != 50 {
		t.Errorf("read %v", got)
	}
}

func TestReadEnds(t *testing.T) {
	dir, _ := closedLedger(t)
	stop := errors.New("enough")
	n := 0
	err := Read(dir, Filter{}, func(*Record) error {
		if n++; n == 7 {
			return stop
		}
		return nil
	})
	if err != stop || n != 7 {
		t.Errorf("%d, %v", n, err)
	}
	if err := Read(filepath.Join(dir, "no"), Filter{}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no ledger: %v", err)
	}
	if err := Follow(t.Context(), filepath.Join(dir, "no"), Filter{}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no ledger: %v", err)
	}
}

// Both watchers show all events once, in order, over files, kills and repairs.
func TestFollow(t *testing.T) {
	for name, make := range map[string]func(dir string) (watcher, error){
		"inotify": func(dir string) (watcher, error) { return newInotify(dir) },
		"ticker":  func(dir string) (watcher, error) { return newTicker(time.Millisecond), nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir := testDir(t)
			o := Options{MaxFile: 1000}
			l := open(t, dir, o)
			appendN(t, l, 10)
			w, err := make(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer w.close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := goFollow(ctx, w, dir)
			next := uint64(1)
			upTo := func(n uint64) {
				t.Helper()
				for ; next <= n; next++ {
					select {
					case r, ok := <-got.records:
						if !ok || r.Seq != next {
							t.Fatalf("record %+v instead of %d: %v", r, next, got.err)
						}
					case <-time.After(time.Minute):
						t.Fatalf("record %d does not come", next)
					}
				}
			}
			upTo(10)
			for range 20 {
				appendN(t, l, 1)
				upTo(l.Head().Seq)
			}
			kill(t, l)
			edit := filepath.Join(dir, fileName(l.cur))
			if err := addTo(edit, `{"v":1,"seq":`); err != nil {
				t.Fatal(err)
			}
			l = open(t, dir, o)
			appendN(t, l, 30)
			upTo(61)
			closeLedger(t, l)
			cancel()
			if _, more := <-got.records; more || !errors.Is(got.err, context.Canceled) {
				t.Errorf("at the end: %v", got.err)
			}
		})
	}
}

type followed struct {
	records chan *Record
	err     error // when records is closed
}

func goFollow(ctx context.Context, w watcher, dir string) *followed {
	f := &followed{records: make(chan *Record)}
	go func() {
		defer close(f.records)
		f.err = follow(ctx, w, &cursor{dir: dir, fn: func(r *Record) error {
			select {
			case f.records <- r:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
	}()
	return f
}

// Nothing wakes a follower but new lines, and what ends it is not waited for.
func TestFollowEnds(t *testing.T) {
	dir, _ := closedLedger(t)
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := Follow(ctx, dir, Filter{After: 40}, func(r *Record) error {
		if n++; n == 10 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || n != 10 {
		t.Errorf("%d, %v", n, err)
	}
	stop := errors.New("enough")
	if err := Follow(t.Context(), dir, Filter{}, func(*Record) error { return stop }); err != stop {
		t.Errorf("%v", err)
	}
	err = Follow(t.Context(), dir, Filter{}, func(r *Record) error {
		if r.Seq == 50 {
			return os.RemoveAll(dir)
		}
		return nil
	})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory was removed: %v", err)
	}
}

// A watcher is not woken by what is no news: the head, which is written after every line.
func TestInotifyIgnoresHead(t *testing.T) {
	dir, _ := closedLedger(t)
	w, err := newInotify(dir)
	if err != nil {
		t.Skip(err)
	}
	defer w.close()
	edit(t, dir, headName, func(s string) string { return s })
	n, err := w.f.Read(w.buf[:])
	if err != nil {
		t.Fatal(err)
	}
	if news, err := events(w.buf[:n]); news || err != nil {
		t.Errorf("woken by head: %v", err)
	}
	edit(t, dir, fileName(1), func(s string) string { return s })
	if err := w.wait(t.Context()); err != nil {
		t.Error(err)
	}
}
