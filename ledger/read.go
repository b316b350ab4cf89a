package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// UnreadableError is returned by Read and Follow when some lines could not be read. All
// others have been given out. errors.Is tells ErrDamaged and ErrNewer.
type UnreadableError struct {
	Lines int
	First error // why the first of them could not
}

func (e *UnreadableError) Error() string {
	what := fmt.Sprintf("%d lines of the ledger could not be read", e.Lines)
	if e.Lines == 1 {
		what = "a line of the ledger could not be read"
	}
	return fmt.Sprintf("%s (rewindfs ledger verify tells more): %v", what, e.First)
}

func (e *UnreadableError) Unwrap() error { return e.First }

// Read calls fn for the records in dir that f chooses, in order, up to the last whole line that
// there is now. It checks no links: that is Verify's work. When fn returns an error, Read returns it. A ledger that is not there
// is an fs.ErrNotExist error.
func Read(dir string, f Filter, fn func(*Record) error) error {
	c := cursor{dir: dir, filter: f, fn: fn}
	return c.done(c.advance())
}

// Follow is Read, and then goes on with what is appended, over files and restarts of the
// daemon, until ctx ends or fn fails. It waits for inotify events of the directory, so it
// costs nothing while nothing happens; where the kernel has no instance left to give, it looks four times a second.
// It returns the error of ctx or fn.
func Follow(ctx context.Context, dir string, f Filter, fn func(*Record) error) error {
	w, err := watch(dir)
	if err != nil {
		return err
	}
	defer w.close()
	return follow(ctx, w, &cursor{dir: dir, filter: f, fn: fn})
}

// watcher waits for changes of a directory.
type watcher interface {
	wait(ctx context.Context) error // returns when there may be something new, or with ctx's error
	close() error
}

func follow(ctx context.Context, w watcher, c *cursor) error {
	for {
		// What changes while this reads is not missed: the watcher was there before.
		if err := c.advance(); err != nil {
			return c.done(err)
		}
		if err := w.wait(ctx); err != nil {
			return c.done(err)
		}
	}
}

// cursor is a place in the ledger, at the beginning of a line.
type cursor struct {
	dir    string
	filter Filter
	fn     func(*Record) error

	l    *lines // nil before the first file, and between two
	file int    // the one that l reads, or the last one that was read
	bad  UnreadableError
}

// done closes c and joins err with what could not be read.
func (c *cursor) done(err error) error {
	if c.l != nil {
		if closeErr := c.l.close(); err == nil {
			err = closeErr
		}
		c.l = nil
	}
	switch {
	case c.bad.Lines == 0:
		return err
	case err == nil:
		return &c.bad
	}
	return errors.Join(err, &c.bad)
}

// advance gives out all whole lines from c to the end.
func (c *cursor) advance() error {
	for {
		if c.l != nil {
			if err := c.through(); err != nil {
				return err
			}
		}
		files, err := listFiles(c.dir)
		if err != nil {
			return err
		}
		next := 0
		for _, n := range files {
			if n > c.file {
				next = n
				break
			}
		}
		if next == 0 {
			return nil
		}
		if c.l != nil {
			// Once the next file is there nothing is added to this one, but it may have been since we looked.
			if err := c.through(); err != nil {
				return err
			}
			if err := c.l.close(); err != nil {
				return err
			}
			c.l = nil
		}
		c.file = next
		l, err := openLines(c.dir, next, 0)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, ErrDamaged):
			c.unreadable(err)
		case err != nil:
			return err
		default:
			c.l = l
		}
	}
}

// through gives out the whole lines from c to the end of the file.
func (c *cursor) through() error {
	c.l.seek(c.l.at)
	for {
		line, at, err := c.l.next()
		if err == io.EOF {
			c.l.at = at // what is unfinished is read again when it is not
			return c.shrunk(at)
		} else if err != nil {
			return err
		}
		h, err := parseHeader(line)
		if err != nil {
			c.unreadable(fmt.Errorf("%s, byte %d: %w", fileName(c.file), at, err))
			continue
		}
		if h.version <= version && !c.filter.wants(&h) {
			continue
		}
		r, err := h.record(line)
		if err != nil {
			c.unreadable(fmt.Errorf("%s, byte %d: %w", fileName(c.file), at, err))
			continue
		}
		if c.filter.matches(r) {
			if err := c.fn(r); err != nil {
				return err
			}
		}
	}
}

func (c *cursor) unreadable(err error) {
	if c.bad.Lines++; c.bad.Lines == 1 {
		c.bad.First = err
	}
}

// shrunk fails when the file ends before at: lines that were given out are gone.
func (c *cursor) shrunk(at int64) error {
	st, err := c.l.f.Stat()
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	if st.Size() < at {
		return fmt.Errorf("%w: %s lost lines while it was read", ErrDamaged, fileName(c.file))
	}
	return nil
}

// watch makes a watcher of dir.
func watch(dir string) (watcher, error) {
	if st, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("follow the ledger: %w", err)
	} else if !st.IsDir() {
		return nil, fmt.Errorf("follow the ledger: %s is not a directory", dir)
	}
	if w, err := newInotify(dir); err == nil {
		return w, nil
	}
	return newTicker(tickEvery), nil
}
