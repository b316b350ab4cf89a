package targets

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/kv"
)

// rig is a store of contents, and a place for databases.
type rig struct {
	*Store
	db  *kv.DB
	dir string // of databases
	tmp string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	top := t.TempDir()
	db, err := kv.Open(filepath.Join(top, "kv"), kv.Options{})
	must(t, err)
	chunks, err := cas.Open(top, db, cas.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(db.Close(), chunks.Close())) })
	r := &rig{db: db, dir: t.TempDir(), tmp: t.TempDir()}
	// As layers.Tree.NameChunks, where nothing else has names.
	r.Store = NewStore(db, chunks, func(sweep uint64, _ []cas.Hash, b *kv.Batch) (bool, error) {
		if sweep != chunks.Sweeps() {
			return false, nil
		}
		return true, db.Apply(b)
	})
	return r
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) nodes(t *testing.T) (n int) {
	t.Helper()
	must(t, r.db.Scan(kv.TargetNodePrefix(), nil, func(_, _ []byte) bool { n++; return true }))
	return n
}

func TestContents(t *testing.T) {
	r := newRig(t)
	rnd := rand.NewChaCha8([32]byte{1})
	const leaf = fanout * cas.ChunkSize
	var all []Content
	for _, size := range []int{0, 1, cas.ChunkSize - 1, cas.ChunkSize, leaf, leaf + 1, 2*leaf - 1, 3 * leaf} {
		data := make([]byte, size)
		_, _ = rnd.Read(data)
		c, err := r.Put(bytes.NewReader(data))
		must(t, err)
		if sum, err := Sum(bytes.NewReader(data)); err != nil || sum != c || c.Size != int64(size) {
			t.Errorf("%d bytes: put %+v, summed %+v, %v", size, c, sum, err)
		}
		var back bytes.Buffer
		must(t, r.Read(c, &back))
		if !bytes.Equal(back.Bytes(), data) {
			t.Errorf("%d bytes came back as others", size)
		}
		all = append(all, c)
	}
	before := r.nodes(t)
	for _, c := range all { // equal content is stored once
		var back bytes.Buffer
		must(t, r.Read(c, &back))
		if _, err := r.Put(&back); err != nil || r.nodes(t) != before {
			t.Fatalf("put again: %v, %d nodes, were %d", err, r.nodes(t), before)
		}
	}
	big := all[len(all)-1]
	removed, err := r.Sweep(func() ([]Content, error) { return []Content{big}, nil })
	if left := r.nodes(t); err != nil || left != 4 || removed != before-left {
		t.Errorf("sweep: %d removed, %d left, %v", removed, left, err)
	}
	must(t, r.Check(big))
	if err := r.Check(all[1]); !errors.Is(err, ErrCorrupt) || !errors.Is(err, kv.ErrCorrupt) {
		t.Errorf("a content that was swept: %v", err)
	}
	n := 0
	must(t, r.Named(func(cas.Hash) { n++ }))
	if n != 3*fanout {
		t.Errorf("%d chunks are named", n)
	}
}

// A sweep waits for those who hold, and they never for one that only waits: a rollback holds while a checkpoint does, with gc behind both.
func TestHold(t *testing.T) {
	r := newRig(t)
	release := r.Hold()
	asked, swept := make(chan struct{}), make(chan error, 1)
	go func() {
		close(asked)
		_, err := r.Sweep(func() ([]Content, error) { return nil, nil })
		swept <- err
	}()
	<-asked
	for range 100 {
		r.Hold()()
	}
	c, err := r.Put(strings.NewReader("held"))
	must(t, err)
	must(t, r.Check(c))
	if len(swept) > 0 {
		t.Error("swept while somebody holds")
	}
	release()
	release()
	must(t, <-swept)
	if r.nodes(t) != 0 {
		t.Error("not swept")
	}
}

// A tree with more levels than any test can fill with bytes.
func TestManyLevels(t *testing.T) {
	nodes := map[digest][]digest{}
	keep := func(level byte, children []digest) (digest, error) {
		d := cas.HashOf(encodeNode(level, children))
		nodes[d] = append([]digest(nil), children...)
		if len(children) > fanout {
			t.Fatalf("%d children", len(children))
		}
		return d, nil
	}
	for _, n := range []int{1, fanout, fanout + 1, fanout * fanout, fanout*fanout + 1, 2*fanout*fanout + 3} {
		var levels [][]digest
		want := make([]digest, n)
		var add func(int, digest)
		add = func(l int, d digest) {
			if l == len(levels) {
				levels = append(levels, nil)
			}
			if levels[l] = append(levels[l], d); len(levels[l]) == fanout {
				up, _ := keep(byte(l+1), levels[l])
				levels[l] = nil
				add(l+1, up)
			}
		}
		for i := range want {
			want[i] = cas.HashOf(fmt.Append(nil, i))
			add(0, want[i])
		}
		root, err := rootOf(levels, keep)
		must(t, err)
		var got []digest
		var walk func(digest)
		walk = func(d digest) {
			children, inner := nodes[d]
			if !inner {
				got = append(got, d)
			}
			for _, c := range children {
				walk(c)
			}
		}
		walk(root)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%d leaves: they come back as %d others", n, len(got))
		}
	}
}

// connect opens a database as any program does.
func (r *rig) connect(t *testing.T, name, mode string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", fileURI(filepath.Join(r.dir, name), "rwc")+"&_pragma=journal_mode("+mode+")")
	must(t, err)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { db.Close() })
	return db
}

func sqlDo(t *testing.T, db *sql.DB, text string, args ...any) {
	t.Helper()
	if _, err := db.Exec(text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func rows(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	must(t, db.QueryRow("SELECT count(*) FROM t").Scan(&n))
	return n
}

func (r *rig) target(t *testing.T, name string) journal.Copy {
	t.Helper()
	c, err := Database(filepath.Join(r.dir, name))
	must(t, err)
	return c
}

func (r *rig) take(t *testing.T, c journal.Copy) journal.Copy {
	t.Helper()
	got, err := r.Take(t.Context(), c, r.tmp)
	must(t, err)
	return got
}

func (r *rig) putBack(t *testing.T, c journal.Copy) string {
	t.Helper()
	st, err := r.Stage(t.Context(), c, filepath.Join(r.tmp, "staged"))
	must(t, err)
	note, err := r.PutBack(t.Context(), st)
	must(t, errors.Join(err, st.Close()))
	if left, _ := os.ReadDir(r.tmp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	return note
}

func TestDatabases(t *testing.T) {
	for _, mode := range []string{"delete", "wal"} {
		for _, name := range []string{"app.db", "odd %3f?#&é\xff.db"} {
			t.Run(mode+" "+strings.ToValidUTF8(name, ""), func(t *testing.T) { testDatabase(t, mode, name) })
		}
	}
}

func testDatabase(t *testing.T, mode, name string) {
	r := newRig(t)
	path := filepath.Join(r.dir, name)
	none := r.take(t, r.target(t, name))
	if !none.Absent {
		t.Fatalf("of no database: %+v", none)
	}
	app := r.connect(t, name, mode)
	sqlDo(t, app, "CREATE TABLE t(n INTEGER, pad BLOB)")
	sqlDo(t, app, "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i < 3000) INSERT INTO t SELECT i, randomblob(500) FROM c")
	must(t, os.Chmod(path, 0o640))
	full := r.take(t, r.target(t, name))
	if full.Absent || full.Size < 3000*500 || full.WAL != (mode == "wal") || full.Mode != 0o640 {
		t.Fatalf("%+v", full)
	}
	nodes := r.nodes(t)

	// The application has it open, and goes on with it after each step.
	sqlDo(t, app, "DROP TABLE t")
	sqlDo(t, app, "VACUUM")
	wrecked := r.take(t, r.target(t, name))
	if wrecked.Same(&full) {
		t.Fatal("the copy of another content is the same")
	}
	r.putBack(t, full)
	if n := rows(t, app); n != 3000 {
		t.Errorf("%d rows are back", n)
	}
	if now, err := r.Now(t.Context(), full, r.tmp); err != nil || !now.Same(&full) {
		t.Errorf("what was put back is %+v, was %+v, %v", now, full, err)
	}
	sqlDo(t, app, "INSERT INTO t VALUES(0, x'00')")
	r.putBack(t, wrecked)
	if _, err := app.Exec("SELECT * FROM t"); err == nil || !strings.Contains(err.Error(), "no such table") {
		t.Errorf("undone: %v", err)
	}

	// One that is gone comes back as a file, and what the old one left is not taken for the new one's.
	must(t, app.Close())
	must(t, os.Remove(path))
	must(t, os.WriteFile(path+"-wal", []byte("left"), 0o600))
	if note := r.putBack(t, full); !strings.Contains(note, "-wal.left-over") {
		t.Errorf("note: %q", note)
	}
	app = r.connect(t, name, mode)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 || rows(t, app) != 3000 {
		t.Errorf("made anew: %v, %v", st, err)
	}
	sqlDo(t, app, "UPDATE t SET pad = x'01' WHERE n = 7")
	if again := r.take(t, r.target(t, name)); again.Same(&full) || r.nodes(t) > nodes+3 {
		t.Errorf("one changed row: %+v, and %d nodes, were %d", again, r.nodes(t), nodes)
	}
	r.putBack(t, none)
	for _, suffix := range append(besides, "") {
		if _, err := os.Lstat(path + suffix); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s%s is still there: %v", name, suffix, err)
		}
	}
}

func TestAnEmptyDatabase(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(r.dir, "empty.db")
	must(t, os.WriteFile(path, nil, 0o600))
	empty := r.take(t, r.target(t, "empty.db"))
	if empty.Absent || empty.Size > 64<<10 {
		t.Fatalf("%+v", empty)
	}
	sqlDo(t, r.connect(t, "empty.db", "delete"), "CREATE TABLE t(n)")
	r.putBack(t, empty)
	var n int
	if err := r.connect(t, "empty.db", "delete").QueryRow("SELECT count(*) FROM sqlite_master").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d tables, %v", n, err)
	}
}

// What did not change since the last copy is not read again.
func TestAtRest(t *testing.T) {
	r := newRig(t)
	app := r.connect(t, "app.db", "delete")
	sqlDo(t, app, "CREATE TABLE t(n)")
	c := r.target(t, "app.db")
	first := r.take(t, c)
	for { // until the file has rested
		if _, calm := stateOf(string(c.Name)); calm {
			break
		}
	}
	r.take(t, c)
	if _, ok := r.last[c.Key()]; !ok {
		t.Fatal("nothing is remembered of a database at rest")
	}
	must(t, os.Chmod(r.tmp, 0o500)) // no room for a copy, were one made by somebody else than root
	defer os.Chmod(r.tmp, 0o700)
	gone := filepath.Join(r.tmp, "no", "such")
	if again, err := r.Take(t.Context(), c, gone); err != nil || !again.Same(&first) {
		t.Errorf("at rest: %+v, %v", again, err)
	}
	sqlDo(t, app, "INSERT INTO t VALUES(1)")
	if _, err := r.Take(t.Context(), c, gone); err == nil {
		t.Error("one that changed was not read")
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t)
	app := r.connect(t, "app.db", "delete")
	sqlDo(t, app, "CREATE TABLE t(n)")
	sqlDo(t, app, "INSERT INTO t VALUES(1)")
	c := r.take(t, r.target(t, "app.db"))
	path := string(c.Name)

	link := filepath.Join(r.dir, "link.db")
	must(t, os.Symlink(path, link))
	if got, err := Database(link); err != nil || string(got.Name) != path {
		t.Errorf("through a link: %q, %v", got.Name, err)
	}
	must(t, os.Symlink(filepath.Join(r.dir, "nothing"), filepath.Join(r.dir, "dangling")))
	for _, bad := range []string{"app.db", r.dir, filepath.Join(r.dir, "dangling"), filepath.Join(r.dir, "no", "dir.db"), "/dev/null"} {
		if got, err := Database(bad); err == nil {
			t.Errorf("%s was taken for %q", bad, got.Name)
		}
	}
	must(t, os.WriteFile(filepath.Join(r.dir, "text"), bytes.Repeat([]byte("no database "), 1000), 0o600))
	if got, err := r.Take(t.Context(), r.target(t, "text"), r.tmp); err == nil {
		t.Errorf("a text was copied: %+v", got)
	}

	// Another file of that name now: nothing is written through the link.
	must(t, app.Close())
	other := filepath.Join(r.dir, "other.db")
	must(t, os.Rename(path, other))
	must(t, os.Symlink(other, path))
	st, err := r.Stage(t.Context(), c, filepath.Join(r.tmp, "staged"))
	must(t, err)
	if _, err := r.PutBack(t.Context(), st); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("through a link that came later: %v", err)
	}
	must(t, st.Close())

	// A copy with a wrong byte in it, and one of a database that was damaged already.
	bad := c
	bad.Digest = strings.Repeat("ab", 32)
	if _, err := r.Stage(t.Context(), bad, filepath.Join(r.tmp, "staged")); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a damaged copy: %v", err)
	}
	var whole bytes.Buffer
	must(t, r.Read(Content{c.Size, c.Digest}, &whole))
	torn := whole.Bytes()
	copy(torn[len(torn)-1000:], bytes.Repeat([]byte{0xff}, 1000))
	content, err := r.Put(bytes.NewReader(torn))
	must(t, err)
	bad.Digest = content.Digest
	if _, err := r.Stage(t.Context(), bad, filepath.Join(r.tmp, "staged")); err == nil || !strings.Contains(err.Error(), "integrity_check") {
		t.Errorf("a damaged database: %v", err)
	}
	if left, _ := os.ReadDir(r.tmp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestLockedDatabase(t *testing.T) {
	r := newRig(t)
	app := r.connect(t, "app.db", "delete")
	sqlDo(t, app, "CREATE TABLE t(n)")
	c := r.take(t, r.target(t, "app.db"))
	sqlDo(t, app, "INSERT INTO t VALUES(1)")
	st, err := r.Stage(t.Context(), c, filepath.Join(r.tmp, "staged"))
	must(t, err)
	defer st.Close()
	sqlDo(t, app, "BEGIN EXCLUSIVE")
	if _, err := r.Take(t.Context(), c, r.tmp); !errors.Is(err, ErrBusy) {
		t.Errorf("copied while locked: %v", err)
	}
	if _, err := r.PutBack(t.Context(), st); !errors.Is(err, ErrBusy) {
		t.Errorf("put back while locked: %v", err)
	}
	sqlDo(t, app, "COMMIT")
	if rows(t, app) != 1 {
		t.Error("what could not be put back has changed something")
	}
	_, err = r.PutBack(t.Context(), st)
	must(t, err)
	if rows(t, app) != 0 {
		t.Error("not put back")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sqlDo(t, app, "INSERT INTO t VALUES(1)")
	if _, err := r.Take(ctx, c, r.tmp); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// fakeDocker keeps volumes as directories. It knows what this package says, and no more.
const fakeDocker = `#!/bin/sh
top=$(dirname "$0")/volumes
mkdir -p "$top"
case "$1 $2" in
"volume ls") ls "$top" ;;
"volume rm") rm -r "$top/$3" ;;
"ps --filter") cat "$(dirname "$0")/running" 2>/dev/null || true ;;
"run --rm")
	while [ "$1" != -v ]; do shift; done
	dir=$top/${2%%:*}
	mkdir -p "$dir"
	[ "$3" = good/image:1 ] || { echo "Unable to find image '$3' locally" >&2; exit 125; }
	shift 3
	case $1 in
	tar) exec tar -C "$dir" --sort=name -cf - . ;;
	sh) exec sh -c "$(echo "$3" | sed "s|/volume|$dir|g")" ;;
	esac ;;
esac
`

func TestVolumes(t *testing.T) {
	r := newRig(t)
	top := t.TempDir()
	docker := filepath.Join(top, "docker")
	must(t, os.WriteFile(docker, []byte(fakeDocker), 0o700))
	c, err := Volume("data", docker, "good/image:1")
	must(t, err)
	none := r.take(t, c)
	if !none.Absent {
		t.Errorf("of no volume: %+v", none)
	}
	dir := filepath.Join(top, "volumes", "data")
	must(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "sub", "f"), []byte("one"), 0o604))
	must(t, os.WriteFile(filepath.Join(dir, ".hidden"), bytes.Repeat([]byte("x"), 3<<20), 0o600))
	full := r.take(t, c)
	if again := r.take(t, c); !again.Same(&full) || full.Size < 3<<20 {
		t.Errorf("taken twice: %+v and %+v", full, again)
	}
	must(t, os.WriteFile(filepath.Join(dir, "new"), nil, 0o600))
	must(t, os.Remove(filepath.Join(dir, "sub", "f")))
	other := r.take(t, c)

	// A container has it: nothing is changed under it.
	must(t, os.WriteFile(filepath.Join(top, "running"), []byte("db web\n"), 0o600))
	if _, err := r.Stage(t.Context(), full, ""); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "db, web") {
		t.Errorf("in use: %v", err)
	}
	must(t, os.Remove(filepath.Join(top, "running")))

	r.putBack(t, full)
	if st, err := os.Stat(filepath.Join(dir, "sub", "f")); err != nil || st.Mode().Perm() != 0o604 {
		t.Errorf("put back: %v, %v", st, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was new is still there: %v", err)
	}
	r.putBack(t, none)
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the volume is still there: %v", err)
	}
	r.putBack(t, other)
	if now := r.take(t, c); !now.Same(&other) {
		t.Errorf("made anew: %+v, want %+v", now, other)
	}

	bad := c
	bad.Image = "no/image"
	if _, err := r.Take(t.Context(), bad, r.tmp); err == nil || !strings.Contains(err.Error(), "Unable to find image") {
		t.Errorf("without an image: %v", err)
	}
	bad = full
	bad.Digest = strings.Repeat("ab", 32)
	if _, err := r.Stage(t.Context(), bad, ""); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a damaged copy: %v", err)
	}
	for _, name := range []string{"", "-v", "/etc", "a/b", "a b", "a:b", strings.Repeat("a", 256)} {
		if _, err := Volume(name, "", ""); err == nil {
			t.Errorf("%q was taken for a volume", name)
		}
	}
	if _, err := Volume("data", "", "--privileged"); err == nil {
		t.Error("an option was taken for an image")
	}
	if d, err := Volume("data", "", ""); err != nil || d.Docker != DefaultDocker || d.Image != DefaultImage {
		t.Errorf("%+v, %v", d, err)
	}
}
