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
	rules, err := m.rules()
	if err != nil {
		out = append(out, warn(name, "", "%v", err))
	}
	engines := []string{"docker", "podman", "nerdctl"}
	if cli := rules.Docker.CLI; cli != "" {
		engines = []string{cli}
	}
	for _, cli := range engines {
		e, err := m.engine(cli)
		if err != nil {
			continue
		}
		if err := e.Reachable(ctx); err != nil {
			out = append(out, engineTrouble(name, err))
			continue
		}
		out = append(out, ok(name, "%s works, for --sandbox docker --docker %s", e.CLI, cli))
		if image := rules.Docker.Image; image == "" {
			continue
		} else if err := e.HasImage(ctx, image); err != nil {
			out = append(out, engineTrouble(name, err))
		} else {
			out = append(out, ok(name, "%s has the image %s", cli, image))
		}
	}
	if len(out) == 0 {
		out = append(out, ok(name, "there is no %s; only --sandbox docker needs one", strings.Join(engines, ", ")))
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
