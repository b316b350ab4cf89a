package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/rewindfs/rewindfs/sandbox"
)

// engineTime is how long an engine has to answer.
const engineTime = 10 * time.Second

// checkDocker looks whether --sandbox docker can work. Nothing of it stops a mount, and who has none of it may not want it.
func (m *machine) checkDocker(ctx context.Context) []finding {
	const name = "containers"
	ctx, cancel := context.WithTimeout(ctx, engineTime)
	defer cancel()
	var out []finding
	for _, cli := range []string{"docker", "podman", "nerdctl"} {
		e, err := m.engine(cli)
		if err != nil {
			continue
		}
		if err := e.Reachable(ctx); err != nil {
			out = append(out, engineTrouble(name, err))
			continue
		}
		out = append(out, ok(name, "%s works, for --sandbox docker --docker %s", e.CLI, cli))
		if m.image == "" {
			continue
		}
		if err := e.HasImage(ctx, m.image); err != nil {
			out = append(out, engineTrouble(name, err))
		} else {
			out = append(out, ok(name, "%s has the image %s", cli, m.image))
		}
	}
	if len(out) == 0 {
		out = append(out, ok(name, "none of docker, podman and nerdctl is installed; only --sandbox docker needs one"))
	}
	return out
}

func engineTrouble(name string, err error) finding {
	var e *sandbox.Error
	if !errors.As(err, &e) {
		return warn(name, "", "%v", err)
	}
	fix := e.Do
	if _, command, ok := strings.Cut(fix, ": "); ok { // "start it: COMMAND"
		fix = command
	}
	return warn(name, fix, "%s", strings.TrimPrefix(e.Err.Error(), "sandbox docker: "))
}
