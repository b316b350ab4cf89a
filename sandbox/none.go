package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// none runs a command as if the user had typed it, in the project.
type none struct{}

func (none) start(s *Spec, prepare func(*exec.Cmd)) (*running, error) {
	l := launcher{prepare: prepare, plan: &plan{Argv: s.Argv, Env: s.Env, Dir: s.Dir}}
	if s.Project != s.Mount {
		l.plan.View = &view{Points: []point{{At: s.Project, What: bind, From: follow(s.Mount)}}}
		l.spaces = unix.CLONE_NEWNS
		if os.Geteuid() != 0 {
			l.spaces |= unix.CLONE_NEWUSER
		}
	}
	run, err := l.launch(s)
	if isStage(err, stageSpaces) {
		l.plan.View, l.spaces = nil, 0
		l.plan.Dir = inMount(s)
		note := notAtItsPath(s, err)
		if run, err = l.launch(s); err == nil {
			run.notes = append(run.notes, note)
		}
	}
	if err != nil {
		return nil, userError(err, None)
	}
	return run, nil
}

func notAtItsPath(s *Spec, err error) string {
	return fmt.Sprintf("this machine makes no mount namespaces for us (%v): the command sees the project at %s, not at %s", err, s.Mount, s.Project)
}

func isStage(err error, stage string) bool {
	var f *failure
	return errors.As(err, &f) && f.stage == stage
}
