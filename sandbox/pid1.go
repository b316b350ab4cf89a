package sandbox

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// father starts the command as a child of this process, the first of its pid namespace, and waits for it; when
// this process ends, the kernel ends all others in the namespace.
func (p *plan) father(path string) (exitCode int, err error) {
	// Nobody in the namespace may look into us: our other threads have not given up anything.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 0, err
	}
	// What is sent to the group reaches the command by itself, and what is for it alone comes over the link: CONT too, for one that is passed
	// on late undoes the next stop. Nothing of it must end us.
	// What is ignored stays ignored in the command.
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	attr := &syscall.ProcAttr{Env: p.Env, Files: []uintptr{0, 1, 2}}
	child, err := syscall.ForkExec(path, p.Argv, attr)
	if err == syscall.ENOEXEC {
		child, err = syscall.ForkExec("/bin/sh", append([]string{"sh", path}, p.Argv[1:]...), attr)
	}
	if err != nil {
		return 0, notExecutable(p.Argv[0], err)
	}
	go passSignals(child)
	tell(report{Runs: true})
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 0, err
		case pid != child: // an orphan
		case ws.Stopped():
			tell(report{Stopped: child})
		default:
			how := int(ws)
			tell(report{Ended: &how})
			if ws.Signaled() {
				return 128 + int(ws.Signal()), nil
			}
			return ws.ExitStatus(), nil
		}
	}
}

// passSignals sends the command what comes over the link, until the other side has ended: then so does the command. Its pid
// is no other's as long as nobody has waited for it, after which this process ends.
func passSignals(child int) {
	buf := make([]byte, 1)
	for {
		n, err := unix.Read(linkFD, buf)
		switch {
		case err == unix.EINTR:
		case err != nil || n == 0:
			unix.Kill(child, unix.SIGKILL)
			return
		default:
			unix.Kill(child, syscall.Signal(buf[0]))
		}
	}
}

// loopbackUp switches the loopback device of a new network namespace on.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return err
	}
	req.SetUint16(req.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}
