package mountdiff

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/fsops"
	"github.com/rewindfs/rewindfs/internal/fstree"
	"github.com/rewindfs/rewindfs/internal/mounttest"
)

// subject is a mount as twin.Subject. A reference is a checkpoint's label.
type subject struct {
	*fsops.Dir
	m     *mounttest.Mount
	label string // prefix of this sequence's labels
	// writeback: the kernel owns size and times of the files it knows, and shows
	// old descriptors what it has. Paths are right all the same.
	writeback bool
	n         int
	steps     int    // that undo could go before this sequence
	left, to  string // of the last movement: layers
}

// newSubject takes a mount that shows its base.
func newSubject(m *mounttest.Mount, label string) (*subject, error) {
	return newSubjectAt(m, label, "base")
}

// newSubjectAt takes a mount that shows the checkpoint ref.
func newSubjectAt(m *mounttest.Mount, label, ref string) (*subject, error) {
	// A rollback of something ends what redo could lead to.
	m.OK("write", "file", "x")
	m.Rollback(ref)
	d, err := fsops.NewDir(m.Dir)
	s := &subject{Dir: d, m: m, label: label}
	s.steps = s.undoSteps()
	s.learn()
	return s, err
}

func (s *subject) undoSteps() int {
	var st struct{ Undo int }
	s.m.JSON(&st, "status")
	return st.Undo
}

// learn asks what the last movement was.
func (s *subject) learn() {
	var log struct {
		Ops []struct {
			From, To uint64
			Same     *uint64
		}
	}
	s.m.JSON(&log, "log", "--ops", "--limit", "1")
	op := log.Ops[0]
	if op.Same != nil {
		op.From = *op.Same
	}
	s.left, s.to = fmt.Sprint(op.From), fmt.Sprint(op.To)
}

// Moved implements twin.Subject.
func (s *subject) Moved() (left, to string) { return s.left, s.to }

// Tree implements twin.Subject.
func (s *subject) Tree() (*fstree.Tree, error) { return scan(s.m.Dir) }

// scan leaves the device number out, which each mount has anew.
func scan(dir string) (*fstree.Tree, error) {
	t, err := fstree.Scan(dir)
	if err != nil {
		return nil, err
	}
	dev := t.Entries["."].Dev
	for _, e := range t.Entries {
		if e.Dev != dev && e.Err == "" {
			e.Err = fmt.Sprintf("is on device %d, the root on %d", e.Dev, dev)
		}
		e.Dev = 0
	}
	return t, nil
}

func (s *subject) cli(args ...string) error {
	if r := s.m.Run(args...); r.Code != 0 {
		return errors.New(r.String())
	}
	return nil
}

// Seal implements twin.Subject.
func (s *subject) Seal() (string, error) {
	s.n++
	ref := fmt.Sprintf("%s-%d", s.label, s.n)
	err := s.cli("checkpoint", ref)
	s.learn()
	return ref, err
}

// Move implements twin.Subject. What was left has no name of its own.
func (s *subject) Move(ref string) (string, bool, error) {
	r := s.m.Run("--json", "rollback", ref)
	if r.Code != 0 {
		return "", false, errors.New(r.String())
	}
	var data struct{ Noop bool }
	err := r.Data(&data)
	s.learn()
	return "", !data.Noop, err
}

// Undo implements twin.Subject. Where a sequence before this one was is of no concern.
func (s *subject) Undo() (bool, error) {
	if s.undoSteps() == s.steps {
		return false, nil
	}
	return s.walk("undo")
}

// Redo implements twin.Subject.
func (s *subject) Redo() (bool, error) { return s.walk("redo") }

func (s *subject) walk(verb string) (bool, error) {
	r := s.m.Run(verb, "--json")
	if r.Code == 1 && strings.Contains(r.Stdout, "nothing_to_undo") {
		return false, nil
	}
	s.learn()
	if r.Code != 0 {
		return false, errors.New(r.String())
	}
	return true, nil
}

// Reopen implements twin.Subject.
func (s *subject) Reopen() error {
	s.Dir.Close()
	s.m.Remount()
	var err error
	s.Dir, err = fsops.NewDir(s.m.Dir)
	return err
}

// At implements twin.Subject.
func (s *subject) At(ref string) (*fstree.Tree, error) {
	return scan(s.m.Path(".rewind", "checkpoints", ref))
}

// HeldProblems implements twin.Subject. A file that was held over a rollback
// shows what the tree has under its inode number, or it is stale or an orphan.
func (s *subject) HeldProblems(now *fstree.Tree) []string {
	if s.writeback {
		return nil
	}
	byIno := map[uint64]*fstree.Entry{}
	for _, e := range now.Entries {
		byIno[e.Ino] = e
	}
	var out []string
	for slot := range fsops.Slots {
		if fd := s.HeldFile(slot); fd >= 0 {
			if p := fileProblem(fd, byIno); p != "" {
				out = append(out, p)
			}
		}
		if ino := s.HeldMap(slot); ino != 0 {
			if p := s.mapProblem(slot, byIno[ino]); p != "" {
				out = append(out, p)
			}
		}
	}
	return out
}

func fileProblem(fd int, byIno map[uint64]*fstree.Entry) string {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if errors.Is(err, unix.ESTALE) {
		// Which inode it was is not known any more; if it were in the tree,
		// a descriptor of it would work.
		return ""
	}
	if err != nil {
		return fmt.Sprintf("fstat of a held file: %v", err)
	}
	want := byIno[st.Ino]
	if want == nil {
		if st.Nlink != 0 {
			return fmt.Sprintf("held inode %d has no name after the rollback, but link count %d", st.Ino, st.Nlink)
		}
		return ""
	}
	p := make([]byte, want.Size+1)
	f := os.NewFile(uintptr(mustDup(fd)), want.Path)
	defer f.Close()
	n, err := f.ReadAt(p, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Sprintf("read %q through a held descriptor: %v", want.Path, err)
	}
	got := fstree.HashBytes(p[:n])
	mtime := fstree.Time{Sec: st.Mtim.Sec, Nsec: st.Mtim.Nsec}
	ctime := fstree.Time{Sec: st.Ctim.Sec, Nsec: st.Ctim.Nsec}
	if got != want.Hash || st.Size != want.Size || st.Mode != want.Mode || uint64(st.Nlink) != want.Nlink || mtime != want.Mtime || ctime != want.Ctime {
		return fmt.Sprintf("%q through a held descriptor: size %d mode %o nlink %d mtime %v ctime %v content %s; at the checkpoint: size %d mode %o nlink %d mtime %v ctime %v content %s",
			want.Path, st.Size, st.Mode, st.Nlink, mtime, ctime, got, want.Size, want.Mode, want.Nlink, want.Mtime, want.Ctime, want.Hash)
	}
	return ""
}

func mustDup(fd int) int {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	return n
}

// mapProblem compares what a mapping shows with the file. SIGBUS (EFAULT here)
// is right for what is gone, and behind the end.
func (s *subject) mapProblem(slot int, want *fstree.Entry) string {
	if want == nil || want.Size == 0 {
		return ""
	}
	n := min(want.Size, fsops.MapLen)
	shown := s.Do(fsops.Op{Kind: fsops.MRead, Slot: slot, Len: n})
	read := s.Do(fsops.Op{Kind: fsops.Read, Path: want.Path, Len: n})
	if shown.Errno == unix.EFAULT {
		return ""
	}
	if shown.Errno != 0 || read.Errno != 0 || shown.Data != read.Data {
		return fmt.Sprintf("a held mapping of %q shows %v, the file is %v", want.Path, shown, read)
	}
	return ""
}
