package verify

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Defaults of a Spec.
const (
	DefaultTimeout    = 10 * time.Minute
	DefaultGrace      = 2 * time.Second
	DefaultRetryDelay = time.Second
	DefaultKeep       = 512 << 10
)

// MaxRetries bounds Spec.Retries: every attempt is recorded with its output.
const MaxRetries = 100

// Spec says what to run and how. Command or Argv, and Dir, must be set.
type Spec struct {
	Command string   // run as `sh -c Command`
	Argv    []string // or this program with these arguments, found along PATH
	Dir     string   // absolute path of the directory to verify
	// Env is the environment to start from, as "name=value"; nil stands for that of this process.
	Env        []string
	Session    string // REWINDFS_SESSION
	Checkpoint string // REWINDFS_CHECKPOINT; "" leaves it out
	// Umask is the command's file mode mask; 0 keeps that of this process (which is wrong for a daemon that has cleared it).
	Umask os.FileMode

	Timeout    time.Duration // of one attempt; 0 is DefaultTimeout
	Grace      time.Duration // between SIGTERM and SIGKILL; 0 is DefaultGrace
	Retries    int           // further attempts while the status is Unknown, at most MaxRetries
	RetryDelay time.Duration // before each of them; 0 is DefaultRetryDelay
	Keep       int           // bytes kept of stdout, and of stderr; 0 is DefaultKeep. A verdict must fit into it

	// OnAttempt, if set, is called after each attempt, on Run's goroutine.
	OnAttempt func(Attempt)

	withoutCgroup bool // for tests of the other way
}

// Check returns all that is wrong with s.
func (s Spec) Check() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	switch {
	case s.Command != "" && len(s.Argv) > 0:
		bad("both a command line and an argument list are given; give one")
	case strings.TrimSpace(s.Command) == "" && (len(s.Argv) == 0 || s.Argv[0] == ""):
		bad("no verifier command is given")
	}
	if strings.ContainsRune(s.Command+strings.Join(s.Argv, "")+s.Dir, 0) {
		bad("the command or its directory contains a NUL byte")
	}
	if !filepath.IsAbs(s.Dir) {
		bad("the directory %q is not an absolute path", s.Dir)
	}
	if s.Timeout < 0 || s.Grace < 0 || s.RetryDelay < 0 {
		bad("a time is negative")
	}
	if s.Retries < 0 || s.Retries > MaxRetries {
		bad("%d retries: use 0 to %d", s.Retries, MaxRetries)
	}
	if s.Keep < 0 {
		bad("a negative number of bytes of output is to be kept")
	}
	if s.Umask > 0o777 {
		bad("umask %o has bits that are no permissions", s.Umask)
	}
	return errors.Join(all...)
}

// withDefaults fills in what is zero.
func (s Spec) withDefaults() Spec {
	if s.Timeout == 0 {
		s.Timeout = DefaultTimeout
	}
	if s.Grace == 0 {
		s.Grace = DefaultGrace
	}
	if s.RetryDelay == 0 {
		s.RetryDelay = DefaultRetryDelay
	}
	if s.Keep == 0 {
		s.Keep = DefaultKeep
	}
	return s
}

// argv is the command line with the change of directory in front. The shell changes
// directory, not this process (see the package comment), and does it
// by an absolute path, so that CDPATH has no say.
func (s Spec) argv() []string {
	script, args := `cd -- "$1" || exit 127; shift; exec "$@"`, []string{s.Dir}
	if s.Umask != 0 {
		script, args = `umask "$1"; shift; `+script, []string{fmt.Sprintf("%04o", s.Umask), s.Dir}
	}
	if len(s.Argv) > 0 {
		args = append(args, s.Argv...)
	} else {
		args = append(args, "/bin/sh", "-c", s.Command)
	}
	return append([]string{"/bin/sh", "-c", script, "sh"}, args...)
}

// environ is the environment of attempt n, with mark as a further variable.
func (s Spec) environ(n int, mark string) []string {
	env := s.Env
	if env == nil {
		env = os.Environ()
	}
	out := make([]string, 0, len(env)+4)
	for _, kv := range env {
		if s.Checkpoint != "" || !strings.HasPrefix(kv, "REWINDFS_CHECKPOINT=") {
			out = append(out, kv)
		}
	}
	out = append(out, "REWINDFS_SESSION="+s.Session, fmt.Sprintf("REWINDFS_ATTEMPT=%d", n), mark)
	if s.Checkpoint != "" {
		out = append(out, "REWINDFS_CHECKPOINT="+s.Checkpoint)
	}
	return out
}
