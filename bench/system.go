package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A System shows a base directory as one that can be written to.
type System interface {
	Name() string
	// Mount shows f. With writes false the native system may hand out the base
	// itself. A skip error says that the system is not to be had here.
	Mount(ctx context.Context, e *Env, f *fixture, writes bool) (*Mount, error)
}

// Mount is a system at work. Only Root is always set.
type Mount struct {
	Root   string
	pid    int                                  // of the daemon, or 0
	abort  func()                               // breaks the mount, so that whoever waits for it fails
	close  func() error                         // unmounts
	stored func(context.Context) (int64, error) // bytes that the changes take on disk; may end the mount
}

// Close ends the mount. It may be called more than once.
func (m *Mount) Close() error {
	if m == nil || m.close == nil {
		return nil
	}
	return m.close()
}

// Abort breaks the mount.
func (m *Mount) Abort() {
	if m.abort != nil {
		m.abort()
	}
}

// systems are those to compare, native first.
func systems(o Options) []System {
	s := []System{nativeSystem{}, rewindfsSystem{}}
	if o.Writeback {
		s = append(s, rewindfsSystem{writeback: true})
	}
	return append(s, overlaySystem{}, fuseOverlaySystem{})
}

// nativeSystem is the bare directory.
type nativeSystem struct{}

func (nativeSystem) Name() string { return Native }

func (nativeSystem) Mount(ctx context.Context, e *Env, f *fixture, writes bool) (*Mount, error) {
	if !writes {
		return &Mount{Root: f.dir}, nil
	}
	dir, err := e.native(ctx, f)
	if err != nil {
		return nil, err
	}
	return &Mount{Root: dir}, nil
}

// overlayDirs makes the directories that both overlay systems need.
func overlayDirs(e *Env, name string) (dir, upper, work, mnt string, err error) {
	if dir, err = e.Dir(name); err != nil {
		return
	}
	upper, work, mnt = filepath.Join(dir, "upper"), filepath.Join(dir, "work"), filepath.Join(dir, "mnt")
	for _, d := range []string{upper, work, mnt} {
		if err = os.Mkdir(d, 0o755); err != nil {
			return
		}
	}
	return
}

// overlaySystem is the kernel's overlayfs, mounted as mount(8) does by default.
type overlaySystem struct{}

func (overlaySystem) Name() string { return Overlayfs }

func (overlaySystem) Mount(_ context.Context, e *Env, f *fixture, _ bool) (*Mount, error) {
	if !e.Root {
		return nil, skipf("only root can mount it here")
	}
	dir, upper, work, mnt, err := overlayDirs(e, Overlayfs)
	if err != nil {
		return nil, err
	}
	if err := mountOverlay([]string{f.dir}, upper, work, mnt); err != nil {
		return nil, err
	}
	m := &Mount{Root: mnt, stored: func(context.Context) (int64, error) { return diskUsage(upper) }}
	m.close = e.Defer(func() error { return errors.Join(unmount(mnt), e.discard(dir)) })
	return m, nil
}

// mountOverlay mounts the lower directories, uppermost first, under upper.
func mountOverlay(lower []string, upper, work, mnt string) error {
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", strings.Join(lower, ":"), upper, work)
	err := unix.Mount("overlay", mnt, "overlay", 0, opts)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return skipf("the kernel refuses to mount it here: %v", err)
	}
	if err != nil {
		return fmt.Errorf("mount overlayfs on %s: %w", mnt, err)
	}
	return nil
}

// fuseOverlaySystem is fuse-overlayfs with its defaults.
type fuseOverlaySystem struct{}

func (fuseOverlaySystem) Name() string { return FuseOverlayfs }

func (fuseOverlaySystem) Mount(ctx context.Context, e *Env, f *fixture, _ bool) (*Mount, error) {
	if !have(FuseOverlayfs) {
		return nil, skipf("it is not installed (Debian and Ubuntu: apt install fuse-overlayfs)")
	}
	dir, upper, work, mnt, err := overlayDirs(e, FuseOverlayfs)
	if err != nil {
		return nil, err
	}
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", f.dir, upper, work)
	cmd := exec.Command(FuseOverlayfs, "-f", "-o", opts, mnt)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", FuseOverlayfs, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	m := &Mount{Root: mnt, pid: cmd.Process.Pid, abort: func() { forceUnmount(mnt); _ = cmd.Process.Kill() },
		stored: func(context.Context) (int64, error) { return diskUsage(upper) }}
	m.close = e.Defer(func() error {
		err := unmount(mnt)
		waitOrKill(cmd, ended)
		return errors.Join(err, e.discard(dir))
	})
	if err := waitMounted(ctx, mnt, ended); err != nil {
		err = fmt.Errorf("%s: %w%s", FuseOverlayfs, err, tail(log.String()))
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// waitMounted returns when dir is a mount point. ended is told when the daemon is gone.
func waitMounted(ctx context.Context, dir string, ended chan error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		if isMountPoint(dir) {
			tick.Stop()
			return nil
		}
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("the daemon ended before it had mounted %s: %v", dir, err)
		case <-ctx.Done():
			return fmt.Errorf("wait for the mount on %s: %w", dir, ctx.Err())
		case <-tick.C:
		}
	}
}

// waitOrKill waits for a daemon that has been unmounted, but not for ever.
func waitOrKill(cmd *exec.Cmd, ended chan error) {
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		_ = cmd.Process.Kill() // it may just have ended
		<-ended
	}
}
