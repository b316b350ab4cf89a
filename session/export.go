package session

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/zstd"

	"github.com/rewindfs/rewindfs/archive"
	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/journal"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
	"github.com/rewindfs/rewindfs/memory"
)

// export answers with the state of a checkpoint, as an archive or as a tar stream.
func (s *Session) export(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	x := control.ExportRequest{Ref: q.Get("ref"), Format: q.Get("format"), Compress: q.Get("compress"), History: q.Get("history") != "", WithBase: q.Get("with_base") != ""}
	if x.Format == "" {
		x.Format = control.FormatArchive
	}
	if err := checkExport(&x); err != nil {
		return err
	}
	done, err := s.stay()
	if err != nil {
		return err
	}
	defer done()
	to, err := s.exported(r.Context(), x.Ref)
	if err != nil {
		return err
	}
	list, unpin, err := s.pin(to, x.History)
	if err != nil {
		return err
	}
	defer unpin()
	w.Header().Set("Trailer", control.ExportTrailer+", "+control.ErrorTrailer)
	w.Header().Set("Content-Type", "application/octet-stream")
	var out *control.Exported
	if x.Format == control.FormatArchive {
		out, err = s.exportArchive(r.Context(), w, &x, to, list)
	} else {
		out, err = s.exportTar(r.Context(), w, &x, to)
	}
	if err != nil {
		err = exportError(to, err)
		s.log.Warn("export", "checkpoint", to.Name(), "format", x.Format, "error", err)
		return tellExport(r.Context(), w, err)
	}
	result, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("encode the result of an export: %w", err)
	}
	w.Header().Set(control.ExportTrailer, string(result))
	event := s.event(ledger.KindExport)
	event.Label, event.Layer = to.Name(), to.Layer
	if to.Entry != nil {
		event.Checkpoint = to.Entry.ID
	}
	event.Details = map[string]any{
		"format": x.Format, "history": x.History, "with_base": x.WithBase, "checkpoints": out.Checkpoints, "objects": out.Objects,
		"bytes": out.Bytes, "digest": out.Digest,
	}
	s.audit(event)
	s.log.Info("export", "checkpoint", to.Name(), "format", x.Format, "objects", out.Objects, "bytes", out.Bytes)
	return nil
}

func checkExport(x *control.ExportRequest) error {
	isArchive := x.Format == control.FormatArchive
	switch {
	case !slices.Contains([]string{control.FormatArchive, control.FormatTar, control.FormatOCI}, x.Format):
		return badRequest("there is no format %q: use %s, %s or %s", x.Format, control.FormatArchive, control.FormatTar, control.FormatOCI)
	case !isArchive && (x.History || x.WithBase):
		return badRequest("history and the content of the base go with the format %s", control.FormatArchive)
	case isArchive && x.Compress != "":
		return badRequest("an archive is compressed as it is: --compress is for the other formats")
	case !slices.Contains([]string{"", "none", "gzip", "zstd"}, x.Compress):
		return badRequest("there is no compression %q: use none, gzip or zstd", x.Compress)
	}
	return nil
}

// exported finds what is to be exported; of the present state it makes a checkpoint.
func (s *Session) exported(ctx context.Context, ref string) (journal.Target, error) {
	switch ref {
	case "":
		return journal.Target{}, badRequest("name the checkpoint that is to be exported")
	case control.RefHead:
		s.heads.Lock()
		defer s.heads.Unlock()
		if err := s.alive(); err != nil {
			return journal.Target{}, err
		}
		to, err := s.sealPresent(ctx, "export")
		return to, apiError(err)
	}
	return s.resolveAnywhere(ref)
}

func exportError(to journal.Target, err error) error {
	if errors.Is(err, archive.ErrWhiteout) {
		return badPath("%v", err)
	}
	return apiError(fmt.Errorf("export %s: %w", to.Name(), err))
}

// tellExport has an error come behind the bytes that were sent, when somebody still waits for it.
func tellExport(ctx context.Context, w http.ResponseWriter, err error) error {
	var api *control.Error
	if ctx.Err() != nil || !errors.As(err, &api) {
		return err
	}
	said, jerr := json.Marshal(api)
	if jerr != nil {
		return err
	}
	w.Header().Set(control.ErrorTrailer, string(said))
	return nil
}

// baseUnder opens the base that a layer is built on.
func (s *Session) baseUnder(v *layers.View) (*layers.View, error) {
	return s.tree.BaseView(v.Generation())
}

func (s *Session) exportTar(ctx context.Context, w io.Writer, x *control.ExportRequest, to journal.Target) (*control.Exported, error) {
	v, err := s.branch.At(layers.Layer(to.Layer))
	if err != nil {
		return nil, err
	}
	defer v.Close()
	z, err := compressor(w, x.Compress)
	if err != nil {
		return nil, err
	}
	var done archive.Tarred
	if x.Format == control.FormatOCI {
		base, berr := s.baseUnder(v)
		if berr != nil {
			return nil, berr
		}
		defer base.Close()
		done, err = archive.OCILayer(ctx, z, base, v)
	} else {
		done, err = archive.Tar(ctx, z, v)
	}
	if err = firstOf(err, z.Close()); err != nil {
		return nil, err
	}
	return &control.Exported{
		Format: x.Format, Checkpoint: to.Name(), Checkpoints: 1, Objects: int64(done.Entries), Bytes: done.Bytes, Sockets: done.Sockets, Whiteouts: done.Whiteout,
	}, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func compressor(w io.Writer, how string) (io.WriteCloser, error) {
	switch how {
	case "gzip":
		return gzip.NewWriter(w), nil
	case "zstd":
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	}
	return nopCloser{w}, nil
}

// pin lists the checkpoints that an export of to needs, the oldest first, and keeps their layers and conversations from collections
// until unpin is called, also when they are dropped meanwhile.
func (s *Session) pin(to journal.Target, history bool) (list []journal.Entry, unpin func(), err error) {
	s.layering.Lock()
	defer s.layering.Unlock()
	at := layers.Layer(to.Layer)
	switch {
	case at != layers.BaseLayer && !s.tree.Has(at):
		return nil, nil, &control.Error{Code: control.CodeUnknownCheckpoint, Message: fmt.Sprintf("%s was dropped before it could be exported", to.Name())}
	case to.Entry == nil: // nothing drops the base
		return nil, func() {}, nil
	case history:
		below := s.tree.Line(at)
		list = s.journal.List(func(l uint64) bool { return below(layers.Layer(l)) && s.tree.Has(layers.Layer(l)) })
		list = slices.DeleteFunc(list, func(e journal.Entry) bool { return e.Layer == to.Layer && e.Seq > to.Entry.Seq })
		slices.Reverse(list)
	default:
		list = []journal.Entry{*to.Entry}
	}
	p := &list
	s.pinned[p] = struct{}{}
	return list, func() {
		s.layering.Lock()
		defer s.layering.Unlock()
		delete(s.pinned, p)
	}, nil
}

func (s *Session) exportArchive(ctx context.Context, w io.Writer, x *control.ExportRequest, to journal.Target, list []journal.Entry) (*control.Exported, error) {
	if to.Entry == nil {
		return nil, badRequest("%s is no checkpoint, so there is nothing for an archive: use --format %s", to.Name(), control.FormatTar)
	}
	a, err := archive.NewWriter(w, archive.Header{
		Made: s.o.Now().UTC(), Version: s.o.Version, Session: s.o.Name, Base: filepath.Base(s.o.Base), WithBase: x.WithBase, History: x.History,
	})
	if err != nil {
		return nil, err
	}
	if err := s.exportTrees(ctx, a, list, x.WithBase); err != nil {
		return nil, err
	}
	if err := s.exportTalk(ctx, a, list); err != nil {
		return nil, err
	}
	d, err := a.Close()
	left := 0
	for i := range list {
		left += len(list[i].Targets)
	}
	return &control.Exported{
		Format: x.Format, Checkpoint: to.Name(), Checkpoints: a.Counts.Checkpoints, Objects: a.Counts.Objects, Bytes: a.Counts.Bytes,
		Messages: a.Counts.Messages, Digest: hex.EncodeToString(d[:]), Targets: left,
	}, err
}

// exportTrees writes the state of each checkpoint, and its entry.
func (s *Session) exportTrees(ctx context.Context, a *archive.Writer, list []journal.Entry, withBase bool) error {
	x := archive.NewExporter(ctx, a, s.tree)
	first, err := s.tree.View(layers.Layer(list[0].Layer))
	if err != nil {
		return err
	}
	last, err := s.baseUnder(first) // the state before the next one
	first.Close()
	if err != nil {
		return err
	}
	defer func() { last.Close() }()
	if !withBase {
		if err := x.Base(last); err != nil {
			return err
		}
	}
	at := layers.BaseLayer
	for i := range list {
		e := &list[i]
		l := layers.Layer(e.Layer)
		same := i > 0 && l == at
		var v *layers.View
		if same {
			err = x.Same()
		} else if v, err = s.tree.View(l); err == nil {
			if i == 0 && withBase {
				err = x.Full(v)
			} else {
				err = x.Delta(at, l, last, v)
			}
			last.Close()
			last, at = v, l
		}
		if err == nil {
			err = a.Checkpoint(s.archivedEntry(e, same))
		}
		if err != nil {
			return fmt.Errorf("checkpoint %s: %w", journal.Target{Entry: e}.Name(), err)
		}
	}
	return nil
}

// archivedEntry is how an archive has a checkpoint. One that was attached is no longer only recorded.
func (s *Session) archivedEntry(e *journal.Entry, same bool) *archive.Checkpoint {
	d, decided := s.journal.Decided(e.ID)
	c := &archive.Checkpoint{
		ID: e.ID, Label: e.Label, Message: e.Message, Metadata: e.Metadata, Phase: e.Phase, Turn: e.Turn, ToolCall: e.ToolCall,
		CreatedAt: e.CreatedAt.UTC(), Auto: e.Auto, Pending: e.Pending && (!decided || d.Kind != journal.Attach), SameLayer: same,
	}
	if e.Tool != nil {
		c.Tool, _ = json.Marshal(e.Tool) // strings and booleans always can be
	}
	for name, ref := range threadsOf(e.Conversation) {
		if c.Threads == nil {
			c.Threads = map[string]archive.Thread{}
		}
		c.Threads[name] = archive.Thread{Format: string(ref.Format), Lines: ref.Lines, Messages: ref.Messages, Digest: ref.Digest, Missing: ref.Missing}
	}
	return c
}

// exportTalk writes the conversations of the checkpoints, each message in its place once.
func (s *Session) exportTalk(ctx context.Context, a *archive.Writer, list []journal.Entry) error {
	if err := a.Begin(archive.SectionTalk); err != nil {
		return err
	}
	sent := map[[32]byte]struct{}{}
	known := func(d [32]byte) bool { _, ok := sent[d]; return ok }
	for _, e := range list {
		for name, ref := range threadsOf(e.Conversation) {
			if err := s.exportThread(ctx, a, ref, known, sent); err != nil {
				return fmt.Errorf("thread %q of checkpoint %s: %w", name, journal.Target{Entry: &e}.Name(), err)
			}
		}
	}
	return a.End()
}

func (s *Session) exportThread(ctx context.Context, a *archive.Writer, ref memory.Ref, known func([32]byte) bool, sent map[[32]byte]struct{}) error {
	if ref.Missing {
		return nil
	}
	links, err := s.memory.Since(ref, known)
	if err != nil {
		return err
	}
	for _, l := range links {
		m, err := s.memory.Message(l)
		if err == nil {
			err = a.Link(archive.Link{Before: l.Before, Index: uint64(l.Index), Message: m})
		}
		if err = firstOf(err, ctx.Err()); err != nil {
			return err
		}
		sent[l.Digest] = struct{}{}
	}
	return nil
}
