package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/layers"
)

// pieceSize is how much of a file is held in memory at a time.
const pieceSize = 1 << 20

// newFileMode is the mode of files that a write through the API makes.
const newFileMode = 0o644

// readFile answers with the content of a file, as it is or as it was at a checkpoint.
func (s *Session) readFile(w http.ResponseWriter, r *http.Request) error {
	path, err := pathOf(r)
	if err != nil {
		return err
	}
	view, done, err := s.viewOf(r)
	if err != nil {
		return err
	}
	defer done()
	wk := &walker{v: view}
	defer wk.release()
	p, err := wk.file(path)
	if err != nil {
		return err
	}
	// Read before the header goes out, so that what fails at once is an answer.
	buf := make([]byte, min(pieceSize, max(p.attr.Size, 1)))
	n, err := view.ReadAt(p.attr.Ino, buf, 0)
	if err != nil {
		return pathError(path, err)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(p.attr.Size, 10))
	for off := int64(0); off < p.attr.Size; {
		if n == 0 {
			return fmt.Errorf("%s became shorter while it was read", quotePath(path))
		}
		piece := buf[:min(int64(n), p.attr.Size-off)]
		if _, err := w.Write(piece); err != nil {
			return fmt.Errorf("send %s: %w", quotePath(path), err)
		}
		off += int64(len(piece))
		if off == p.attr.Size {
			break
		}
		if n, err = view.ReadAt(p.attr.Ino, buf, off); err != nil {
			return fmt.Errorf("read %s: %w", quotePath(path), err)
		}
	}
	return nil
}

// viewOf returns the view that the request asks for.
func (s *Session) viewOf(r *http.Request) (*layers.View, func(), error) {
	ref := r.URL.Query().Get("ref")
	if ref == "" {
		if err := s.barrier(r.Context()); err != nil {
			return nil, nil, apiError(err)
		}
		return &s.branch.View, func() {}, nil
	}
	t, err := s.resolveAnywhere(ref)
	if err != nil {
		return nil, nil, err
	}
	v, err := s.branch.At(layers.Layer(t.Layer))
	if err != nil {
		return nil, nil, apiError(fmt.Errorf("look at %s: %w", t.Name(), err))
	}
	return v, v.Close, nil
}

func pathOf(r *http.Request) (string, error) {
	p, err := control.PathQuery(r)
	if err != nil {
		return "", err
	}
	if p, err = cleanPath(p); err != nil {
		return "", err
	}
	if p == "" {
		return "", badPath("the path is empty: name a file, relative to the root of the session")
	}
	return p, nil
}

// writeFile makes a file hold the body of the request. The body is first stored
// aside; the file gets it only when all has come and there was room.
func (s *Session) writeFile(w http.ResponseWriter, r *http.Request) error {
	if err := s.alive(); err != nil {
		return err
	}
	path, err := pathOf(r)
	if err != nil {
		return err
	}
	peer, err := control.PeerOf(r.Context())
	if err != nil {
		return fmt.Errorf("who writes %s: %w", quotePath(path), err)
	}
	if err := s.barrier(r.Context()); err != nil {
		return apiError(err)
	}
	wk := &walker{v: &s.branch.View}
	defer wk.release()
	p, err := wk.find(path)
	if err != nil {
		return err
	}
	if p.exists {
		if err := regular(path, p.attr.Mode); err != nil {
			return err
		}
	}
	aside, size, err := s.stage(wk, r.Body)
	if err != nil {
		return pathError(path, err)
	}
	names, err := s.place(wk, &p, layers.Cred{UID: peer.UID, GID: peer.GID})
	if err != nil {
		return pathError(path, err)
	}
	s.mount.Changing(p.attr.Ino)
	if err := s.fill(aside, p.attr, size); err != nil {
		return pathError(path, err)
	}
	if err := s.mount.Changed(p.attr.Ino, names); err != nil {
		return fmt.Errorf("%s is written, but the kernel may show its old content for a while: %w", quotePath(path), err)
	}
	s.log.Info("file written through the API", "path", path, "bytes", size, "pid", peer.PID, "uid", peer.UID)
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(control.FileWritten{Size: size})
}

// stage stores what body gives in an inode without a name.
func (s *Session) stage(wk *walker, body io.Reader) (layers.Ino, int64, error) {
	a, err := s.branch.Tmpfile(layers.RootIno, 0o600, layers.Cred{})
	if err != nil {
		return 0, 0, err
	}
	wk.held = append(wk.held, a.Ino)
	buf := make([]byte, pieceSize)
	for off := int64(0); ; {
		n, err := io.ReadFull(body, buf)
		if n > 0 {
			if _, err := s.branch.Write(a.Ino, buf[:n], off, layers.WriteFlags{}); err != nil {
				return 0, 0, err
			}
			off += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return a.Ino, off, nil
		case err != nil:
			return 0, 0, fmt.Errorf("receive the content: %w", err)
		}
	}
}

// place makes the file p when it is not there, and returns its new name.
func (s *Session) place(wk *walker, p *place, owner layers.Cred) ([]layers.NameKey, error) {
	if p.exists {
		return nil, nil
	}
	dir, err := s.branch.Getattr(p.dir)
	if err != nil {
		return nil, err
	}
	if dir.Mode&unix.S_ISGID != 0 {
		owner.GID = dir.GID
	}
	a, err := s.branch.Mknod(p.dir, p.name, unix.S_IFREG|newFileMode, 0, owner)
	if err != nil {
		return nil, err
	}
	wk.held = append(wk.held, a.Ino)
	p.exists, p.attr = true, a
	return []layers.NameKey{{Dir: p.dir, Name: p.name}}, nil
}

// fill makes file hold the size bytes of aside: its extents are shared, nothing is copied.
func (s *Session) fill(aside layers.Ino, file layers.Attr, size int64) error {
	for off := int64(0); off < size; {
		n, err := s.branch.CopyRange(aside, off, file.Ino, off, size-off, true)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		off += n
	}
	_, err := s.branch.Setattr(file.Ino, layers.SetAttr{Size: &size, KillPriv: true})
	return err
}
