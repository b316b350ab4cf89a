package session

import (
	"errors"
	"fmt"

	"github.com/rewindfs/rewindfs/control"
	rfs "github.com/rewindfs/rewindfs/fs"
	"github.com/rewindfs/rewindfs/fs/transport"
)

// mountFS mounts the branch of s through the kernel.
func mountFS(s *Session) (Mount, error) {
	m, err := rfs.New(s.tree, s.branch, rfs.Options{
		Mountpoint: s.o.Mountpoint, FSName: s.o.Base, CacheMode: rfs.CacheMode(s.o.CacheMode),
		AllowOther: s.o.AllowOther, Debug: s.o.Debug, Logger: s.log, Checkpoints: s, StatfsDir: s.o.Store,
	})
	if err != nil {
		return nil, err
	}
	drifted := m.Drifted
	s.drifted.Store(&drifted)
	return fsMount{m}, nil
}

// fsMount is a fs.Mount with this package's Process.
type fsMount struct{ *rfs.Mount }

func (m fsMount) Busy() []Process {
	var out []Process
	for _, p := range m.Mount.Busy() {
		out = append(out, Process(p))
	}
	return out
}

// mountError says what stands in the way of a mount and what mends it.
func mountError(err error) error {
	var e *transport.MountError
	if !errors.As(err, &e) {
		return fmt.Errorf("mount: %w", err)
	}
	code := control.CodeInternal
	switch e.Problem {
	case transport.BadMountpoint, transport.MountpointDenied:
		code = control.CodeBadPath
	case transport.NoDevice, transport.DeviceDenied, transport.NoHelper, transport.AllowOtherDenied, transport.NotPermitted, transport.TooManyMounts:
		code = control.CodeUnsupported
	}
	return &control.Error{
		Code: code, Message: err.Error() + "; rewindfs doctor tells more",
		Details: map[string]any{"problem": string(e.Problem)},
	}
}
