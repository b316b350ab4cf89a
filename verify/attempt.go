package verify

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/internal/capture"
	"github.com/rewindfs/rewindfs/internal/proctree"
)

// drainWait bounds waiting for the end of the output once all known processes are gone.
const drainWait = time.Second

// groupPrefix begins the names of cgroups of verifiers.
const groupPrefix = "rewindfs-verify-"

// attempt runs the command once. It never returns Pass or Fail unless the command
// ended by itself, in time, with a verdict.
func (s Spec) attempt(ctx context.Context, n int) (a Attempt) {
	a = Attempt{Number: n, Started: time.Now(), Status: Unknown, ExitCode: -1}
	defer func() { a.Duration = time.Since(a.Started) }()
	if err := ctx.Err(); err != nil {
		a.Reason = "the verification was cancelled: " + context.Cause(ctx).Error()
		return a
	}
	p, err := s.start(n)
	if err != nil {
		a.Reason = fmt.Sprintf("the verifier could not be started: %v", err)
		return a
	}
	timer := time.NewTimer(s.Timeout)
	defer timer.Stop()
	var stopped string
	select {
	case <-p.exited:
	case <-timer.C:
		a.TimedOut = true
		stopped = fmt.Sprintf("the verifier gave no verdict within %v and was ended", s.Timeout)
	case <-ctx.Done():
		stopped = "the verification was cancelled: " + context.Cause(ctx).Error()
	}
	a.Tracked = p.tree.Name()
	a.Ended, a.Survivors = proctree.Stop(p.tree, s.Grace)
	state := p.reap()
	whole := p.drain()
	a.Stdout, a.Stderr = p.stdout.Output(), p.stderr.Output()
	if state != nil {
		a.ExitCode = state.ExitCode()
		if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			a.Signal = unix.SignalName(ws.Signal())
		}
	}
	switch {
	case stopped != "":
		a.Reason = stopped
	case a.Signal != "":
		a.Reason = "the verifier was ended by " + a.Signal
	case !whole:
		a.Reason = "a process started by the verifier still holds its stdout open; redirect the output of what runs in the background"
	case a.Stdout.Dropped > 0:
		a.Reason = fmt.Sprintf("stdout had %d bytes, of which %d are kept; a verdict must fit into that", p.stdout.Total(), s.Keep)
	default:
		a.judge()
	}
	return a
}

// judge takes the status from stdout.
func (a *Attempt) judge() {
	v, err := Parse([]byte(a.Stdout.Head + a.Stdout.Tail))
	if err != nil {
		a.Reason = fmt.Sprintf("no verdict: %v (exit code %d)", err, a.ExitCode)
		return
	}
	a.Verdict, a.Status = v, v.Status
	if v.Status == Unknown {
		a.Reason = "the verifier says unknown"
		if v.Summary != "" {
			a.Reason += ": " + v.Summary
		}
	}
}

// process is a running command.
type process struct {
	cmd            *exec.Cmd
	tree           proctree.Tree
	exited         chan struct{}    // closed when the command has ended; it is then still to be reaped
	stdout, stderr *capture.Capture // not to be touched before drain
	pipes          [2]*os.File
	read           [2]chan error // give the end of reading of each pipe, once
}

// start starts the command in a tree of its own.
func (s Spec) start(n int) (*process, error) {
	mark, err := newMark()
	if err != nil {
		return nil, err
	}
	if !s.withoutCgroup {
		if g, err := proctree.NewCgroup(groupPrefix); err == nil {
			p, err := s.startIn(n, mark, g)
			if err == nil {
				return p, nil
			}
			// Old kernels, and sandboxes with a filter on clone3, cannot start a process in a cgroup. Whatever else is wrong shows below.
			g.Close()
		}
	}
	return s.startIn(n, mark, proctree.ByMark(mark))
}

// newMark returns an environment entry that no other process has.
func newMark() (string, error) {
	var nonce [8]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return "", fmt.Errorf("make a mark for the verifier's processes: %w", err)
	}
	return "REWINDFS_VERIFIER_" + hex.EncodeToString(nonce[:]) + "=1", nil
}

func (s Spec) startIn(n int, mark string, b proctree.Tree) (*process, error) {
	argv := s.argv()
	p := &process{
		tree:   b,
		exited: make(chan struct{}),
		stdout: capture.New(s.Keep),
		stderr: capture.New(s.Keep),
		cmd:    &exec.Cmd{Path: argv[0], Args: argv, Dir: "/", Env: s.environ(n, mark), SysProcAttr: &syscall.SysProcAttr{Setsid: true}},
	}
	var ends [2]*os.File
	for i := range ends {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(p.pipes[:], ends[:])
			return nil, fmt.Errorf("make a pipe for the verifier's output: %w", err)
		}
		p.pipes[i], ends[i] = r, w
	}
	p.cmd.Stdout, p.cmd.Stderr = ends[0], ends[1]
	err := proctree.Start(b, p.cmd)
	closeAll(ends[:])
	if err != nil {
		closeAll(p.pipes[:])
		return nil, err
	}
	for i, c := range []*capture.Capture{p.stdout, p.stderr} {
		done, pipe := make(chan error, 1), p.pipes[i]
		p.read[i] = done
		go func() { done <- c.Read(pipe) }()
	}
	go func() {
		// Not reaped here: as long as it is not, its pid is no other's, and signals to its group are safe.
		for {
			err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		close(p.exited)
	}()
	return p, nil
}

func closeAll(lists ...[]*os.File) {
	for _, list := range lists {
		for _, f := range list {
			if f != nil {
				f.Close() // pipe ends: nothing can be lost
			}
		}
	}
}

// reap takes the command's exit status, nil if it would not even end by SIGKILL. It
// is called once, after stop, and ends the use of the tree.
func (p *process) reap() *os.ProcessState {
	timer := time.NewTimer(proctree.KillWait)
	defer timer.Stop()
	select {
	case <-p.exited:
		p.cmd.Wait() // an error here is an exit code, which decides nothing
		p.tree.Close()
		return p.cmd.ProcessState
	case <-timer.C:
		// Stuck in the kernel, perhaps on a file system that does not answer. Reaped whenever it ends.
		go func() {
			<-p.exited
			p.cmd.Wait()
			p.tree.Close()
		}()
		return nil
	}
}

// drain waits for the end of both outputs, and says whether stdout reached it.
func (p *process) drain() (whole bool) {
	deadline := time.Now().Add(drainWait)
	whole = true
	for i, r := range p.pipes {
		r.SetReadDeadline(deadline) // fails only where the pipe is closed already
		err := <-p.read[i]
		if i == 0 {
			whole = err == nil
		}
		r.Close()
	}
	return whole
}
