package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/sandbox"
)

// runOptions are the flags of run and exec.
type runOptions struct {
	verb      string // run or exec
	label     *string
	rollback  bool // take back what a command that fails has changed
	kind      string
	timeout   time.Duration
	network   string
	allow     []string
	deny      []string
	hide      []string
	env       []string
	limits    []string
	image     string
	docker    string
	workspace string
	showRules bool // and run nothing
	sqlite    []string
	skip      bool // do without targets that cannot be copied
}

const sandboxHelp = `The command sees the project at the path where it was called: in the project's own directory at that, in the mount at the mount's. Terminal, pipes,
signals and its exit code pass through untouched. What it changes in the project is in the session alone, and can be taken back;
what it may do elsewhere the sandbox says:

  local   (default) writes go to the project, caches, /dev and a /tmp of its own; secrets are not in its environment; it has the network
  ns      namespaces of its own: the host is read-only, secrets in your home are out of sight, no network
  docker  a container of the session: no network, no capability, bounded memory and processes
  none    as if you had typed it

The stores and the control socket are out of sight, but for none; what an agent in there may ask of its session can be taken back or only looks.
`

const runExitHelp = `The exit code is the command's: 128 and the number of a signal, 124 when the time was up, 126 and 127 when it cannot be executed or is not there,
4 when the sandbox could not be made. When rewindfs itself fails, it is one of the others:

` + exitHelp

func (a *app) newRun() *cobra.Command {
	o := &runOptions{verb: "run"}
	label := ""
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG]...",
		Short: "Keep the state, then run a command in the project",
		Long: `Make a checkpoint and run COMMAND in the project. Where no session knows the working directory, one is made for the project that it is in: the
nearest directory above with a .git or a rewindfs.toml, else itself. The directory on the host stays as it is: see what
changed with diff, bring it there with commit, take it back with rollback.

` + sandboxHelp + "\n" + runExitHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("label") {
				o.label = &label
			}
			return a.runCommand(cmd.Context(), o, args)
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&label, "label", "", "name of the checkpoint (default: none, only an id)")
	cmd.Flags().StringArrayVar(&o.sqlite, "sqlite", nil, "SQLite database outside of the project, to be copied with the checkpoint (more than once)")
	cmd.Flags().BoolVar(&o.skip, "skip-failed-targets", false, "do without the databases and volumes that cannot be copied")
	cmd.Flags().BoolVar(&o.rollback, "rollback-on-fail", false, "when the exit code is not 0, take back files and conversation")
	return cmd
}

func (a *app) newExec() *cobra.Command {
	o := &runOptions{verb: "exec"}
	cmd := &cobra.Command{
		Use:   "exec [flags] -- COMMAND [ARG]...",
		Short: "Run a command in the project of a session",
		Long: `Run COMMAND in the project of a session. The state in front of it is kept by itself, as it is in front of a tool call: log --all lists it.

` + sandboxHelp + "\n" + runExitHelp,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runCommand(cmd.Context(), o, args) },
	}
	o.flags(cmd)
	return cmd
}

// kinds are the sandboxes, as --sandbox names them.
var kinds = []string{string(sandbox.None), string(sandbox.Local), string(sandbox.NS), string(sandbox.Docker)}

func (o *runOptions) flags(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 && !o.showRules {
			return usagef("%s needs a command, such as: %s -- npm install", cmd.CommandPath(), cmd.CommandPath())
		}
		return nil
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // what follows the command is the command's
	f.StringVar(&o.kind, "sandbox", string(sandbox.Local), strings.Join(kinds, ", "))
	f.DurationVar(&o.timeout, "timeout", 0, "end the command and all that it started after this long")
	f.StringVar(&o.network, "network", "", "none or host (default host in none and local, none in ns and docker)")
	f.StringArrayVar(&o.allow, "allow", nil, "path that may be written to (more than once)")
	f.StringArrayVar(&o.deny, "deny", nil, "path that may not, whatever else says so (more than once)")
	f.StringArrayVar(&o.hide, "hide", nil, "path that is out of sight in ns (more than once)")
	f.StringArrayVar(&o.env, "env", nil, "variable to let through though it looks like a secret, or NAME=VALUE to set one (more than once)")
	f.StringArrayVar(&o.limits, "limit", nil, "processes=N, memory=SIZE, cpus=N, tmp=SIZE or file=SIZE (more than once)")
	f.StringVar(&o.image, "image", "", "image of the container (docker)")
	f.StringVar(&o.docker, "docker", "", "docker, podman, nerdctl, or a path to one that takes the same flags (docker)")
	f.StringVar(&o.workspace, "workspace", "", "where the container has the project, or "+ownPath+" for where the host has it (docker; default "+defaultWorkspace+")")
	f.BoolVar(&o.showRules, "show-rules", false, "print what the sandbox lets a command do, and run nothing; rules of your own go into rewindfs/sandbox.toml in your directory for settings")
	completeFlag(cmd, "sandbox", kinds)
	completeFlag(cmd, "network", networks)
}

var networks = []string{"none", "host"}

// rules makes the sandbox's rules of the user's own and of the flags.
func (o *runOptions) rules() (r sandbox.Rules, err error) {
	kind := sandbox.Kind(o.kind)
	if !slices.Contains(kinds, o.kind) {
		return r, usagef("--sandbox %s: use %s", show(o.kind), strings.Join(kinds, ", "))
	}
	if kind != sandbox.None {
		if r, err = sandbox.HostRules(os.Environ()); err != nil {
			return r, failf(exitSandbox, "%w", err)
		}
	}
	if o.timeout < 0 {
		return r, usagef("--timeout %s: it must be more than 0", o.timeout)
	}
	r.Network = o.network
	switch {
	case o.network == "" && (kind == sandbox.None || kind == sandbox.Local):
		r.Network = "host"
	case o.network == "":
		r.Network = "none"
	case !slices.Contains(networks, o.network):
		return r, usagef("--network %s: use none or host", show(o.network))
	case o.network == "none" && kind == sandbox.None:
		return r, usagef("--network none needs a sandbox: local, ns or docker")
	}
	for _, p := range []struct {
		flag  string
		paths []string
		to    *[]string
	}{{"allow", o.allow, &r.Allow}, {"deny", o.deny, &r.Deny}, {"hide", o.hide, &r.Hide}} {
		for _, path := range p.paths {
			if path == "" || kind == sandbox.None {
				return r, usagef("--%s %s: it names a path, for a sandbox", p.flag, show(path))
			}
			*p.to = append(*p.to, path)
		}
	}
	for _, v := range o.env {
		if v == "" || v[0] == '=' || strings.ContainsRune(v, 0) {
			return r, usagef("--env %s: write it as NAME or NAME=VALUE", show(v))
		}
	}
	r.Env = append(r.Env, o.env...)
	if r.Limits, err = limitsOf(o.limits); err != nil {
		return r, err
	}
	return r, o.dockerRules(&r.Docker)
}

// limitsOf reads the values of --limit.
func limitsOf(args []string) (l sandbox.Limits, err error) {
	for _, arg := range args {
		for part := range strings.SplitSeq(arg, ",") {
			name, value, ok := strings.Cut(part, "=")
			var err error
			switch {
			case !ok:
				err = fmt.Errorf("write it as NAME=VALUE")
			case name == "processes":
				l.Processes, err = strconv.Atoi(value)
			case name == "cpus":
				l.CPUs, err = strconv.ParseFloat(value, 64)
			case name == "memory":
				l.MemoryBytes, err = parseSize(value)
			case name == "tmp":
				l.TmpBytes, err = parseSize(value)
			case name == "file":
				l.FileBytes, err = parseSize(value)
			default:
				err = fmt.Errorf("there are processes, memory, cpus, tmp and file")
			}
			if err == nil && (l.Processes < 0 || !(l.CPUs >= 0)) {
				err = fmt.Errorf("it must not be below 0")
			}
			if err != nil {
				return l, usagef("--limit %s: %w", show(part), err)
			}
		}
	}
	return l, nil
}
