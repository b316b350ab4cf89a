package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

// app is one run of the program: its streams and the options of every command.
type app struct {
	in       io.Reader
	out, err io.Writer

	session    string
	branch     string // "": that of the mount that was chosen
	json       bool
	quiet      bool
	generation *uint64 // nil: whichever

	client *control.Client // for tests: instead of looking for a session
}

// run carries out one command line and returns what to exit with.
func run(args []string, in io.Reader, out, errs io.Writer) int {
	a := &app{in: in, out: out, err: errs}
	return a.run(args)
}

func (a *app) run(args []string) int {
	// What whoever started us wants ignored, as nohup does, stays so.
	enough := slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM}, signal.Ignored)
	ctx, stop := context.Background(), func() {}
	if len(enough) > 0 { // none means all
		ctx, stop = signal.NotifyContext(ctx, enough...)
	}
	defer stop()
	root := a.newRoot()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	// A flag that could not be parsed may have hidden --json.
	a.json = a.json || asksForJSON(args)
	return a.fail(err)
}

func asksForJSON(args []string) bool {
	for _, arg := range args {
		if arg == "--" {
			return false
		}
		if arg == "--json" || arg == "--json=true" {
			return true
		}
	}
	return false
}

const rootHelp = `rewindfs shows a directory as it is, writable, and takes everything back.

  rewindfs run -- npm install  run a command here; what it does to the project can be taken back
  rewindfs mount ~/proj        work in ~/proj.rewind; ~/proj itself is never written
  rewindfs checkpoint stable   constant time, whatever the size
  rewindfs rollback stable     all files, and the conversation, as they were; undo brings the rest back

A session is chosen by -s NAME|MOUNTPOINT|BASE or $REWINDFS_SESSION; else it is the one
whose mount or base holds the working directory; else the only one running. The mount point of a
fork stands for that branch of its session; --branch names one, too.

A checkpoint is named by its label, its id or 6 or more letters that begin it, latest,
@{N} (N checkpoints before the latest), or base (before all checkpoints).

` + exitHelp

func (a *app) newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "rewindfs",
		Short:         "A directory in which everything can be taken back",
		Long:          rootHelp,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return helpWithout(cmd)
			}
			cmd.SuggestionsMinimumDistance = 2
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return usagef("unknown command %q; did you mean: rewindfs %s", args[0], near[0])
			}
			return usagef("unknown command %q; see what there is with: rewindfs help", args[0])
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see: %s --help", err, cmd.CommandPath())
	})
	f := root.PersistentFlags()
	f.StringVarP(&a.session, "session", "s", "", "session by name, mount point or base (default $REWINDFS_SESSION)")
	f.StringVar(&a.branch, "branch", "", "branch of the session (default: that of the mount point given, or stood in)")
	f.BoolVar(&a.json, "json", false, "print one JSON object")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "say nothing on stderr but errors")
	generation := f.Uint64("generation", 0, "refuse to act on another generation of the session (default $REWINDFS_GENERATION)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if f.Changed("generation") {
			a.generation = generation
			return nil
		}
		return a.generationOfEnv()
	}
	root.AddGroup(
		&cobra.Group{ID: "session", Title: "Sessions:"},
		&cobra.Group{ID: "time", Title: "Going back and forth:"},
		&cobra.Group{ID: "branch", Title: "Side by side:"},
		&cobra.Group{ID: "agent", Title: "Agents:"},
		&cobra.Group{ID: "look", Title: "Looking:"},
		&cobra.Group{ID: "care", Title: "Looking after the store:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("session", a.newRun(), a.newExec(), a.newMount(), a.newUnmount(), a.newDestroy(), a.newList(), a.newStatus())
	add("time", a.newCheckpoint(), a.newRollback(), a.newUndo(), a.newRedo(), a.newRestore(), a.newCommit())
	add("branch", a.newFork(), a.newBranch(), a.newExport(), a.newImport(), a.newMerge())
	add("agent", a.newMemory(), a.newTool(), a.newVerify(), a.newPolicy(), a.newBudget(), a.newLedger())
	add("look", a.newLog(), a.newOplog(), a.newDiff(), a.newCat(), a.newRead(), a.newWrite())
	add("care", a.newGC(), a.newFsck(), a.newPurge())
	root.AddCommand(newBenchCommand(a), a.newDoctor(), a.newVersion())
	return root
}

// generationOfEnv takes the generation that a wrapper handed down, such as a hook of an agent.
func (a *app) generationOfEnv() error {
	said := os.Getenv("REWINDFS_GENERATION")
	if said == "" {
		return nil
	}
	n, err := strconv.ParseUint(said, 10, 64)
	if err != nil {
		return usagef("$REWINDFS_GENERATION is %s, which is no generation: set it to the number that status shows, or unset it", show(said))
	}
	a.generation = &n
	return nil
}

// helpWithout is for cmd without the command that it needs: help, but for programs, which want an object.
func helpWithout(cmd *cobra.Command) error {
	if asJSON, err := cmd.Flags().GetBool("json"); err != nil || !asJSON {
		return cmd.Help()
	}
	return usagef("%s needs a command; see: %s --help", cmd.CommandPath(), cmd.CommandPath())
}

// newGroup makes a command that only holds others.
func newGroup(use, short, long string, subs ...*cobra.Command) *cobra.Command {
	group := &cobra.Command{
		Use: use, Short: short, Long: long + "\n\n" + exitHelp,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return helpWithout(cmd)
			}
			return usagef("%s has no command %s; see: %s --help", cmd.CommandPath(), show(args[0]), cmd.CommandPath())
		},
	}
	group.AddCommand(subs...)
	return group
}

// exactly, atMost and friends are cobra's checks with our exit code.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s takes %s; see: %s --help", cmd.CommandPath(), what, cmd.CommandPath())
		}
		return nil
	}
}

func between(low, high int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < low || len(args) > high {
			return usagef("%s takes %s; see: %s --help", cmd.CommandPath(), what, cmd.CommandPath())
		}
		return nil
	}
}

// fail reports err and returns what to exit with.
func (a *app) fail(err error) int {
	code := exitCode(err)
	if errors.Is(err, context.Canceled) && code == exitFailure {
		err = errors.New("interrupted")
	}
	if a.json {
		f := failure{Error: err.Error(), Code: code}
		var api *control.Error
		if errors.As(err, &api) {
			f.Kind, f.Details = api.Code, api.Details
		}
		var found *foundError
		if errors.As(err, &found) {
			f.Data = found.data
		}
		a.printJSON(&f)
		return code
	}
	a.complain("rewindfs: " + strings.TrimRight(err.Error(), "\n"))
	return code
}
