package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/hunks"
)

// chooser asks which changes of a commit to bring.
type chooser struct {
	in     *bufio.Reader
	out    io.Writer
	colour bool
	patch  func(ch *control.CommitChange) ([]byte, error) // of one file
	parts  bytes.Buffer                                   // the patch of what is wanted of files that are brought in part
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
	ch := &chooser{in: bufio.NewReader(a.in), out: a.err, colour: isTerminal(a.err)}
	ch.patch = func(change *control.CommitChange) (text []byte, err error) {
		one := dry
		path, err := change.Bytes()
		if err != nil {
			return nil, err
		}
		one.Patch, one.Paths = true, [][]byte{[]byte(path)}
		_, err = c.Commit(ctx, one, func(got control.CommitChange) error {
			if got.PathName != change.PathName || got.Left != "" {
				return nil
			}
			var err error
			text, err = got.Text()
			return err
		}, nil)
		return text, err
	}
	paths, err := ch.choose(all)
	if err != nil {
		return err
	}
	if len(paths) == 0 && ch.parts.Len() == 0 {
		return failf(exitFailure, "nothing was chosen, so nothing was written")
	}
	r.Paths, r.Hunks = paths, ch.parts.Bytes()
	return nil
}

// choose asks about the changes, which are in path order, and returns the paths that are wanted; parts of files are added to
// c.parts. What is asked of a directory is for all that is in it, unless one looks inside.
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
			return nil, errGivenUp
		case "h":
			whole, err := c.hunks(&ch)
			if err != nil {
				return nil, err
			}
			if whole {
				answer = "y"
			}
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

var errGivenUp = errors.New("given up: nothing was written")

// answers are what can be said to a question, by letter.
const (
	fileAnswers = "y: yes; n: no; a: this and all that is left; d: none of what is left; q: write nothing at all"
	hunkAnswers = "y: bring this hunk; n: leave it; a: this and all that is left of the file; d: none of what is left of it; s: split it; q: write nothing at all; ?: this"
)

// ask asks about one change until there is an answer.
func (c *chooser) ask(ch *control.CommitChange, inside bool) (string, error) {
	status, options, help := ch.Status, "ynadq", fileAnswers
	if ch.Left == "conflict" {
		status = "conflict"
	}
	switch {
	case inside:
		options, help = "ynladq", "y: with all in it; n: with all in it; l: look inside; "+help[strings.Index(help, "a:"):]
	case ch.Left == "" && ch.Type == "file" && ch.Content && (ch.Status == "M" || ch.Status == "A"):
		options, help = "ynhadq", "y: yes; n: no; h: ask for each hunk of it; "+help[strings.Index(help, "a:"):]
	}
	return c.until(fmt.Sprintf("%s  %s", status, describeChange(&ch.Change)), options, help)
}

// until asks until there is one of the answers in options, which are letters.
func (c *chooser) until(question, options, help string) (string, error) {
	for {
		fmt.Fprintf(c.out, "%s [%s]? ", question, strings.Join(strings.Split(options, ""), ","))
		line, err := c.in.ReadString('\n')
		answer := strings.ToLower(strings.TrimSpace(line))
		if len(answer) == 1 && answer != "?" && strings.Contains(options, answer) {
			return answer, nil
		}
		if err != nil {
			return "", errors.New("the answers ended: nothing was written")
		}
		fmt.Fprintln(c.out, help)
	}
}

// hunks asks about the parts of one file. whole says that all of it is wanted; else c.parts gets what is, if anything.
func (c *chooser) hunks(ch *control.CommitChange) (whole bool, err error) {
	text, err := c.patch(ch)
	if err != nil {
		return false, fmt.Errorf("look for the hunks of %s: %w", showName(ch.PathName), err)
	}
	files, err := hunks.Parse(text)
	if err != nil || len(files) != 1 || files[0].Binary || len(files[0].Hunks) == 0 {
		fmt.Fprintf(c.out, "%s has no hunks: it is no text, it is too large, or only its mode or times differ.\n", showName(ch.PathName))
		answer, err := c.until(ch.Status+"  "+describeChange(&ch.Change), "ynq", fileAnswers)
		if answer == "q" {
			err = errGivenUp
		}
		return answer == "y", err
	}
	f, todo, use := files[0], files[0].Hunks, []hunks.Hunk(nil)
	whole = true
	if f.Mode && f.Old != "" {
		answer, err := c.hunk(f.Head, "ynadq")
		switch {
		case err != nil:
			return false, err
		case answer == "d":
			return false, nil
		case answer == "a":
			return true, nil
		case answer == "n":
			f, whole = f.WithoutMode(), false
		}
	}
	for len(todo) > 0 {
		h := todo[0]
		options := "ynadq"
		parts := h.Split()
		if len(parts) > 1 {
			options = "ynadsq"
		}
		var show bytes.Buffer
		h.Format(&show, 0)
		answer, err := c.hunk(show.Bytes(), options)
		if err != nil {
			return false, err
		}
		switch answer {
		case "s":
			todo = append(parts, todo[1:]...)
			continue
		case "y":
			use = append(use, h)
		case "a":
			use = append(use, todo...)
		case "n", "d":
			whole = false
		}
		if todo = todo[1:]; answer == "a" || answer == "d" {
			break
		}
	}
	if !whole && (len(use) > 0 || f.Mode && f.Old != "") {
		f.Format(&c.parts, use)
	}
	return whole, nil
}

// hunk shows a part of a patch and asks whether it is wanted.
func (c *chooser) hunk(text []byte, options string) (string, error) {
	if c.colour {
		text = coloured(text)
	}
	_, _ = c.out.Write(text)
	answer, err := c.until("Bring this hunk", options+"?", hunkAnswers)
	if answer == "q" {
		err = errGivenUp
	}
	return answer, err
}
