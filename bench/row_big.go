package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// bigSize is the size of the large file.
func bigSize(quick bool) int64 {
	if quick {
		return 256 << 20
	}
	return 1 << 30
}

// throughput is the bar for sequential work: at least 0.7 of the native speed.
func throughput() []Limit { return []Limit{atMost(1/0.7, Native)} }

// writeBig writes a large file that was not there.
type writeBig struct {
	onEmpty
	quick, sync bool
}

func (w writeBig) Spec() Spec {
	s := Spec{ID: "write-big", Title: "write " + formatBytes(float64(bigSize(w.quick))), Writes: true, Warm: 1,
		Room: 6 * bigSize(w.quick), Limits: throughput(), Note: "In pieces of 1 MiB, incompressible, no two alike."}
	if w.sync {
		s.ID, s.Title = "write-big-fsync", s.Title+" and fsync"
	}
	return s
}

func (w writeBig) Run(ctx context.Context, p *Place) error {
	return writeNoise(ctx, filepath.Join(p.Root, "big"), bigSize(w.quick), uint64(p.Round), w.sync)
}

func (writeBig) After(_ context.Context, p *Place) error {
	return removeAll(filepath.Join(p.Root, "big"))
}

// writeNoise makes a file of size incompressible bytes.
func writeNoise(ctx context.Context, name string, size int64, seed uint64, sync bool) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("write a large file: %w", err)
	}
	defer func() { err = firstError(err, f.Close()) }()
	z := newNoise(seed)
	buf := make([]byte, 1<<20)
	for left := size; left > 0; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		b := buf[:min(left, int64(len(buf)))]
		z.fill(b)
		if _, err := f.Write(b); err != nil {
			return fmt.Errorf("write a large file: %w", err)
		}
		left -= int64(len(b))
	}
	if sync {
		if err := f.Sync(); err != nil {
			return fmt.Errorf("fsync a large file: %w", err)
		}
	}
	return nil
}

// onBig is for rows over a base with one large file, called big.
type onBig struct{ quick bool }

func (b onBig) Base(ctx context.Context, e *Env) (*fixture, error) {
	return e.Fixture(ctx, "large-file", func(ctx context.Context, dir string) error {
		if err := e.Room(4 * bigSize(b.quick)); err != nil {
			return err
		}
		return writeNoise(ctx, filepath.Join(dir, "big"), bigSize(b.quick), 99, true)
	})
}

// readBig reads a large file of the base.
type readBig struct {
	onBig
	cold bool
}

func (r readBig) Spec() Spec {
	s := Spec{ID: "read-big", Title: "read " + formatBytes(float64(bigSize(r.quick))) + ", warm", Warm: 2, Limits: throughput()}
	if r.cold {
		s.ID, s.Title, s.Cold, s.Warm = "read-big-cold", "read "+formatBytes(float64(bigSize(r.quick)))+", cold", true, 0
	}
	return s
}

func (readBig) Run(_ context.Context, p *Place) error {
	_, err := readFile(filepath.Join(p.Root, "big"), make([]byte, 1<<20))
	return err
}

// readOwn reads a large file that was written in the mount: for rewindfs, out of its store.
type readOwn struct {
	onEmpty
	quick bool
}

func (r readOwn) Spec() Spec {
	return Spec{ID: "read-own-cold", Title: "read " + formatBytes(float64(bigSize(r.quick))) + " written in the mount, cold", Writes: true,
		Cold: true, Room: 6 * bigSize(r.quick), Limits: throughput()}
}

func (r readOwn) Before(ctx context.Context, p *Place) error {
	name := filepath.Join(p.Root, "own")
	if _, err := os.Stat(name); err == nil {
		return nil
	}
	return writeNoise(ctx, name, bigSize(r.quick), 5, true)
}

func (readOwn) Run(_ context.Context, p *Place) error {
	_, err := readFile(filepath.Join(p.Root, "own"), make([]byte, 1<<20))
	return err
}

// oneByte changes one byte in the middle of a large file of the base.
type oneByte struct{ onBig }

func (o oneByte) Spec() Spec {
	return Spec{ID: "one-byte", Title: "change 1 byte of a " + formatBytes(float64(bigSize(o.quick))) + " base file", Writes: true, Fresh: true, Stored: true,
		Room: 4 * bigSize(o.quick), Limits: []Limit{within(5e-3), storing(256 << 10)},
		Note: "Open, write, close, on a new mount every time. Stored: what the disk holds more, at rest."}
}

func (o oneByte) Run(_ context.Context, p *Place) error {
	f, err := os.OpenFile(filepath.Join(p.Root, "big"), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("change one byte: %w", err)
	}
	_, err = f.WriteAt([]byte{byte(p.Round)}, bigSize(o.quick)/2+17)
	if err := firstError(err, f.Close()); err != nil {
		return fmt.Errorf("change one byte: %w", err)
	}
	return nil
}

// renameDir renames a directory of the base.
type renameDir struct{ files int }

func (r renameDir) Spec() Spec {
	s := Spec{ID: fmt.Sprintf("rename-%d", r.files), Title: fmt.Sprintf("rename a base directory of %s files", formatCount(r.files)),
		Writes: true, Fresh: true, Limits: []Limit{within(2e-3)}}
	return s
}

func (r renameDir) Base(ctx context.Context, e *Env) (*fixture, error) {
	return e.Fixture(ctx, fmt.Sprintf("dir-%d", r.files), func(ctx context.Context, dir string) error {
		return generateTree(ctx, filepath.Join(dir, "old"), treeShape{Files: r.files, Bytes: int64(r.files) * 200, Seed: 11}, func(int) {})
	})
}

// Before looks the directory up, as whoever renames it has.
func (r renameDir) Before(_ context.Context, p *Place) error {
	_, err := os.Stat(filepath.Join(p.Root, "old"))
	return err
}

// Run renames the directory; where that is refused as a move to another device, it
// does what mv(1) would.
func (r renameDir) Run(ctx context.Context, p *Place) error {
	from, to := filepath.Join(p.Root, "old"), filepath.Join(p.Root, "new")
	err := unix.Rename(from, to)
	if err == unix.EXDEV {
		p.Note = "copied: rename says EXDEV"
		return command{args: []string{"mv", from, to}}.run(ctx)
	}
	if err != nil {
		return fmt.Errorf("rename the directory: %w", err)
	}
	return nil
}

// After takes the name back, for the native copy, which is used again.
func (r renameDir) After(_ context.Context, p *Place) error {
	if p.System != Native {
		return nil
	}
	return unix.Rename(filepath.Join(p.Root, "new"), filepath.Join(p.Root, "old"))
}
