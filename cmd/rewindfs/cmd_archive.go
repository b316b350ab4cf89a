package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rewindfs/rewindfs/control"
)

func (a *app) newExport() *cobra.Command {
	r, file := control.ExportRequest{}, ""
	cmd := &cobra.Command{
		Use:   "export REF -o FILE",
		Short: "Put a checkpoint into one file, to bring it elsewhere",
		Long: `Put the state of checkpoint REF, of whatever branch, with its entry in the journal and its conversations, into one compressed file that
import makes a branch of: in this session, or in another on another machine. REF @head is the present state, of which a checkpoint is made.
With --history all checkpoints on the way to it come along. Without --with-base the file only holds what differs from the base, and can be imported
where the base has the same content; with it, anywhere.

--format tar writes the tree of REF as a tar stream instead (PAX: times to the nanosecond, extended attributes, hard links, devices; holes
become zeros, sockets are left out), --format oci-layer what differs from the base as a layer of an OCI image, with whiteouts. --compress is for these.

FILE is there when it is whole, and not before; FILE - is standard output.

` + exitHelp,
		Args:              exactly(1, "one checkpoint"),
		ValidArgsFunction: a.completeOneRef,
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.Ref = args[0]; r.Ref == "" {
				return failf(exitCheckpoint, "the name of the checkpoint is empty (for the present state: %s)", control.RefHead)
			}
			return a.runExport(cmd.Context(), r, file)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "output", "o", "", "the file to write, - for standard output")
	f.BoolVar(&r.History, "history", false, "all checkpoints on the way to it, too")
	f.BoolVar(&r.WithBase, "with-base", false, "the content of the base, too")
	f.StringVar(&r.Format, "format", control.FormatArchive, "archive, tar or oci-layer")
	f.StringVar(&r.Compress, "compress", "", "none, gzip or zstd, of tar and oci-layer (default none)")
	return cmd
}

// exported is what export prints as JSON. Size is that of the file, in bytes.
type exported struct {
	control.PathName
	Size int64 `json:"size"`
	*control.Exported
}

func (a *app) runExport(ctx context.Context, r control.ExportRequest, file string) error {
	switch {
	case file == "":
		return usagef("say where to: rewindfs export REF -o FILE (- for standard output)")
	case file == "-" && a.json:
		return usagef("--json and -o - both want standard output")
	case file == "-" && isTerminal(a.out):
		return usagef("this is not for a terminal: send it to a file or another program")
	case file != "-":
		if err := checkOutFile(file); err != nil {
			return err
		}
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	p := &counted{bar: a.newBar("export")}
	out := exported{PathName: control.NameOf(file)}
	get := func(w io.Writer) (err error) {
		out.Exported, err = c.Export(ctx, r, io.MultiWriter(w, p))
		return firstOf(ctx.Err(), err)
	}
	if file == "-" {
		err = get(a.out)
	} else {
		err = writeOutStream(file, get)
	}
	p.end()
	if err != nil {
		return err
	}
	out.Size = p.n
	text := func(w io.Writer) {
		fmt.Fprintf(w, "Exported '%s' to %s: %s, %s, %s of content in %s.\n", out.Checkpoint, show(file),
			count(int64(out.Checkpoints), "checkpoint"), count(out.Objects, "file"), size(out.Exported.Bytes), size(out.Size))
		if out.Sockets > 0 {
			fmt.Fprintf(w, "Left out: %s, which tar has no words for.\n", count(int64(out.Sockets), "socket"))
		}
		if out.Targets > 0 {
			fmt.Fprintf(w, "Left out: what %d targets outside of the mount held.\n", out.Targets)
		}
		if r.Format == control.FormatArchive {
			fmt.Fprintf(w, "Bring it back with: rewindfs import %s --branch NAME\n", quoteArg(show(file)))
		}
	}
	if file == "-" {
		if !a.quiet {
			text(a.err)
		}
		return nil
	}
	return a.result(out, text)
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *app) newImport() *cobra.Command {
	var branch, base, at string
	cmd := &cobra.Command{
		Use:   "import FILE --branch NAME",
		Short: "Make a branch of a file that export wrote",
		Long: `Make a branch of the archive FILE (- is standard input) and mount it, beside the session or at --at. It has the checkpoints of the archive,
each of which can be gone back to, with their conversations. With --base DIR the session is that of DIR, which is mounted when it is not.

An archive that was exported without --with-base needs a base with the same content; where it is another one, the paths that differ are listed
(exit code 6). The file is checked before anything happens, and is trusted in nothing: when it is damaged, or holds what no archive may, nothing of it
stays. Labels that cannot be kept are changed, and named.

` + exitHelp,
		Args: exactly(1, "one file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runImport(cmd.Context(), args[0], branch, base, at)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&branch, "branch", "b", "", "name of the new branch")
	f.StringVar(&base, "base", "", "import into the session of this directory, and mount that when need be")
	f.StringVar(&at, "at", "", "where to mount the branch")
	return cmd
}

func (a *app) runImport(ctx context.Context, file, branch, base, at string) error {
	r := control.ImportRequest{Branch: branch}
	if branch == "" {
		return usagef("say what the new branch is called: rewindfs import FILE --branch NAME")
	}
	if at != "" {
		place, err := placeArg(at)
		if err == nil {
			r.Mountpoint, err = place.Bytes()
		}
		if err != nil {
			return err
		}
	}
	from, total := a.in, int64(0)
	if file == "-" && isTerminal(a.in) {
		return usagef("an archive cannot be typed: name a file, or send one to standard input")
	}
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return failf(exitPath, "%w", err)
		}
		defer f.Close()
		fi, err := f.Stat()
		if err != nil || fi.IsDir() {
			return failf(exitPath, "%s is no file that can be read", show(file))
		}
		from, total = f, fi.Size()
	}
	if base != "" {
		if err := a.mountFor(ctx, base); err != nil {
			return err
		}
	}
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	c.Branch = ""
	p := &counted{bar: a.newBar("import: sending"), total: total, then: "import: checking and building"}
	// Not the file itself: what has been read cannot be sent again.
	im, err := c.Import(ctx, r, io.TeeReader(struct{ io.Reader }{from}, p))
	p.end()
	if err = firstOf(ctx.Err(), err); err != nil {
		return a.differing(err)
	}
	return a.result(im, func(w io.Writer) { printImported(w, im) })
}

// mountFor mounts a base when nobody serves it, and makes it the session that is meant.
func (a *app) mountFor(ctx context.Context, base string) error {
	o := &mountOptions{logLevel: "info"}
	so, _, err := o.resolve([]string{base})
	if err != nil {
		return err
	}
	a.session = so.Store
	c := &control.Client{Socket: filepath.Join(so.Store, control.SocketName)}
	defer c.Close()
	err = c.Ping(ctx)
	if err == nil {
		return nil
	}
	if !errors.Is(err, control.ErrNoDaemon) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := a.background(ctx, o, so); err != nil {
		return err
	}
	a.note("%s is at %s, writable.", show(so.Base), show(so.Mountpoint))
	return nil
}

// differing lists the paths by which a base is another one, if that is what err is about.
func (a *app) differing(err error) error {
	var api *control.Error
	if a.json || !errors.As(err, &api) {
		return err
	}
	paths, _ := api.Details["paths"].([]any)
	for _, p := range paths {
		if m, ok := p.(map[string]any); ok {
			path, _ := m["path"].(string)
			a.complain(fmt.Sprintf("  %s: %v", show(path), m["why"]))
		}
	}
	if total, ok := api.Details["total"].(float64); ok && int(total) > len(paths) {
		a.complain(fmt.Sprintf("  and %d more", int(total)-len(paths)))
	}
	return err
}

func printImported(w io.Writer, im *control.Imported) {
	fmt.Fprintf(w, "Branch %s has %s of the archive (%s, %s of content)", show(im.Branch), count(int64(len(im.Checkpoints)), "checkpoint"), count(im.Objects, "file"), size(im.Bytes))
	if im.Problem == "" {
		fmt.Fprintf(w, ", and is at %s, writable.\n", show(im.Mountpoint))
	} else {
		fmt.Fprintf(w, ", but could not be mounted: %s. Then: rewindfs branch mount %s [MOUNTPOINT]\n", show(im.Problem), quoteArg(show(im.Branch)))
	}
	for _, label := range slices.Sorted(maps.Keys(im.Renamed)) {
		fmt.Fprintf(w, "The label %s could not be kept: it is %s now.\n", show(label), show(im.Renamed[label]))
	}
	if im.Conversation.State == "present" {
		fmt.Fprintf(w, "conversation: %s\n", describeConversation(im.Conversation))
	}
	fmt.Fprintf(w, "Next:  cd %s\nDelete it with: rewindfs branch delete %s\n", quoteArg(show(im.Mountpoint)), quoteArg(show(im.Branch)))
}
