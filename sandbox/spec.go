package sandbox

import (
	"os"
	"time"
)

// Kind names a way to run a command.
type Kind string

// The kinds, from the loosest to the tightest.
const (
	None   Kind = "none"   // as if the user had typed it, but for where the project is
	Local  Kind = "local"  // writes outside the project are refused, secrets are not in the environment
	NS     Kind = "ns"     // namespaces of its own: the host is read-only, secrets are out of sight, no network
	Docker Kind = "docker" // in the session's container
)

// Spec is one command to be run.
type Spec struct {
	Argv []string
	// Env is the environment, which the kind may thin out: see Rules.Env.
	Env []string
	// Dir is the working directory as the command is to see it.
	Dir  string
	Kind Kind
	// Mount is the mountpoint on the host, absolute.
	Mount string
	// Project is where the command is to see the mount: the base's own path, or Mount itself.
	Project string
	// Unseen are directories and sockets that no kind but None shows: the stores, the control sockets.
	Unseen []string
	// Sockets are shown in spite of Unseen: the key is the path as the command sees
	// it, the value that on the host.
	Sockets map[string]string
	Rules   Rules

	Stdin, Stdout, Stderr *os.File
	// Timeout ends the whole tree of processes, TERM first and after Grace KILL; 0 is none.
	Timeout, Grace time.Duration
}

// Rules say what a command may reach. They come from the user: flags, and rules on the host's side.
type Rules struct {
	// Allow are paths that stay writable, besides those of Writable; Deny are not, whatever else says so.
	Allow, Deny []string
	// Hide are paths that cannot be seen in NS, besides those of Secrets.
	Hide []string
	// Writable and Secrets take the place of DefaultWritable and DefaultSecrets, unless they are nil.
	Writable, Secrets []string
	// Env are names of variables that stay in spite of looking like secrets, or NAME=VALUE.
	Env []string
	// Network is "host" or "none".
	Network string
	Limits  Limits
	Docker  DockerRules
}

// Limits bound what a command uses up; 0 is no bound of ours.
type Limits struct {
	Processes   int   // in all
	MemoryBytes int64 // of the whole tree where a cgroup can be made or in Docker, else of each process
	CPUs        float64
	TmpBytes    int64 // of the private temporary directory
	FileBytes   int64 // of a single file
}

// DockerRules are for Docker only.
type DockerRules struct {
	CLI       string // docker, podman, nerdctl, or a path
	Image     string
	Workspace string // where the project is in the container; "" for its own path
}

// Outcome is how a command ended.
type Outcome struct {
	ExitCode int // 128 + the signal's number where one ended it, 124 when the time was up
	Signal   string
	TimedOut bool
	Duration time.Duration
	// Refused are the writes that the rules did not allow, each path once, in order, at most MaxRefused.
	Refused []Refusal
	// Left are processes that the command started and that still run.
	Left []int
	// Notes are lines for the user: what this kernel cannot do, what is weaker for it.
	Notes []string
}

// Refusal is a write that was refused, with what would allow it.
type Refusal struct {
	Path string
	Flag string // for instance "--allow /opt/x"
}

// MaxRefused bounds Outcome.Refused.
const MaxRefused = 100
