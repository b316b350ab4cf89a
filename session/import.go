package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/archive"
	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/memory"
)

// An import goes through three places. The archive is first put down whole in the store's directory, in a file
// without a name, and checked. Then it is built on a branch that only the importer knows of (staged): if that fails, the branch
// is dropped, and what was stored is swept. Last, one batch gives the branch its name, its checkpoints and its
// conversations. A kill in between leaves a staged branch, which the next start drops.

// stagedPrefix begins the names of staged branches. Nobody can give a branch such a name.
const stagedPrefix = "\x01import "

func isStaged(branch string) bool { return strings.HasPrefix(branch, stagedPrefix) }

// importArchive takes an archive, which becomes a branch.
func (s *Session) importArchive(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	name := q.Get("name")
	if err := checkBranch(name); err != nil {
		return err
	}
	at, err := control.PathName{Path: q.Get("mountpoint"), PathB64: q.Get("mountpoint_b64")}.Bytes()
	if err != nil {
		return badRequest("the mount point is not base64: %v", err)
	}
	done, err := s.stay()
	if err != nil {
		return err
	}
	defer done()
	if err := s.nameFree(name); err != nil {
		return err
	}
	file, err := s.putDown(r.Body)
	if err != nil {
		return apiError(fmt.Errorf("take in the archive: %w", err))
	}
	defer file.Close()
	out, err := s.importFile(r.Context(), file, name, at)
	if err != nil {
		return importError(err)
	}
	return answerJSON(w, out)
}

// stay has the end of the daemon wait for a call, which must end soon once its connection is closed, or the session is
// no longer alive. Call done at its end.
func (s *Session) stay() (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.living(); err != nil {
		return nil, err
	}
	s.background.Add(1)
	return s.background.Done, nil
}

// nameFree refuses the name of a branch that there is.
func (s *Session) nameFree(branch string) error {
	has, err := s.hasBranch(branch)
	if err != nil {
		return apiError(err)
	}
	if has {
		return conflict("there is a branch %q already: import under another name, with --branch", branch)
	}
	return nil
}

// nameless makes a file in dir that has no name.
func nameless(dir string) (*os.File, error) {
	file, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return file, err
	}
	if file, err = os.CreateTemp(dir, "import-*"); err != nil { // a file system that has no such files
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// putDown stores what from gives in a file of the store that has no name, so that nothing is left of it whatever happens.
func (s *Session) putDown(from io.Reader) (*os.File, error) {
	file, err := nameless(s.o.Store)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, pieceSize)
	for n := 0; err == nil; {
		n, err = io.ReadFull(from, buf)
		if n > 0 {
			_, werr := file.Write(buf[:n])
			err = firstOf(werr, s.db.CheckSpace(pieceSize), s.alive(), err)
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func importError(err error) error {
	var other *archive.BaseError
	switch {
	case errors.Is(err, context.Canceled):
		return &control.Error{Code: control.CodeGone, Message: "given up by who asked; nothing was imported"}
	case errors.As(err, &other):
		paths := make([]map[string]any, 0, len(other.Paths))
		for _, p := range other.Paths {
			name := control.NameOf(p.Path)
			at := map[string]any{"path": name.Path, "why": p.Why}
			if name.PathB64 != "" {
				at["path_b64"] = name.PathB64
			}
			paths = append(paths, at)
		}
		return &control.Error{
			Code:    control.CodeConflict,
			Message: other.Error() + "; nothing was imported (an archive that was exported with --with-base needs no base)",
			Details: map[string]any{"total": other.Total, "paths": paths},
		}
	case errors.Is(err, archive.ErrNewer):
		return &control.Error{Code: control.CodeUnsupported, Message: err.Error() + "; nothing was imported"}
	case errors.Is(err, archive.ErrBad):
		return &control.Error{Code: control.CodeBadArchive, Message: err.Error() + "; nothing was imported"}
	}
	return apiError(err)
}

func (s *Session) importFile(ctx context.Context, file *os.File, name, at string) (*control.Imported, error) {
	limits, err := s.importLimits()
	if err != nil {
		return nil, err
	}
	_, have, err := archive.Check(file, limits)
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the archive again: %w", err)
	}
	b, err := s.stageBranch()
	if err != nil {
		return nil, err
	}
	m := &importing{s: s, ctx: ctx, branch: b}
	out, err := m.run(file, name, at)
	if err != nil {
		s.dropStaged(b)
		return nil, err
	}
	out.Objects, out.Bytes, out.Messages = have.Objects, have.Bytes, have.Messages
	return out, nil
}

// objectBytes is what an object without content takes in the store, at the least.
const objectBytes = 256

// importLimits are bounds on what an archive may hold: there must be room for it.
func (s *Session) importLimits() (archive.Limits, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.o.Store, &st); err != nil {
		return archive.Limits{}, fmt.Errorf("look at the room in %s: %w", s.o.Store, err)
	}
	room := max(1, int64(st.Bavail)*st.Bsize)
	return archive.Limits{Bytes: room, Objects: max(1, room/objectBytes)}, nil
}

// stageBranch makes a branch that only the importer knows of, on the base as it is now.
func (s *Session) stageBranch() (*layers.Branch, error) {
	s.layering.Lock()
	defer s.layering.Unlock()
	b, err := s.tree.Fork(fmt.Sprintf("%s%d", stagedPrefix, s.stagings.Add(1)), layers.BaseLayer, nil)
	if err != nil {
		return nil, fmt.Errorf("make room for the import: %w", err)
	}
	s.staged[b] = struct{}{}
	return b, nil
}

// dropStaged removes a staged branch with all that was stored for it.
func (s *Session) dropStaged(b *layers.Branch) {
	s.layering.Lock()
	delete(s.staged, b)
	_, err := b.Drop(nil)
	s.layering.Unlock()
	if err != nil {
		s.log.Warn("what an import left will be removed at the next start", "error", err)
		return
	}
	if s.alive() == nil { // else the next start does it
		s.sweepDropped(context.Background())
	}
}

// dropOldStaged removes what imports left that the last daemon did not finish.
func (s *Session) dropOldStaged() error {
	heads, err := s.tree.Heads()
	if err != nil {
		return err
	}
	dropped := false
	for _, h := range heads {
		if !isStaged(h.Branch) {
			continue
		}
		b, err := s.tree.Branch(h.Branch)
		if err == nil {
			_, err = b.Drop(nil)
		}
		if err != nil {
			return fmt.Errorf("remove what an unfinished import left: %w", err)
		}
		s.log.Info("removed what an unfinished import left", "layer", h.Layer)
		dropped = true
	}
	if dropped {
		s.background.Go(func() { s.sweepDropped(context.Background()) })
	}
	return nil
}

// sweepDropped gives back what no checkpoint and no branch needs.
func (s *Session) sweepDropped(ctx context.Context) {
	s.thinning.Lock()
	defer s.thinning.Unlock()
	s.layering.Lock()
	unlock := sync.OnceFunc(s.layering.Unlock)
	defer unlock()
	keep, err := s.needed(nil, false)
	if err == nil {
		_, err = s.tree.Collect(ctx, keep, layers.CollectOptions{Marked: unlock})
	}
	if err == nil {
		_, err = s.tree.Reclaim()
	}
	if err != nil {
		s.log.Warn("free what an import stored", "error", err)
	}
}

// importing is one import at work.
type importing struct {
	s       *Session
	ctx     context.Context
	branch  *layers.Branch // staged
	entries []journal.Entry
	n       int
}

// run builds what the archive holds, and publishes it.
func (m *importing) run(file io.Reader, name, at string) (*control.Imported, error) {
	r, err := archive.NewReader(file, archive.Limits{})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	build := archive.NewBuilder(m.ctx, m.s.tree, m.branch)
	defer build.Close()
	talking := false
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if m.n++; m.n%64 == 0 {
			if err := m.s.alive(); err != nil {
				return nil, err
			}
		}
		switch rec := rec.(type) {
		case *archive.Checkpoint:
			err = m.checkpoint(rec)
		case archive.Link:
			err = m.message(rec)
		case *archive.Counts:
		case archive.Begin:
			if talking = rec.Section == archive.SectionTalk; !talking {
				err = build.Apply(rec)
			}
		default:
			if !talking {
				err = build.Apply(rec)
			}
		}
		if err = firstOf(err, m.ctx.Err()); err != nil {
			return nil, err
		}
	}
	if err := m.checkTalk(); err != nil {
		return nil, err
	}
	build.Close()
	return m.publish(name, at)
}

// message stores a message. Nothing names it until the branch is published.
func (m *importing) message(l archive.Link) error {
	_, err := m.s.memory.PutLink(l.Before, int(l.Index), l.Message)
	if errors.Is(err, memory.ErrCorrupt) {
		return fmt.Errorf("%w: %w", archive.ErrBad, err)
	}
	return err
}

// checkTalk finds out whether the conversations that the checkpoints name are there.
func (m *importing) checkTalk() error {
	seen := map[memory.Ref]bool{}
	for i := range m.entries {
		for thread, ref := range threadsOf(m.entries[i].Conversation) {
			if ref.Missing || seen[ref] {
				continue
			}
			seen[ref] = true
			if err := m.s.memory.Has(ref); err != nil {
				return fmt.Errorf("%w: thread %q of checkpoint %d: %w", archive.ErrBad, thread, i+1, err)
			}
		}
	}
	return nil
}
