package targets

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// ErrBusy says that another program kept a target locked for longer than busyTime.
var ErrBusy = errors.New("it is locked by another program")

const (
	// busyTime is how long a lock of another program is waited for.
	busyTime = 5 * time.Second
	// stepPages is how much of a database is copied between two looks at the context, in pages.
	stepPages = 4096
	// rested is the time that a file must have rested for its stat data to tell of every change, see State.
	rested = 100 * time.Millisecond
)

// besides are the files that SQLite keeps next to a database.
var besides = []string{"-wal", "-shm", "-journal"}

// openDatabase opens a database that is there, with the parameters of SQLite's URIs. It reads nothing of it. Nothing else of this process
// may have the file open: when it closes that, the locks of SQLite are gone.
func openDatabase(ctx context.Context, path, mode string) (*sql.DB, *sql.Conn, error) {
	u := url.URL{Scheme: "file", OmitHost: true, Path: path}
	q := url.Values{"mode": {mode}, "_pragma": {fmt.Sprintf("busy_timeout(%d)", busyTime.Milliseconds())}}
	db, err := sql.Open("sqlite", u.String()+"?"+q.Encode())
	if err != nil {
		return nil, nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, nil, errors.Join(plain(err), db.Close())
	}
	return db, conn, nil
}

// plain gives what SQLite says about locks an identity.
func plain(err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) {
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
			return fmt.Errorf("%w (%w)", ErrBusy, err)
		case sqlite3.SQLITE_FULL:
			return fmt.Errorf("%w (%w)", unix.ENOSPC, err)
		}
	}
	return err
}

// backuper is what the driver's connections can do.
type backuper interface {
	NewBackup(dst string) (*sqlite.Backup, error)
	NewRestore(src string) (*sqlite.Backup, error)
}

// dump makes dst, which is not there, a copy of the database at path as of one moment, with those bytes of its header made equal that say how
// often it was written: so equal contents give equal files. wal says that it had a write-ahead log.
func dump(ctx context.Context, path, dst string) (wal bool, err error) {
	db, conn, err := openDatabase(ctx, path, "rw")
	if err != nil {
		if db, conn, err = openDatabase(ctx, path, "ro"); err != nil {
			return false, err
		}
	}
	defer func() { err = errors.Join(err, conn.Close(), db.Close()) }()
	// One transaction over all steps, so that they are of one moment and no writer makes them begin again.
	var tables int
	if _, err := conn.ExecContext(ctx, "BEGIN"); err != nil {
		return false, plain(err)
	}
	if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&tables); err != nil {
		return false, plain(err)
	}
	err = conn.Raw(func(c any) error {
		b, err := c.(backuper).NewBackup(fileURI(dst, "rwc") + "&_pragma=synchronous(off)&_pragma=journal_mode(off)")
		if err != nil {
			return err
		}
		return steps(ctx, b)
	})
	if err != nil {
		return false, plain(err)
	}
	return level(dst)
}

func fileURI(path, mode string) string {
	u := url.URL{Scheme: "file", OmitHost: true, Path: path}
	return u.String() + "?mode=" + mode
}

// steps does all of a backup, or undoes it.
func steps(ctx context.Context, b *sqlite.Backup) error {
	var err error
	for more := true; more && err == nil; {
		if more, err = b.Step(stepPages); err == nil {
			err = ctx.Err()
		}
	}
	return errors.Join(err, b.Finish())
}

// The bytes of a database's header that are about its history, and not its content.
const (
	headerLen     = 100
	atFormats     = 18 // two bytes, 2 for a write-ahead log
	atChanges     = 24 // counts commits
	atSchema      = 40 // counts changes of the schema
	atValidFor    = 92 // the count of commits for which the size in the header holds
	atVersion     = 96 // of the SQLite that wrote last
	formatJournal = 1
	formatWAL     = 2
)

// level makes the header of the database file at path one that does not depend on how it came about.
func level(path string) (wal bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var h [headerLen]byte
	if _, err := f.ReadAt(h[:], 0); err != nil {
		return false, err
	}
	wal = h[atFormats] == formatWAL
	h[atFormats], h[atFormats+1] = formatJournal, formatJournal
	for _, at := range []int{atChanges, atSchema, atValidFor} {
		binary.BigEndian.PutUint32(h[at:], 1)
	}
	binary.BigEndian.PutUint32(h[atVersion:], 0)
	_, err = f.WriteAt(h[:], 0)
	return wal, err
}

// sound reports, as an error, what is wrong with the database file at path, which nobody else has.
func sound(ctx context.Context, path string) (err error) {
	db, conn, err := openDatabase(ctx, path, "ro")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(), db.Close()) }()
	var verdict string
	if err := conn.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict); err != nil {
		return plain(err)
	}
	if verdict != "ok" {
		return fmt.Errorf("PRAGMA integrity_check says: %s", verdict)
	}
	return nil
}

// load makes the database at path, which is there, hold what the file src does, in one transaction of its own: programs that have it
// open see it from their next transaction on.
func load(ctx context.Context, path, src string) (err error) {
	db, conn, err := openDatabase(ctx, path, "rw")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(), db.Close()) }()
	err = conn.Raw(func(c any) error {
		b, err := c.(backuper).NewRestore(fileURI(src, "ro"))
		if err != nil {
			return err
		}
		return steps(ctx, b)
	})
	return plain(err)
}

// create makes the file at path, where nothing is, from the database file src, whole or not at all. What a database that was removed has left next to it
// would be taken for the new one's, so it is moved aside; moved says where to.
func create(path, src string, mode uint32, wal bool) (moved []string, err error) {
	if err := tidy(path); err != nil {
		return nil, err
	}
	tmp, err := os.OpenFile(unfinished(path), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if rm := os.Remove(tmp.Name()); !errors.Is(rm, fs.ErrNotExist) {
			err = errors.Join(err, rm)
		}
	}()
	err = errors.Join(fill(tmp, src, wal), tmp.Chmod(fs.FileMode(mode)&fs.ModePerm), tmp.Sync(), tmp.Close())
	if err != nil {
		return nil, err
	}
	for _, suffix := range besides {
		left, aside := path+suffix, path+suffix+".left-over"
		switch err := os.Rename(left, aside); {
		case err == nil:
			moved = append(moved, aside)
		case !errors.Is(err, fs.ErrNotExist):
			return moved, err
		}
	}
	return moved, unix.Renameat2(unix.AT_FDCWD, tmp.Name(), unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
}

// unfinished is where create makes a new file for path.
func unfinished(path string) string {
	sum := sha256.Sum256([]byte(filepath.Base(path)))
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".rewindfs-%x", sum[:8]))
}

// tidy removes what a create of path that was killed has left.
func tidy(path string) error {
	if err := os.Remove(unfinished(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// fill copies src to f, as a database with or without a write-ahead log.
func fill(f *os.File, src string, wal bool) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = f.ReadFrom(in)
	if err == nil && wal {
		_, err = f.WriteAt([]byte{formatWAL, formatWAL}, atFormats)
	}
	return err
}

// remove deletes the database at path, with what SQLite keeps next to it, when nobody is at it: a transaction of
// another program is waited for, as ever.
func remove(ctx context.Context, path string) (err error) {
	db, conn, err := openDatabase(ctx, path, "rw")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(), db.Close()) }()
	if _, err := conn.ExecContext(ctx, "BEGIN EXCLUSIVE"); err != nil {
		return plain(err)
	}
	err = os.Remove(path)
	for _, suffix := range besides {
		if rm := os.Remove(path + suffix); rm != nil && !errors.Is(rm, fs.ErrNotExist) {
			err = errors.Join(err, rm)
		}
	}
	return err
}
