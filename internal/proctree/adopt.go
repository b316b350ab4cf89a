package proctree

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Adopt makes this process the parent of its descendants whose own parents have ended, so that none of them
// can get out of sight, until the function that it returns is called. Those that end meanwhile are reaped; children that this
// process has, or starts with a Tree, are not. It must start no other child meanwhile, but in Apart.
func Adopt() (done func(), err error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become the parent of orphans: %w", err)
	}
	own := make(map[int]string)
	for _, s := range children() {
		own[s.pid] = s.start
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	quit, quitted := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(quitted)
		for {
			select {
			case <-ended:
				reapOrphans(own)
			case <-quit:
				return
			}
		}
	}()
	return func() {
		signal.Stop(ended)
		close(quit)
		<-quitted
		unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) // it could be set, so it can be cleared
	}, nil
}

// reapOrphans reaps the children that have ended, but for own.
func reapOrphans(own map[int]string) {
	starting.Lock()
	defer starting.Unlock()
	for _, s := range children() {
		if _, ours := commands.Load(s.pid); !ours && !s.runs() && own[s.pid] != s.start {
			unix.Wait4(s.pid, nil, unix.WNOHANG, nil) // who has reaped it meanwhile has done the same
		}
	}
}

// children lists the children of this process, those that have ended and are not reaped too.
func children() []procStat {
	var out []procStat
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(lists) == 0 { // a kernel without CONFIG_PROC_CHILDREN
		for _, pid := range allPIDs() {
			if s, err := readStat(pid); err == nil && s.parent == os.Getpid() {
				out = append(out, s)
			}
		}
		return out
	}
	for _, path := range lists {
		list, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(list)) {
			if pid, err := strconv.Atoi(field); err == nil {
				if s, err := readStat(pid); err == nil {
					out = append(out, s)
				}
			}
		}
	}
	return out
}
