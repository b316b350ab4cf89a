package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/rewindfs/rewindfs/control"
)

// What a person is told about targets outside of the mount.

// sqlitePaths are the arguments of --sqlite as the daemon takes them: absolute.
func sqlitePaths(args []string) (out [][]byte, err error) {
	for _, p := range args {
		if p == "" {
			return nil, usagef("--sqlite needs the path of a database")
		}
		abs, err := filepath.Abs(p)
		if err != nil {
			return nil, fmt.Errorf("find %s: %w", show(p), err)
		}
		out = append(out, []byte(abs))
	}
	return out, nil
}

func targetName(t *control.Target) string {
	if t.Kind == "volume" {
		return "volume " + showName(t.PathName)
	}
	return showName(t.PathName)
}

// describeTargets names targets.
func describeTargets(all []control.Target) string {
	var names []string
	for i := range all {
		names = append(names, targetName(&all[i]))
	}
	return shownList(names)
}

// putBackWith says how to have targets put back that the movement by has left as they were.
func putBackWith(by *control.Movement) string {
	switch {
	case by == nil:
		return ""
	case by.Kind == "undo" || by.Kind == "redo":
		return ": say rewindfs " + walkAgain(by.Kind)
	}
	return ": say rewindfs rollback " + quoteArg(show(by.Label))
}

// walkAgain is how the last undo or redo is made again.
func walkAgain(verb string) string {
	if verb == "redo" {
		return "undo, then rewindfs redo"
	}
	return "redo, then rewindfs undo"
}

// printTargets says what has become of targets.
func printTargets(w io.Writer, all []control.Target) {
	for i := range all {
		t := &all[i]
		word := t.Status
		switch {
		case t.Status == control.TargetCopied && t.Absent:
			word = "noted as not there"
		case t.Status == control.TargetCopied:
			word = "copied, " + size(t.Size)
		case t.Status == control.TargetSkipped:
			word = "NOT copied"
		case t.Status == control.TargetFailed:
			word = "NOT put back"
		case t.Status == control.TargetWouldRestore && t.Absent:
			word = "would be removed"
		case t.Status == control.TargetWouldRestore:
			word = "would be put back, " + size(t.Size)
		}
		fmt.Fprintf(w, "target: %s: %s", targetName(t), word)
		if t.Note != "" {
			fmt.Fprintf(w, " (%s)", show(t.Note))
		}
		if t.Error != "" {
			fmt.Fprintf(w, ": %s", show(t.Error))
		}
		fmt.Fprintln(w)
	}
}

// targetsFailed is the error of a movement that has put back all but some targets, nil of any other.
func targetsFailed(all []control.Target, again string) error {
	for i := range all {
		if t := &all[i]; t.Status == control.TargetFailed {
			return fmt.Errorf("the files are back, but not all targets: %s; what it held is kept. When it can be written, say: rewindfs %s", show(t.Error), again)
		}
	}
	return nil
}
