package sandbox

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// launcher starts the process that carries out a plan.
type launcher struct {
	plan    *plan
	spaces  uintptr // the CLONE_NEW… flags
	cgroup  *cgroup // nil for none
	watch   func(listener int) (stop func() []Refusal, stand func(bool))
	prepare func(*exec.Cmd)
}

// launch starts it and waits until it has become the command. Where it could not, the error is a *failure; the cgroup is still there.
func (l *launcher) launch(s *Spec) (*running, error) {
	planR, planW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer planW.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		planR.Close()
		return nil, err
	}
	link := newLink(pair[0])
	planAt, linkAt := inheritable(int(planR.Fd())), inheritable(pair[1])
	planR.Close()
	unix.Close(pair[1])
	cmd := self(InitArg, strconv.Itoa(planAt), strconv.Itoa(linkAt))
	// A nil *os.File must not become an interface that is not nil.
	if s.Stdin != nil {
		cmd.Stdin = s.Stdin
	}
	if s.Stdout != nil {
		cmd.Stdout = s.Stdout
	}
	if s.Stderr != nil {
		cmd.Stderr = s.Stderr
	}
	cmd.SysProcAttr.Cloneflags = l.spaces
	if l.spaces&unix.CLONE_NEWUSER != 0 {
		mapIDs(cmd.SysProcAttr)
	}
	if l.prepare != nil {
		l.prepare(cmd)
	}
	var release func()
	l.plan.Blocked, release = holdKey()
	err = cmd.Start()
	release()
	unix.Close(planAt)
	unix.Close(linkAt)
	if err != nil {
		link.close()
		f := &failure{stageBox, ExitSandbox, fmt.Errorf("start a process: %w", err)}
		if l.spaces != 0 && spacesErrno(err) {
			f.stage = stageSpaces
		}
		return nil, f
	}
	// It does nothing before it has the whole plan: so it is in its cgroup before it has children.
	err = l.cgroup.add(cmd.Process.Pid)
	if err == nil {
		gob.NewEncoder(planW).Encode(l.plan) // if it has ended, the link says why
	}
	planW.Close()
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		link.close()
		return nil, &failure{stageBox, ExitSandbox, err}
	}
	return l.await(cmd, link)
}

// holdKey keeps the key that stops a job from processes that this goroutine starts until release is called: stopped in front of its exec, a
// child would keep us in the middle of fork. blocked is what letGo is to make of the child's signals then; nil if the key comes when it comes.
func holdKey() (blocked *unix.Sigset_t, release func()) {
	var key, was unix.Sigset_t
	bit, word := uint(unix.SIGTSTP)-1, uint(unsafe.Sizeof(key.Val[0])*8)
	key.Val[bit/word] |= 1 << (bit % word)
	runtime.LockOSThread()
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &key, &was); err != nil {
		return nil, runtime.UnlockOSThread
	}
	return &was, func() {
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &was, nil) // it was so before
		runtime.UnlockOSThread()
	}
}

// letGo undoes holdKey in a process that the plan was made for.
func (p *plan) letGo() error {
	if p.Blocked == nil {
		return nil
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, p.Blocked, nil); err != nil {
		return fmt.Errorf("block the signals that were blocked: %w", err)
	}
	return nil
}

// inheritable is a copy of a descriptor that the next child gets, with a number that programs seldom use. -1, where there can be no more
// descriptors, is none to the child. Nothing else starts children meanwhile, see Run.
func inheritable(fd int) int {
	for _, least := range []int{200, 20} { // there may be few
		if copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD, least); err == nil {
			return copied
		}
	}
	return -1
}

// await reads reports until the command runs.
func (l *launcher) await(cmd *exec.Cmd, link *link) (*running, error) {
	run := &running{cmd: cmd, signal: func(sig syscall.Signal) { cmd.Process.Signal(sig) }, status: func(ws syscall.WaitStatus) syscall.WaitStatus { return ws }, stop: func() []Refusal { l.cgroup.remove(); return nil }}
	for {
		r, err := link.readFrom(cmd.Process.Pid)
		if err != nil { // it is the command now, or was ended from outside
			link.close()
			break
		}
		run.notes = append(run.notes, r.Notes...)
		if r.Err != "" {
			link.close()
			cmd.Wait()
			return nil, &failure{r.Stage, r.ExitCode, errors.New(r.Err)}
		}
		if r.Runs {
			run.status = link.follow(cmd.Process.Pid)
			run.signal = func(sig syscall.Signal) { link.signal(cmd.Process.Pid, sig) }
			break
		}
	}
	if link.listener >= 0 && l.watch != nil {
		stop, stand := l.watch(link.listener)
		run.stand = stand
		run.stop = func() []Refusal {
			defer l.cgroup.remove()
			return stop()
		}
	}
	return run, nil
}

// spacesErrno reports whether clone(2) says that it makes no such namespaces: forbidden, bounded, unknown.
func spacesErrno(err error) bool {
	for _, errno := range []error{unix.EPERM, unix.EACCES, unix.ENOSPC, unix.EUSERS, unix.EINVAL, unix.ENOSYS} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// mapIDs maps users and groups to themselves: all that we could become, or only ourselves. So files belong to whom they did, but a
// privileged user has power over the namespace and the files alone, not over the host.
func mapIDs(attr *syscall.SysProcAttr) {
	if os.Geteuid() == 0 {
		uids, gids := idMap("/proc/self/uid_map"), idMap("/proc/self/gid_map")
		if uids != nil && gids != nil {
			attr.UidMappings, attr.GidMappings, attr.GidMappingsEnableSetgroups = uids, gids, true
			return
		}
	}
	// Power over the new namespaces, which other users than root lose at exec; it is given up before the command.
	attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SETPCAP}
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
}

// idMap maps each id to itself that there is in our own user namespace: user_namespaces(7).
func idMap(file string) (ids []syscall.SysProcIDMap) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(raw)) {
		var inside, outside, size int
		if _, err := fmt.Sscan(line, &inside, &outside, &size); err != nil {
			return nil
		}
		ids = append(ids, syscall.SysProcIDMap{ContainerID: inside, HostID: inside, Size: size})
	}
	return ids
}

// userError makes of what launch returned what Run returns.
func userError(err error, kind Kind) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	var f *failure
	if !errors.As(err, &f) {
		return &Error{ExitCode: ExitSandbox, Err: fmt.Errorf("sandbox %s: %w", kind, err)}
	}
	if f.stage == stageCommand {
		return &Error{ExitCode: f.exitCode, Err: f.err}
	}
	return &Error{ExitCode: f.exitCode, Err: fmt.Errorf("sandbox %s: %w", kind, f.err)}
}

// inMount is where a directory of the project is below the mountpoint, for a command that cannot be shown the project at its own path.
func inMount(s *Spec) string {
	if rel, err := filepath.Rel(s.Project, s.Dir); err == nil && within(s.Dir, s.Project) {
		return filepath.Join(s.Mount, rel)
	}
	return s.Dir
}
