package ledger

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// inotify waits for events of a directory.
type inotify struct {
	f   *os.File
	buf [8 << 10]byte
}

func newInotify(dir string) (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch the ledger: %w", err)
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_ONLYDIR); err != nil {
		return nil, fmt.Errorf("watch the ledger: %w", errors.Join(err, unix.Close(fd)))
	}
	return &inotify{f: os.NewFile(uintptr(fd), "inotify")}, nil
}

// wait returns after an event that may mean new lines. One read takes all that have come up by then.
func (w *inotify) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		// The read returns at once. If it cannot be told to, closing is the other way.
		if w.f.SetReadDeadline(time.Unix(1, 0)) != nil {
			w.f.Close()
		}
	})
	defer stop()
	for {
		n, err := w.f.Read(w.buf[:])
		if ctxErr := ctx.Err(); ctxErr != nil {
			return ctxErr
		}
		if err != nil {
			return fmt.Errorf("watch the ledger: %w", err)
		}
		if news, err := events(w.buf[:n]); news || err != nil {
			return err
		}
	}
}

// events reports whether any of the events in b is about a file of lines. The head is written after
// each line, so it would wake us for nothing.
func events(b []byte) (news bool, err error) {
	for len(b) >= unix.SizeofInotifyEvent {
		// struct inotify_event: wd, mask, cookie, length of the name that follows, padded with NUL
		mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		if mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED) != 0 {
			return true, fmt.Errorf("follow the ledger: its directory was removed: %w", fs.ErrNotExist)
		}
		end := min(len(b), unix.SizeofInotifyEvent+size)
		name := string(bytes.TrimRight(b[unix.SizeofInotifyEvent:end], "\x00"))
		news = news || fileNumber(name) > 0 || mask&unix.IN_Q_OVERFLOW != 0
		b = b[end:]
	}
	return news, nil
}

func (w *inotify) close() error { return w.f.Close() }

// tickEvery is how often a ticker looks.
const tickEvery = 250 * time.Millisecond

// ticker is a watcher that looks now and then.
type ticker struct{ t *time.Ticker }

func newTicker(every time.Duration) *ticker { return &ticker{t: time.NewTicker(every)} }

func (w *ticker) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.t.C:
		return nil
	}
}

func (w *ticker) close() error {
	w.t.Stop()
	return nil
}
