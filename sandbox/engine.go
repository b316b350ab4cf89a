package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Engine is a docker-compatible command: docker, podman or nerdctl.
type Engine struct {
	CLI string // absolute
	Env []string
}

// engineVars are the variables of the environment by which such commands find their daemon, or do their work
// without one. Some that they know hold secrets: those are not in it.
var engineVars = []string{
	"PATH", "HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS",
	"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION",
	"CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
	"CONTAINERD_ADDRESS", "CONTAINERD_NAMESPACE", "NERDCTL_TOML",
}

// FindEngine finds the command cli, a name or a path; "" is docker. env is the user's environment.
func FindEngine(cli string, env []string) (*Engine, error) {
	if cli == "" {
		cli = "docker"
	}
	path, err := exec.LookPath(cli)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	switch {
	case errors.Is(err, exec.ErrDot):
		return nil, failed(err, "give its path with --docker", "%s lies in the working directory", cli)
	case err != nil:
		return nil, failed(err, "install it (sudo apt install docker.io), or name another with --docker podman", "the command %s was not found", cli)
	}
	e := &Engine{CLI: path}
	for _, v := range env {
		if name, _, _ := strings.Cut(v, "="); slices.Contains(engineVars, name) {
			e.Env = append(e.Env, v)
		}
	}
	return e, nil
}

func (e *Engine) name() string { return filepath.Base(e.CLI) }

// command is args for the engine, which has nothing of ours in its environment.
func (e *Engine) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, e.CLI, args...)
	cmd.Env = e.Env
	cmd.Dir = "/" // not the mount, which it would keep busy
	return cmd
}

// EngineError is a call of an engine that failed.
type EngineError struct {
	Exit int
	Says string // the last line of what it wrote to stderr, or of stdout when that is empty
	err  error
}

func (e *EngineError) Error() string {
	if e.Says == "" {
		return e.err.Error()
	}
	return e.Says
}

func (e *EngineError) Unwrap() error { return e.err }

// do runs the engine and returns what it printed, without white space around it. The error is an *EngineError.
func (e *Engine) do(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	err := e.stream(ctx, nil, &out, args...)
	return strings.TrimSpace(out.String()), err
}

// stream is do with streams for what goes in and comes out.
func (e *Engine) stream(ctx context.Context, in io.Reader, out io.Writer, args ...string) error {
	var says bytes.Buffer
	cmd := e.command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &says
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	ee := &EngineError{Exit: -1, Says: lastLine(says.String()), err: fmt.Errorf("%s %s: %w", e.name(), args[0], err)}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		ee.Exit = exit.ExitCode()
	}
	return ee
}

// lastLine is the last line of text that says something. Docker adds hints about --help, and one that says no more than that it failed.
func lastLine(text string) string {
	last := ""
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.Contains(line, "--help") && !strings.Contains(line, "failed to start containers") {
			last = line
		}
	}
	return last
}

// saysAny reports whether err is of an engine that says one of these.
func saysAny(err error, parts ...string) bool {
	var e *EngineError
	if !errors.As(err, &e) {
		return false
	}
	says := strings.ToLower(e.Says)
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(says, p) })
}

// How docker, podman and nerdctl say these things, in lower case.
var (
	saysTaken     = []string{"is already in use", "already used", "already exists", "marked for removal"}
	saysGone      = []string{"no such container", "no container with name"}
	saysNoImage   = []string{"no such image", "image not known", "unable to find image", "pull access denied", "image not found", "failed to find image", "not found in any"}
	saysForbidden = []string{"permission denied while trying to connect", "dial unix", "got permission denied"}
	saysNoDaemon  = []string{"cannot connect to the docker daemon", "is the docker daemon running", "unable to connect to podman", "cannot access containerd", "error during connect", "connection refused"}
	saysNoShell   = []string{`"sh": executable file not found`, "sh: no such file", "executable file `sh` not found"}
)

// explain makes what the user is told of an error of the engine, doing what is said. image may be "".
func (e *Engine) explain(err error, image, doing string) error {
	name := e.name()
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case saysAny(err, "permission denied") && saysAny(err, saysForbidden...):
		return failed(err, "sudo usermod -aG docker $USER, and log in anew (who may use Docker is as good as root), or --docker podman", "you may not use the daemon of %s", name)
	case saysAny(err, saysNoDaemon...):
		return failed(err, "start it: sudo systemctl start docker", "the daemon of %s does not answer", name)
	case saysAny(err, saysNoImage...):
		return failed(err, fmt.Sprintf("get it: %s pull %s", name, image), "the image %s is not on this machine", image)
	case saysAny(err, saysNoShell...):
		return failed(err, "choose an image with a shell", "the image %s has no sh", image)
	}
	return failed(err, "see what is wrong: rewindfs doctor", "%s", doing)
}

// isPodman reports whether the engine is podman, be it under the name of docker.
func (e *Engine) isPodman(ctx context.Context) bool {
	if strings.Contains(e.name(), "podman") {
		return true
	}
	says, err := e.do(ctx, "--version")
	return err == nil && strings.Contains(strings.ToLower(says), "podman")
}

// Reachable returns nil when the engine can do its work, else an error that says what to do.
func (e *Engine) Reachable(ctx context.Context) error {
	_, err := e.do(ctx, "ps", "--quiet", "--last", "1")
	return e.explain(err, "", e.name()+" does not work")
}

// HasImage returns nil when the image is on this machine, else an error that says what to do.
func (e *Engine) HasImage(ctx context.Context, image string) error {
	_, err := e.do(ctx, "image", "inspect", "--format", "{{.Id}}", image)
	return e.explain(err, image, "look for the image "+image)
}
