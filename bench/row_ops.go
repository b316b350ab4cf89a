package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// singleOp repeats one system call, or the few that belong together, to show what
// one of them costs.
type singleOp struct {
	onEmpty
	id, title string
	n         int
	same      bool                          // all runs use the same files: the caches are warm
	prepare   func(dir string, n int) error // may be nil
	op        func(dir string, i int) error
}

func (s singleOp) Spec() Spec {
	return Spec{ID: "op-" + s.id, Title: s.title, Writes: true, Warm: 1, Ops: s.n}
}

func (s singleOp) dir(p *Place) string {
	if s.same {
		return p.nth(s, 0)
	}
	return p.fresh(s)
}

func (s singleOp) Before(_ context.Context, p *Place) error {
	if s.same && p.Round > 0 {
		return nil
	}
	if err := mkdir(s.dir(p)); err != nil || s.prepare == nil {
		return err
	}
	return s.prepare(s.dir(p), s.n)
}

func (s singleOp) Run(ctx context.Context, p *Place) error {
	dir := s.dir(p)
	for i := range s.n {
		if i%256 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := s.op(dir, i); err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
	}
	return nil
}

func opName(dir string, i int) string { return fmt.Sprintf("%s/f%d", dir, i) }

// makeFiles makes n files of 4 KiB.
func makeFiles(dir string, n int) error {
	data := make([]byte, 4096)
	for i := range n {
		if err := createFile(opName(dir, i), data); err != nil {
			return err
		}
	}
	return nil
}

const opFiles = 1000

// singleOps are the operations that show where time goes.
func singleOps() []Workload {
	buf := make([]byte, 4096)
	stat := func(dir string, i int) error {
		var st unix.Stat_t
		return unix.Lstat(opName(dir, i), &st)
	}
	return []Workload{
		singleOp{id: "stat", title: "stat of a file, warm", n: opFiles, same: true, prepare: makeFiles, op: stat},
		singleOp{id: "stat-new", title: "first stat of a file just written", n: opFiles, prepare: makeFiles, op: stat},
		singleOp{id: "read", title: "open, read 4 KiB, close, warm", n: opFiles, same: true, prepare: makeFiles, op: func(dir string, i int) error {
			fd, err := unix.Open(opName(dir, i), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			_, err = unix.Read(fd, buf)
			return firstError(err, unix.Close(fd))
		}},
		singleOp{id: "create", title: "create, write 4 KiB, close", n: opFiles, op: func(dir string, i int) error {
			return createFile(opName(dir, i), buf)
		}},
		singleOp{id: "overwrite", title: "open, write 4 KiB, close", n: opFiles, prepare: makeFiles, op: func(dir string, i int) error {
			fd, err := unix.Open(opName(dir, i), unix.O_WRONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			_, err = unix.Write(fd, buf)
			return firstError(err, unix.Close(fd))
		}},
		appends{},
		singleOp{id: "rename", title: "rename a file", n: opFiles, prepare: makeFiles, op: func(dir string, i int) error {
			return unix.Rename(opName(dir, i), opName(dir, i)+"x")
		}},
	}
}

// deletingOps come after all rows that make files, see Env.discard.
func deletingOps() []Workload {
	return []Workload{
		singleOp{id: "unlink", title: "unlink a file", n: opFiles, prepare: makeFiles, op: func(dir string, i int) error {
			return unix.Unlink(opName(dir, i))
		}},
		singleOp{id: "mkdir", title: "mkdir and rmdir", n: opFiles, op: func(dir string, i int) error {
			return firstError(unix.Mkdir(opName(dir, i), 0o755), unix.Rmdir(opName(dir, i)))
		}},
		remove{},
	}
}

// appends writes to one open file, piece after piece.
type appends struct{ onEmpty }

const appendOps = 4000

func (appends) Spec() Spec {
	return Spec{ID: "op-append", Title: "write 4 KiB to an open file", Writes: true, Warm: 1, Ops: appendOps}
}

func (appends) Run(ctx context.Context, p *Place) (err error) {
	f, err := os.Create(filepath.Join(p.Root, "log"))
	if err != nil {
		return fmt.Errorf("append: %w", err)
	}
	defer func() { err = firstError(err, f.Close()) }()
	buf := make([]byte, 4096)
	z := newNoise(uint64(p.Round))
	for range appendOps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		z.fill(buf)
		if _, err := f.Write(buf); err != nil {
			return fmt.Errorf("append: %w", err)
		}
	}
	return nil
}

func (appends) After(_ context.Context, p *Place) error {
	return removeAll(filepath.Join(p.Root, "log"))
}
