package targets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/journal"
)

// Database is the target that is the SQLite database at path: the name that it has behind symbolic links. It need not exist.
func Database(path string) (journal.Copy, error) {
	real, err := resolve(path)
	return journal.Copy{Kind: journal.TargetSQLite, Name: []byte(real)}, err
}

// resolve gives path its name behind symbolic links, and refuses what cannot be a database's file.
func resolve(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%q is no absolute path", path)
	}
	if bytes.IndexByte([]byte(path), 0) >= 0 {
		return "", fmt.Errorf("%q is no path", path)
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); err == nil {
			return "", fmt.Errorf("%s is a symbolic link to nothing", path)
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return "", fmt.Errorf("the directory of %s: %w", path, err)
		}
		return filepath.Join(dir, filepath.Base(path)), nil
	}
	if err != nil {
		return "", err
	}
	if st, err := os.Stat(real); err != nil {
		return "", err
	} else if !st.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", path)
	}
	return real, nil
}

// Name is how to speak of a target.
func Name(c *journal.Copy) string {
	if c.Kind == journal.TargetVolume {
		return "volume " + string(c.Name)
	}
	return string(c.Name)
}

// state is what stat(2) says of a database's files. Where it is as before and the files had rested then, the content is as before.
type state struct {
	files [3]unix.Stat_t // of the database, its log, its journal
}

func stateOf(path string) (st state, ok bool) {
	newest := int64(0)
	for i, suffix := range []string{"", "-wal", "-journal"} {
		f := &st.files[i]
		if err := unix.Lstat(path+suffix, f); err != nil {
			if *f = (unix.Stat_t{}); i == 0 || !errors.Is(err, unix.ENOENT) {
				return st, false
			}
			continue
		}
		f.Atim = unix.Timespec{}
		newest = max(newest, f.Mtim.Nano(), f.Ctim.Nano())
	}
	return st, time.Since(time.Unix(0, newest)) > rested
}

// taken is a copy that was taken, and the state of the files from before to after that.
type taken struct {
	state state
	copy  journal.Copy
}

// Take copies what target t holds now into the store. dir is for temporary files. Preconditions: Hold.
func (s *Store) Take(ctx context.Context, t journal.Copy, dir string) (journal.Copy, error) {
	return s.look(ctx, t, dir, s.Put)
}

// Now is Take that stores nothing.
func (s *Store) Now(ctx context.Context, t journal.Copy, dir string) (journal.Copy, error) {
	return s.look(ctx, t, dir, Sum)
}

func (s *Store) look(ctx context.Context, t journal.Copy, dir string, put func(io.Reader) (Content, error)) (journal.Copy, error) {
	s.working.Lock()
	defer s.working.Unlock()
	c := journal.Copy{Kind: t.Kind, Name: t.Name, Docker: t.Docker, Image: t.Image}
	var err error
	if c.Kind == journal.TargetVolume {
		err = takeVolume(ctx, &c, put)
	} else {
		err = s.takeDatabase(ctx, &c, dir, put)
	}
	if err != nil {
		return c, fmt.Errorf("copy %s: %w", Name(&c), err)
	}
	return c, nil
}

// takeDatabase fills in c. Preconditions: s.working is held.
func (s *Store) takeDatabase(ctx context.Context, c *journal.Copy, dir string, put func(io.Reader) (Content, error)) error {
	path := string(c.Name)
	real, err := resolve(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.Absent = true // with its directory
		return nil
	case err != nil:
		return err
	case real != path:
		return fmt.Errorf("a symbolic link leads to %s now: name that instead", real)
	}
	before, calm := stateOf(path)
	if before == (state{}) {
		c.Absent = true
		return nil
	}
	if last, ok := s.last[c.Key()]; ok && calm && last.state == before {
		*c = last.copy
		return nil
	}
	tmp := filepath.Join(dir, "copy")
	defer os.Remove(tmp)
	if c.WAL, err = dump(ctx, path, tmp); err != nil {
		return err
	}
	c.Mode = before.files[0].Mode & 0o777
	f, err := os.Open(tmp)
	if err != nil {
		return err
	}
	defer f.Close()
	content, err := put(f)
	if err != nil {
		return err
	}
	c.Size, c.Digest = content.Size, content.Digest
	if _, err := s.root(content); err != nil {
		return nil // it was not stored
	}
	if after, _ := stateOf(path); calm && after == before {
		s.last[c.Key()] = taken{before, *c}
	}
	return nil
}

// root reports whether a content is stored.
func (s *Store) root(c Content) (digest, error) {
	d, err := parse(c)
	if err != nil {
		return d, err
	}
	return d, s.walk(d, maxLevel+1, func(digest, byte, []digest) (bool, error) { return false, nil })
}

// Staged is a copy that is ready to be put back.
type Staged struct {
	journal.Copy
	file string // of a database
}

// Close removes what was made ready.
func (st *Staged) Close() error {
	if st.file == "" {
		return nil
	}
	return os.Remove(st.file)
}

// Stage makes ready what putting c back needs, and finds out, as far as that can be told before, whether it can be. A copy whose
// integrity is in doubt is refused. file is a name for a temporary file. Preconditions: Hold.
func (s *Store) Stage(ctx context.Context, c journal.Copy, file string) (*Staged, error) {
	s.working.Lock()
	defer s.working.Unlock()
	st := &Staged{Copy: c}
	var err error
	switch content := (Content{c.Size, c.Digest}); {
	case c.Kind == journal.TargetVolume:
		if err = volumeFree(ctx, &c); err == nil && !c.Absent {
			err = s.Check(content)
		}
	case !c.Absent:
		if _, err = filepath.EvalSymlinks(filepath.Dir(string(c.Name))); err != nil {
			err = fmt.Errorf("its directory: %w", err)
			break
		}
		st.file = file
		if err = s.write(content, file); err == nil {
			err = sound(ctx, file)
		}
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("make %s ready: %w", Name(&c), err), ignoreMissing(st.Close()))
		return nil, err
	}
	return st, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// write puts a content into a new file.
func (s *Store) write(c Content, file string) (err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return s.Read(c, f)
}

// Tidy removes what a PutBack of c that was killed has left next to it.
func (s *Store) Tidy(c *journal.Copy) error {
	if c.Kind != journal.TargetSQLite {
		return nil
	}
	s.working.Lock()
	defer s.working.Unlock()
	if real, err := resolve(string(c.Name)); err != nil || real != string(c.Name) {
		return ignoreMissing(err) // it leads elsewhere now: that is not ours
	}
	return tidy(string(c.Name))
}

// PutBack makes the target hold what was staged. note says what else was done. Preconditions: Hold.
func (s *Store) PutBack(ctx context.Context, st *Staged) (note string, err error) {
	s.working.Lock()
	defer s.working.Unlock()
	defer func() {
		if err != nil {
			err = fmt.Errorf("put %s back: %w", Name(&st.Copy), err)
		}
	}()
	if st.Kind == journal.TargetVolume {
		return "", s.putVolume(ctx, &st.Copy)
	}
	path := string(st.Name)
	real, err := resolve(path)
	if errors.Is(err, fs.ErrNotExist) && st.Absent {
		return "", nil
	}
	if err == nil && real != path {
		err = fmt.Errorf("a symbolic link leads to %s now", real)
	}
	if err != nil {
		return "", err
	}
	_, err = os.Lstat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !missing:
		return "", err
	case st.Absent && missing:
		return "", nil
	case st.Absent:
		return "removed, as it was not there; undo brings it back", remove(ctx, path)
	case !missing:
		return "", load(ctx, path, st.file)
	}
	moved, err := create(path, st.file, st.Mode, st.WAL)
	if len(moved) > 0 {
		note = fmt.Sprintf("what an earlier database had left was moved to %s", moved)
	}
	return note, err
}
