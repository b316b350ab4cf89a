package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

const pathHelp = `PATH is relative to the root of the session; an absolute path below its mount point or base is taken as well.
Symlinks are followed inside of the session only.

`

func (a *app) newCat() *cobra.Command {
	return &cobra.Command{
		Use:   "cat REF:PATH",
		Short: "Print a file as it was at a checkpoint",
		Long:  "Print a file as it was at checkpoint REF.\n" + pathHelp + exitHelp,
		Args:  exactly(1, "REF:PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runCat(cmd.Context(), args[0])
		},
	}
}

func (a *app) newRead() *cobra.Command {
	return &cobra.Command{
		Use:   "read PATH",
		Short: "Print a file as it is now",
		Long:  "Print a file as it is now, through the daemon: also where the mount cannot be entered.\n" + pathHelp + exitHelp,
		Args:  exactly(1, "one path"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runRead(cmd.Context(), "", args[0])
		},
	}
}

func (a *app) newWrite() *cobra.Command {
	return &cobra.Command{
		Use:   "write PATH [TEXT | -]",
		Short: "Write a file from TEXT or standard input",
		Long:  "Make a file hold TEXT, exactly, or what standard input gives. The file changes when all has come.\n" + pathHelp + exitHelp,
		Args:  between(1, 2, "a path and perhaps a text"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runWrite(cmd.Context(), args)
		},
	}
}

// runCat tells REF from PATH. Both may hold colons, so the shortest reference that
// names a checkpoint is taken.
func (a *app) runCat(ctx context.Context, arg string) error {
	ref, path, ok := strings.Cut(arg, ":")
	if !ok || ref == "" {
		return usagef("write it as REF:PATH, such as latest:README.md")
	}
	first := error(nil)
	for {
		err := a.runRead(ctx, ref, path)
		switch control.CodeOf(err) {
		case control.CodeUnknownCheckpoint:
		default:
			return err
		}
		if first == nil {
			first = err
		}
		more, rest, ok := strings.Cut(path, ":")
		if !ok {
			return first
		}
		ref, path = ref+":"+more, rest
	}
}

// fileContent is what read and cat print as JSON: Content when it is UTF-8,
// ContentB64 otherwise.
type fileContent struct {
	control.PathName
	Ref        string  `json:"ref,omitempty"`
	Size       int64   `json:"size"`
	Content    *string `json:"content,omitempty"`
	ContentB64 string  `json:"content_b64,omitempty"`
}

func (a *app) runRead(ctx context.Context, ref, path string) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if path, err = a.inSession(ctx, c, path); err != nil {
		return err
	}
	body, n, err := c.ReadFile(ctx, ref, path)
	if err != nil {
		return err
	}
	defer body.Close()
	if !a.json {
		if _, err := io.Copy(a.out, body); err != nil {
			return fmt.Errorf("read %s: %w", show(path), err)
		}
		return nil
	}
	b, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("read %s: %w", show(path), err)
	}
	out := fileContent{PathName: control.NameOf(path), Ref: ref, Size: n}
	if utf8.Valid(b) {
		text := string(b)
		out.Content = &text
	} else {
		out.ContentB64 = base64.StdEncoding.EncodeToString(b)
	}
	return a.result(out, nil)
}

func (a *app) runWrite(ctx context.Context, args []string) error {
	var from io.Reader
	switch {
	case len(args) == 2 && args[1] != "-":
		from = bytes.NewReader([]byte(args[1]))
	case len(args) == 1 && isTerminal(a.in):
		return usagef("write %s: give the text, or - to type it and end with Ctrl-D", show(args[0]))
	default:
		// Not a bare file: what cannot be rewound must not be asked to.
		from = struct{ io.Reader }{a.in}
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	path, err := a.inSession(ctx, c, args[0])
	if err != nil {
		return err
	}
	n, err := c.WriteFile(ctx, path, from)
	if err != nil {
		return err
	}
	out := struct {
		control.PathName
		Size int64 `json:"size"`
	}{control.NameOf(path), n}
	return a.result(out, func(w io.Writer) {
		fmt.Fprintf(w, "Wrote %s to %s.\n", size(n), show(path))
	})
}

// inSession makes an absolute path below the mount point or the base relative.
func (a *app) inSession(ctx context.Context, c *control.Client, path string) (string, error) {
	if !filepath.IsAbs(path) {
		return path, nil
	}
	st, err := c.Status(ctx)
	if err != nil {
		return "", err
	}
	clean := filepath.Clean(path)
	for _, name := range []control.PathName{{Path: st.Mountpoint, PathB64: st.MountpointB64}, {Path: st.Base, PathB64: st.BaseB64}} {
		root, err := name.Bytes()
		if err != nil {
			return "", fmt.Errorf("read where the session is: %w", err)
		}
		if rest, ok := strings.CutPrefix(clean, strings.TrimSuffix(root, "/")+"/"); ok {
			return rest, nil
		}
	}
	return "", failf(exitPath, "%s lies neither below the mount point %s nor below the base", show(path), show(st.Mountpoint))
}
