package bench

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
)

// loadMachine keeps every processor busy with a process of its own until stop is
// called. The processes end with this one, whatever happens to it.
func loadMachine() (stop func() error, err error) {
	var cmds []*exec.Cmd
	stop = func() error {
		for _, c := range cmds {
			_ = c.Process.Kill() // it may have ended by itself
			_ = c.Wait()         // ended by a signal, as meant
		}
		cmds = nil
		return nil
	}
	for range runtime.NumCPU() {
		c := exec.Command("sh", "-c", "while :; do :; done")
		c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := c.Start(); err != nil {
			_ = stop() // never fails
			return nil, fmt.Errorf("start a busy loop: %w", err)
		}
		cmds = append(cmds, c)
	}
	return stop, nil
}
