package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/proctree"
)

// ExitTimedOut is Outcome.ExitCode of a command whose time was up, as timeout(1) has it.
const ExitTimedOut = 124

// DefaultGrace is how long processes have to end after SIGTERM.
const DefaultGrace = 5 * time.Second

// backendOf gives each kind its backend.
func backendOf(k Kind) (backend, error) {
	switch k {
	case None:
		return none{}, nil
	case Local:
		return local{}, nil
	case NS:
		return ns{}, nil
	case Docker:
		return newDocker(), nil
	}
	return nil, &Error{ExitCode: ExitSandbox, Err: fmt.Errorf("there is no sandbox %q", k), Do: "use none, local, ns or docker"}
}

// alone is held while a command runs: this process adopts orphans meanwhile, and could not tell whose they are.
var alone sync.Mutex

// Run runs s and waits for its end: the terminal, signals to this process, and the exit code pass through. An *Error
// says that nothing of the command ran. When ctx ends, all its processes are ended, as they are when the time is up; its
// error comes with the Outcome then. What a command leaves running otherwise stays. Commands run one at a time in
// a process, which starts no other children meanwhile.
func Run(ctx context.Context, s Spec) (Outcome, error) {
	if len(s.Argv) == 0 {
		return Outcome{}, &Error{ExitCode: ExitNotFound, Err: errors.New("there is no command to run")}
	}
	b, err := backendOf(s.Kind)
	if err != nil {
		return Outcome{}, err
	}
	return s.run(ctx, b)
}

func (s Spec) run(ctx context.Context, b backend) (Outcome, error) {
	alone.Lock()
	defer alone.Unlock()
	if err := ctx.Err(); err != nil {
		return Outcome{}, err
	}
	if s.Grace == 0 {
		s.Grace = DefaultGrace
	}
	if fi, err := os.Stat(s.Project); s.Project != s.Mount && (err != nil || !fi.IsDir()) {
		return Outcome{}, &Error{ExitCode: ExitSandbox, Err: fmt.Errorf("the project's directory %s is not there any more", s.Project), Do: "put it back, or run the command in the mount: cd " + s.Mount}
	}
	done, err := proctree.Adopt()
	if err != nil {
		return Outcome{}, &Error{ExitCode: ExitSandbox, Err: err}
	}
	defer done()
	w := &watcher{tree: treeOf(b), states: make(chan change), signals: make(chan os.Signal, 16)}
	defer w.tree.Close()
	w.listen()
	defer signal.Stop(w.signals)
	w.term = openTerminal()
	defer w.term.close()
	began := time.Now()
	err = proctree.StartBy(w.tree, func(prepare func(*exec.Cmd)) (int, error) {
		var err error
		if w.cmd, err = b.start(&s, prepare); err != nil {
			return 0, err
		}
		return w.cmd.cmd.Process.Pid, nil
	})
	if err != nil {
		return Outcome{}, err
	}
	w.passEarly()
	go w.follow()
	out := Outcome{Notes: w.cmd.notes}
	err = w.wait(ctx, &s, &out)
	out.Duration = time.Since(began)
	if failed := w.end(&out); err == nil {
		err = failed
	}
	return out, err
}

// treeOf is what finds the processes of a command of this backend.
func treeOf(b backend) proctree.Tree {
	if a, ok := b.(awayBackend); ok {
		return a.tree()
	}
	return proctree.ByDescent()
}

// watcher watches over one command.
type watcher struct {
	cmd     *running
	tree    proctree.Tree
	term    *terminal
	signals chan os.Signal
	states  chan change
	stuck   []int // what could not be ended
}

// change is a change of the state of a child.
type change int

const (
	ended   change = iota // it is still to be reaped
	stopped               // by a signal
)

// caught are signals that are for the command, not for us.
var caught = []os.Signal{
	syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGCONT,
}

// listen has signals come to w. Those that whoever started us wants ignored, as nohup does, stay so, for the command too.
func (w *watcher) listen() {
	for _, sig := range caught {
		if !signal.Ignored(sig) {
			signal.Notify(w.signals, sig)
		}
	}
}

// follow tells what happens to the command until it has ended. It does not reap it: until that is done, its pid is no other's.
func (w *watcher) follow() {
	pid := w.cmd.cmd.Process.Pid
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err == nil && info.Code == cldStopped:
			// Told once. Where it goes on by now there is nothing to be taken, which is as well.
			_ = unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOHANG, nil)
			w.states <- stopped
		default:
			w.states <- ended
			return
		}
	}
}

// cldStopped is CLD_STOPPED of sigaction(2).
const cldStopped = 5

// wait waits for the end of the command. When its time is up, or ctx ends, it ends all its processes.
func (w *watcher) wait(ctx context.Context, s *Spec, out *Outcome) error {
	late := make(<-chan time.Time)
	if s.Timeout > 0 {
		timer := time.NewTimer(s.Timeout)
		defer timer.Stop()
		late = timer.C
	}
	done := ctx.Done()
	for {
		select {
		case st := <-w.states:
			if st == ended {
				return ctx.Err()
			}
			w.suspend()
		case sig := <-w.signals:
			w.pass(sig)
		case <-late:
			out.TimedOut = true
			w.stopAll(s.Grace)
			return nil
		case <-done:
			w.stopAll(s.Grace)
			return ctx.Err()
		}
	}
}

// suspend stops this process, because the command was stopped.
func (w *watcher) suspend() {
	if !w.term.suspend(w.cmd.cmd.Process.Pid, w.cmd.stand) {
		return
	}
	// What stopped the command may have been sent to us as well, and is not to stop it again.
	for {
		select {
		case sig := <-w.signals:
			if sig != syscall.SIGTSTP {
				w.pass(sig)
			}
		default:
			return
		}
	}
}

// stopAll ends all processes of the command, and waits for that.
func (w *watcher) stopAll(grace time.Duration) {
	go func() {
		for <-w.states != ended { // nobody acts on it any more
		}
	}()
	_, w.stuck = proctree.Stop(w.tree, grace)
	if w.cmd.away != nil {
		w.cmd.away.settle()
	}
}

// pass sends a signal that came to us on to the command. It is in our process group, so what the terminal sends, it has
// got already.
func (w *watcher) pass(sig os.Signal) {
	switch sig {
	case syscall.SIGTTIN, syscall.SIGTTOU:
		return
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP:
		if w.term.ours() && (w.cmd.away == nil || sig == syscall.SIGTSTP) {
			return
		}
	case syscall.SIGCONT:
		// A shell that lets a job go on tells all its processes. One that is stopped again by now is not to go on.
		if w.term.ours() || !proctree.Stopped(w.cmd.cmd.Process.Pid) {
			return
		}
	}
	if sig, ok := sig.(syscall.Signal); ok {
		w.cmd.signal(sig)
	}
}

// passEarly passes on what came while the command was being started: a key that was typed then has reached no command.
func (w *watcher) passEarly() {
	for {
		select {
		case sig := <-w.signals:
			if key := sig == syscall.SIGINT || sig == syscall.SIGQUIT || sig == syscall.SIGTSTP; key && w.cmd.away == nil {
				w.cmd.signal(sig.(syscall.Signal))
			} else {
				w.pass(sig)
			}
		default:
			return
		}
	}
}

// end reaps the command and says how it ended. The error is that it turns out not to have run.
func (w *watcher) end(out *Outcome) error {
	status := syscall.WaitStatus(syscall.SIGKILL) // of one that is stuck in the kernel in spite of it
	if !slices.Contains(w.stuck, w.cmd.cmd.Process.Pid) {
		// Its exit code is no error; whatever else went wrong, the state says.
		_ = w.cmd.cmd.Wait()
		status, _ = w.cmd.cmd.ProcessState.Sys().(syscall.WaitStatus)
		status = w.cmd.status(status)
	}
	if w.cmd.away != nil {
		w.cmd.away.finish()
	}
	out.Left = w.tree.Members()
	out.Refused = w.cmd.stop()
	switch {
	case out.TimedOut:
		out.ExitCode = ExitTimedOut
	case status.Signaled():
		out.ExitCode = 128 + int(status.Signal())
	default:
		out.ExitCode = status.ExitStatus()
	}
	if status.Signaled() {
		out.Signal = unix.SignalName(status.Signal())
	}
	w.term.restore(status.Signaled(), out.Left)
	if w.cmd.away != nil && !out.TimedOut && status.Exited() {
		return w.cmd.away.verdict(status.ExitStatus())
	}
	return nil
}
