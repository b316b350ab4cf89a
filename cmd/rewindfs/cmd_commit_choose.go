package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/rewindfs/rewindfs/control"
)

// chooser asks which changes of a commit to bring.
type chooser struct {
	in  *bufio.Reader
	out io.Writer
}

// chooseCommit asks for each change, and keeps r to those that are wanted. The present state becomes a checkpoint first: what is
// brought is what was asked about.
func (a *app) chooseCommit(ctx context.Context, c *control.Client, r *control.CommitRequest) error {
	if r.Ref == "" || r.Ref == control.RefHead {
		made, err := c.Checkpoint(ctx, control.CheckpointRequest{Message: "commit --interactive"})
		if err != nil {
			return err
		}
		r.Ref = made.ID
	}
	dry := *r
	dry.DryRun, dry.List = true, true
	var all []control.CommitChange
	if _, err := c.Commit(ctx, dry, func(ch control.CommitChange) error { all = append(all, ch); return nil }, nil); err != nil {
		return err
	}
	ch := &chooser{in: bufio.NewReader(a.in), out: a.err}
	paths, err := ch.choose(all)
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return failf(exitFailure, "nothing was chosen, so nothing was written")
	}
	r.Paths = paths
	return nil
}

// choose asks about the changes, which are in path order, and returns the paths that are wanted. What is asked of a directory is for
// all that is in it, unless one looks inside.
func (c *chooser) choose(all []control.CommitChange) (paths [][]byte, err error) {
	settled := "" // the directory that was answered for, with a slash
	rest := ""    // the answer for all that is left
	for i, ch := range all {
		path, err := ch.Bytes()
		if err != nil {
			return nil, fmt.Errorf("read a path: %w", err)
		}
		if ch.Left == "held" || ch.Left == "skipped" || settled != "" && strings.HasPrefix(path, settled) {
			continue
		}
		inside := ch.Type == "dir" && i+1 < len(all) && strings.HasPrefix(all[i+1].Path, ch.Path+"/")
		answer := rest
		if answer == "" {
			if answer, err = c.ask(&ch, inside); err != nil {
				return nil, err
			}
		}
		switch answer {
		case "a":
			rest, answer = "y", "y"
		case "d":
			return paths, nil
		case "q":
			return nil, errors.New("given up: nothing was written")
		}
		if answer == "y" {
			paths = append(paths, []byte(path))
		}
		if inside && answer != "l" {
			settled = path + "/"
		}
	}
	return paths, nil
}

// ask asks about one change until there is an answer.
func (c *chooser) ask(ch *control.CommitChange, inside bool) (string, error) {
	status, options, help := ch.Status, "ynadq", "y: yes; n: no; a: this and all that is left; d: none of what is left; q: write nothing at all"
	if ch.Left == "conflict" {
		status = "conflict"
	}
	if inside {
		options, help = "ynladq", "y: with all in it; n: with all in it; l: look inside; "+help[strings.Index(help, "a:"):]
	}
	for {
		fmt.Fprintf(c.out, "%s  %s [%s]? ", status, describeChange(&ch.Change), strings.Join(strings.Split(options, ""), ","))
		line, err := c.in.ReadString('\n')
		answer := strings.ToLower(strings.TrimSpace(line))
		if len(answer) == 1 && strings.Contains(options, answer) {
			return answer, nil
		}
		if err != nil {
			return "", errors.New("the answers ended: nothing was written")
		}
		fmt.Fprintln(c.out, help)
	}
}
