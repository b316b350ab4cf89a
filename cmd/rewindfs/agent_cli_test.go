package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/rewindfs/rewindfs/control"
)

func TestAgentUsage(t *testing.T) {
	home(t)
	for _, args := range [][]string{
		{"memory", "frob"}, {"memory", "sync"}, {"memory", "sync", "a", "b"}, {"memory", "get", "a", "b"}, {"memory", "repair"}, {"memory", "repair", "a", "b"},
		{"tool", "frob"}, {"tool", "begin"}, {"tool", "begin", "a", "b"}, {"tool", "end", "x"}, {"tool", "reset", "x"}, {"tool", "begin", "a", "--call", "\xff"},
		{"checkpoint", "attach"}, {"checkpoint", "current", "x"}, {"checkpoint", "reject", "a", "b"}, {"checkpoint", "collect", "x"}, {"checkpoint", "list", "x"}, {"checkpoint", "delete"},
		{"policy", "frob"}, {"budget", "frob"}, {"budget", "show", "x"}, {"ledger", "x"}, {"undo", "--files-only", "0"},
	} {
		o := rewind("", args...)
		if o.code != exitUsage || o.out != "" || !strings.HasPrefix(o.err, "rewindfs: ") {
			t.Errorf("%q: %+v", args, o)
		}
		rewind("", append([]string{"--json"}, args...)...).failed(t, exitUsage)
	}
	for _, group := range []string{"memory", "tool", "policy", "budget"} {
		rewind("", group).want(t, 0, "Available Commands", "Exit codes:", "7   verification failed", "8   halted")
		rewind("", group, "--help").want(t, 0, "Exit codes:")
		rewind("", group, "--json").failed(t, exitUsage)
	}
	for _, args := range [][]string{{"verify"}, {"ledger"}, {"ledger", "verify"}, {"checkpoint"}, {"checkpoint", "collect"}, {"memory", "repair"}, {"policy", "auto-rollback"}, {"budget", "set"}, {"tool", "end"}} {
		rewind("", append(args, "--help")...).want(t, 0, "Exit codes:")
	}
	for _, args := range [][]string{{"memory", "get"}, {"tool", "begin", "x"}, {"verify", "--cmd", "true"}, {"policy", "show"}, {"budget", "show"}, {"ledger"}, {"ledger", "verify"}, {"checkpoint", "list"}} {
		rewind("", args...).want(t, exitNoSession, "rewindfs mount DIR")
	}
}

func TestExitCodesOfTheAPI(t *testing.T) {
	for code, want := range map[control.Code]int{
		control.CodeBudget: exitHalted, control.CodeNoConversation: exitCheckpoint, control.CodeUnrepairable: exitFailure, control.CodeGone: exitFailure,
		control.CodeStaleGeneration: exitStale, control.CodeBadRequest: exitUsage, "of the future": exitFailure,
	} {
		if got := exitCode(errors.Join(&control.Error{Code: code})); got != want {
			t.Errorf("%s exits with %d, want %d", code, got, want)
		}
	}
}

// A shell is offered labels, and words where only some are possible.
func TestCompletion(t *testing.T) {
	home(t)
	newDaemon().serve(t, proj())
	for _, args := range [][]string{
		{"rollback", ""}, {"memory", "get", ""}, {"checkpoint", "attach", ""}, {"checkpoint", "reject", ""}, {"checkpoint", "delete", ""},
		{"verify", "--to", ""}, {"policy", "auto-rollback", "--to", ""}, {"ledger", "--checkpoint", ""},
	} {
		rewind("", append([]string{"__complete"}, args...)...).want(t, 0, "two words\n", "01A\n", "latest\n")
	}
	for _, args := range [][]string{{"rollback", "x", ""}, {"memory", "get", "x", ""}} {
		if o := rewind("", append([]string{"__complete"}, args...)...); strings.Contains(o.out, "two words") {
			t.Errorf("%q: %s", args, o.out)
		}
	}
	rewind("", "__complete", "memory", "repair", "--format", "").want(t, 0, "openai-chat\n", "codex-rollout\n")
	rewind("", "__complete", "ledger", "--event", "").want(t, 0, "budget_stop\n")
	rewind("", "__complete", "verify", "--mode", "").want(t, 0, "interactive\n", "agent\n")
}
