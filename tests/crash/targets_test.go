package crash

import (
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite"

	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// nameCalls are the system calls by which files come, go and are filled at once, and those that wait for the disk; fileCalls are all that
// change files of the host or of the store.
var nameCalls = []uint64{
	unix.SYS_RENAME, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_UNLINK, unix.SYS_UNLINKAT, unix.SYS_FTRUNCATE,
	unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_FCHMOD,
}

var fileCalls = append(nameCalls[:len(nameCalls):len(nameCalls)], unix.SYS_PWRITE64)

// tail is how many of the last calls of a movement are aimed at more often: they put the last target back, and say that all are back.
const tail = 8

const absent = "absent"

// outside are the databases of a test, by name, as a checkpoint has them, and as they are when it is gone back to.
var outside = map[string]struct{ at, later string }{
	"plain": {"at", "later"}, "wal": {"at", "later"}, "new": {absent, "later"}, "removed": {"at", absent},
}

// databases are in a directory on the host. A program has the one called wal open all the time.
type databases struct {
	t   *testing.T
	dir string
	wal *sql.DB
}

func (d *databases) path(name string) string { return filepath.Join(d.dir, name) }

func (d *databases) open(name string) *sql.DB {
	d.t.Helper()
	if name == "wal" && d.wal != nil {
		return d.wal
	}
	mode := "delete"
	if name == "wal" {
		mode = "wal"
	}
	db, err := sql.Open("sqlite", "file:"+d.path(name)+"?_pragma=journal_mode("+mode+")&_pragma=synchronous(off)&_pragma=busy_timeout(5000)")
	if err != nil {
		d.t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	if name == "wal" {
		d.wal = db
		d.t.Cleanup(func() { db.Close() })
	}
	return db
}

// set has a database hold v all over, or be absent.
func (d *databases) set(name, v string) {
	d.t.Helper()
	if v == absent {
		if err := os.Remove(d.path(name)); err != nil && !os.IsNotExist(err) {
			d.t.Fatal(err)
		}
		return
	}
	db := d.open(name)
	for _, do := range []string{
		"CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, v, filler)",
		"DELETE FROM t",
		"WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i < 40) INSERT INTO t SELECT i, '" + v + "', hex(randomblob(500)) FROM c",
	} {
		if _, err := db.Exec(do); err != nil {
			d.t.Fatalf("%s: %v", name, err)
		}
	}
	if db != d.wal {
		db.Close()
	}
}

// holds is what a database holds all over, or how it is not.
func (d *databases) holds(name string) string {
	d.t.Helper()
	if _, err := os.Lstat(d.path(name)); os.IsNotExist(err) {
		return absent
	}
	db := d.open(name)
	if db != d.wal {
		defer db.Close()
	}
	var verdict, least, most string
	var n int
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		return fmt.Sprintf("damaged: %s, %v", verdict, err)
	}
	if err := db.QueryRow("SELECT count(*), min(v), max(v) FROM t").Scan(&n, &least, &most); err != nil || n != 40 || least != most {
		return fmt.Sprintf("half: %d rows, %s to %s, %v", n, least, most, err)
	}
	return least
}

func (d *databases) all() map[string]string {
	d.t.Helper()
	out := map[string]string{}
	for name := range outside {
		out[name] = d.holds(name)
	}
	return out
}

// left lists the files that are neither databases nor what SQLite keeps next to one: for one in use, and a journal
// whose transaction had not begun to write to the database, which the next writer takes over.
func (d *databases) left() (out []string) {
	d.t.Helper()
	all, err := os.ReadDir(d.dir)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, e := range all {
		if _, known := outside[e.Name()]; known || e.Name() == "wal-wal" || e.Name() == "wal-shm" {
			continue
		}
		if strings.HasSuffix(e.Name(), "-journal") {
			if b, err := os.ReadFile(d.path(e.Name())); err == nil && (len(b) == 0 || b[0] == 0) {
				continue
			}
		}
		out = append(out, e.Name())
	}
	return out
}

// wants are the databases of a state.
func wants(state string) map[string]string {
	out := map[string]string{}
	for name, o := range outside {
		if out[name] = o.at; state == "later" {
			out[name] = o.later
		}
	}
	return out
}

// TestTargetsSurviveKills kills the daemon in front of anything that it writes while a rollback, or an undo, puts databases
// back. After the restart files and databases are those of before, or the files are those that were gone to and each database is
// of before or of there, never half; what is of before is named by status. What status says to do, or to take the movement back, makes them one
// again.
func TestTargetsSurviveKills(t *testing.T) {
	seed, kills := plan(t, 24)
	m := mounttest.New(t, mounttest.Options{})
	t.Cleanup(func() { keepStore(m) })
	d := &databases{t: t, dir: filepath.Join(m.Top, "outside")}
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	begin := func(state string) {
		t.Helper()
		for name, v := range wants(state) {
			d.set(name, v)
		}
		if err := os.WriteFile(m.Path("f"), []byte(state), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"checkpoint", "at"}
	for name := range outside {
		args = append(args, "--sqlite", d.path(name))
	}
	begin("at")
	m.OK(args...)
	rng := rand.New(rand.NewPCG(seed, 17))
	total, moved := map[string]int{}, 0
	for round := -4; round < kills; round++ { // the first four find out how many moments there are
		kind, calls := round&1, fileCalls
		if round&2 != 0 {
			calls = nameCalls
		}
		k := movement{from: "later", to: "at", by: []string{"rollback", "at"}, back: "undo"}
		begin("later")
		if kind == 1 {
			m.OK(k.by...)
			k = movement{from: "at", to: "later", by: []string{"undo"}, back: "redo"}
		}
		n, all := -1, fmt.Sprint(k.by, len(calls))
		switch {
		case round >= 0 && round%8 < 2:
			n = max(0, total[all]-1-rng.IntN(tail))
		case round >= 0:
			n = (total[all]*round + rng.IntN(total[all])) / kills
		}
		r, seen := k.killed(m, calls, n)
		if seen.err != nil {
			t.Skipf("the daemon cannot be traced here: %v", seen.err)
		}
		if total[all] = max(total[all], seen.writes); round < 0 && r.Code != 0 {
			t.Fatalf("without a kill: %s", r)
		}
		m.Mount()
		when := fmt.Sprintf("kill %d of %v, in front of call %d of %d (exit code %d)", round, k.by, n, total[all], r.Code)
		state, owes, again := k.look(m, d, when, r.Code == 0)
		if state == k.to && r.Code != 0 {
			moved++
		}
		switch {
		case len(owes) == 0:
		case round%3 == 0:
			state = k.from
			m.OK(k.back)
		default:
			for _, cmd := range strings.Split(again, ", then ") {
				m.OK(strings.Fields(strings.TrimPrefix(cmd, "rewindfs "))...)
			}
		}
		if now, owes, _ := k.look(m, d, when+", then", false); now != state || len(owes) > 0 || !maps.Equal(d.all(), wants(state)) {
			t.Fatalf("%s: then the file is of %q, and databases hold %v; all of %q is wanted. Status still names %q", when, now, d.all(), state, owes)
		}
		if left := d.left(); len(left) > 0 {
			t.Fatalf("%s: left next to the databases: %q", when, left)
		}
	}
	m.OK("ledger", "verify")
	isClean(m)
	if moved == 0 {
		t.Error("no kill came between the movement of the head and the answer")
	}
	t.Logf("%d kills, %d of them between the movement of the head and the answer; moments: %v", kills, moved, total)
}

// movement is one between two states of files and databases.
type movement struct {
	from, to string
	by       []string // the command
	back     string   // what takes it back
}

// killed makes the movement and kills the daemon in front of the n-th of calls, or when it has answered.
func (k *movement) killed(m *mounttest.Mount, calls []uint64, n int) (*mounttest.Result, ended) {
	m.T.Helper()
	pid := m.PID()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		m.T.Fatalf("find the daemon: %v", err)
	}
	defer unix.Close(fd)
	done := make(chan *mounttest.Result, 1)
	seen := killAtWrite(pid, calls, n, mounttest.Timeout, func() {
		go func() {
			r := m.Run(k.by...)
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // it may be gone
			done <- r
		}()
	}, func() {})
	r := <-done
	mounttest.WaitGone(m.T, pid)
	return r, seen
}

// look fails the test unless files and databases are in a state that a kill of the movement, acknowledged or not, may leave. It returns of which state the
// files are, what status names, and what it says to do.
func (k *movement) look(m *mounttest.Mount, d *databases, when string, acknowledged bool) (state string, owes []string, again string) {
	t := d.t
	t.Helper()
	f, err := os.ReadFile(m.Path("f"))
	if state = string(f); err != nil || state != k.from && state != k.to || acknowledged && state != k.to {
		t.Fatalf("%s: the file holds %q, %v", when, f, err)
	}
	owes = owed(m)
	text := m.OK("status")
	_, again, named := strings.Cut(text, ": say ")
	again, _, _ = strings.Cut(again, "\n")
	if acknowledged && len(owes) > 0 || len(owes) > 0 != named {
		t.Errorf("%s: to be put back are %q, and status says\n%s", when, owes, text)
	}
	for name, got := range d.all() {
		late := state == k.to && got == wants(k.from)[name] && slices.Contains(owes, name)
		if got != wants(state)[name] && !late {
			t.Errorf("%s: the file is that of %q, %s is %s (owed: %q)", when, f, name, got, owes)
		}
	}
	return state, owes, again
}

// owed lists the databases that status says are to be put back.
func owed(m *mounttest.Mount) (out []string) {
	m.T.Helper()
	var st struct {
		Owed []struct{ Path string } `json:"targets_owed"`
	}
	m.JSON(&st, "status")
	for _, o := range st.Owed {
		out = append(out, filepath.Base(o.Path))
	}
	return out
}
