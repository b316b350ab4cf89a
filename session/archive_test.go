package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"

	"github.com/rewindfs/rewindfs/archive"
	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/kv"
	"github.com/rewindfs/rewindfs/layers"
	"github.com/rewindfs/rewindfs/ledger"
)

func (r *rig) export(t *testing.T, x control.ExportRequest) ([]byte, *control.Exported) {
	t.Helper()
	var b bytes.Buffer
	out, err := r.Export(t.Context(), x, &b)
	if err != nil {
		t.Fatalf("export %+v: %v", x, err)
	}
	return b.Bytes(), out
}

func (r *rig) bring(t *testing.T, file []byte, branch string) *control.Imported {
	t.Helper()
	out, err := r.Import(t.Context(), control.ImportRequest{Branch: branch}, bytes.NewReader(file))
	if err != nil {
		t.Fatalf("import: %v", err)
	}
	return out
}

// story makes three checkpoints with conversations, the last two of one layer.
func (r *rig) story(t *testing.T) {
	t.Helper()
	r.write(t, "a.txt", "one\n")
	r.sync(t, "", say(1, ""))
	r.checkpoint(t, "first")
	r.write(t, "a.txt", "two\n")
	r.write(t, "new", strings.Repeat("n", 300_000))
	r.sync(t, "", say(3, ""))
	r.sync(t, "critic", say(2, ""))
	label := "second"
	if _, err := r.Checkpoint(t.Context(), control.CheckpointRequest{Label: &label, Message: "why", Metadata: map[string]string{"k": "v"}, Phase: "plan"}); err != nil {
		t.Fatal(err)
	}
	if b := r.begin(t, control.ToolBegin{Name: "write", Call: "c1", Step: "s1"}); b.Checkpoint == nil {
		t.Fatal("no checkpoint in front of the call")
	}
}

func TestArchiveIntoAnotherStore(t *testing.T) {
	for _, withBase := range []bool{false, true} {
		t.Run(fmt.Sprintf("with base %v", withBase), func(t *testing.T) {
			o := options(t)
			r := start(t, o)
			r.story(t)
			file, out := r.export(t, control.ExportRequest{Ref: "latest", History: true, WithBase: withBase})
			all, _ := r.export(t, control.ExportRequest{Ref: control.RefHead, History: true, WithBase: withBase})
			if out.Checkpoints != 2 || out.Messages != 7 || out.Digest == "" {
				t.Errorf("exported: %+v", out)
			}
			if e := r.events(t, ledger.KindExport); len(e) != 2 || e[0].Label != "second" {
				t.Errorf("ledger: %+v", e)
			}
			o2 := options(t)
			if !withBase {
				o2.Base = o.Base
			}
			other := start(t, o2)
			other.checkpoint(t, "first") // a label of another line is no matter
			im := other.bring(t, file, "im")
			if im.Branch != "im" || im.Mountpoint != other.o.Mountpoint+"-im" || len(im.Checkpoints) != 2 || len(im.Renamed) != 0 || im.Problem != "" || im.Messages != 7 {
				t.Fatalf("imported: %+v", im)
			}
			got := other.on("im")
			if l := fmt.Sprint(got.labels(t, false)); l != "[second first]" {
				t.Errorf("labels: %s", l)
			}
			got.want(t, "", "a.txt", "two\n")
			got.want(t, "first", "a.txt", "one\n")
			got.want(t, "", "sub/b.txt", "base b\n")
			got.want(t, "", "new", strings.Repeat("n", 300_000))
			got.wantMessages(t, 7)
			sameTalk(t, r, "second", got, "second", "")
			sameTalk(t, r, "second", got, "second", "critic")
			sameTalk(t, r, "first", got, "first", "")
			if c := im.Checkpoints[1]; c.Message != "why" || c.Metadata["k"] != "v" || c.Phase != "plan" || c.Metadata["imported_id"] == "" {
				t.Errorf("checkpoint: %+v", c)
			}
			got.rollback(t, "first")
			got.want(t, "", "a.txt", "one\n")
			got.wantNone(t, "new")
			if _, err := got.Undo(t.Context(), control.UndoRequest{}); err != nil {
				t.Fatal(err)
			}
			got.want(t, "", "a.txt", "two\n")
			if e := other.events(t, ledger.KindImport); len(e) != 1 || e[0].Branch != "im" || e[0].Op == 0 {
				t.Errorf("ledger: %+v", e)
			}

			full := other.bring(t, all, "all")
			var seqs []uint64
			for _, c := range full.Checkpoints {
				seqs = append(seqs, c.Seq)
			}
			if fmt.Sprint(seqs) != "[0 0 1 2]" { // what shared a layer does again
				t.Errorf("checkpoints %v of one layer: %+v", seqs, full.Checkpoints)
			}

			// It stays when the daemon comes again.
			if err := other.stop(); err != nil {
				t.Fatal(err)
			}
			again := start(t, other.o)
			again.wantBranches(t, "main mounted, all mounted, im mounted")
			again.on("im").want(t, "", "a.txt", "two\n")
			sameTalk(t, r, "second", again.on("im"), "second", "")
		})
	}
}

func sameTalk(t *testing.T, a *rig, aref string, b *rig, bref, thread string) {
	t.Helper()
	was, err := a.GetMemory(t.Context(), aref, thread, false)
	if err != nil {
		t.Fatal(err)
	}
	now, err := b.GetMemory(t.Context(), bref, thread, false)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(was.Messages, now.Messages, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) || len(was.Messages) == 0 {
		t.Errorf("thread %q of %s was\n%s\nand is\n%s", thread, aref, was.Messages, now.Messages)
	}
}

func TestImportOnAnotherBaseSaysWhatDiffers(t *testing.T) {
	r := start(t, options(t))
	r.story(t)
	file, _ := r.export(t, control.ExportRequest{Ref: "second", History: true})
	o := options(t)
	for name, text := range map[string]string{"sub/b.txt": "other!\n", "extra": "x"} {
		if err := os.WriteFile(filepath.Join(o.Base, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(filepath.Join(o.Base, "a.txt")); err != nil {
		t.Fatal(err)
	}
	other := start(t, o)
	_, err := other.Import(t.Context(), control.ImportRequest{Branch: "im"}, bytes.NewReader(file))
	wantCode(t, err, control.CodeConflict)
	var e *control.Error
	errors.As(err, &e)
	said := fmt.Sprint(e.Details)
	for _, want := range []string{"a.txt", "it is missing", "sub/b.txt", "its content is another one", "extra", "it was not there", "total:3"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q: %s", want, said)
		}
	}
	other.wantNothingLeft(t)
}

// wantNothingLeft finds what a refused import left.
func (r *rig) wantNothingLeft(t *testing.T) {
	t.Helper()
	heads, err := r.s.tree.Heads()
	if err != nil || len(heads) != 1 {
		t.Errorf("branches: %+v, %v", heads, err)
	}
	r.s.layering.Lock()
	if len(r.s.staged) != 0 {
		t.Error("a branch is still staged")
	}
	r.s.layering.Unlock()
	for l := layers.Layer(1); l < 100; l++ {
		if r.s.tree.Has(l) && l != r.s.branch.HeadLayer() {
			t.Errorf("layer %d is still there", l)
		}
	}
	files, err := filepath.Glob(filepath.Join(r.o.Store, "import-*"))
	if err != nil || len(files) > 0 {
		t.Errorf("files: %v, %v", files, err)
	}
	chunks := 0
	if err := r.s.db.Scan(kv.ChunkPrefix(), nil, func(_, _ []byte) bool { chunks++; return true }); err != nil || chunks > 0 {
		t.Errorf("%d chunks are still there, %v", chunks, err)
	}
	if l := r.labels(t, true); len(l) != 0 {
		t.Errorf("checkpoints: %v", l)
	}
}

func TestRefusedImportsLeaveNothing(t *testing.T) {
	r := start(t, options(t))
	r.story(t)
	file, _ := r.export(t, control.ExportRequest{Ref: "second", History: true, WithBase: true})
	other := start(t, options(t))
	tampered := func(change func(p []byte) []byte) []byte { return rebuilt(t, file, change) }
	for name, bad := range map[string][]byte{
		"cut":            file[:len(file)/2],
		"trailing":       append(slices.Clone(file), 0),
		"nothing":        nil,
		"another format": []byte(strings.Repeat("tar?", 1000)),
		"flipped":        func() []byte { b := slices.Clone(file); b[len(b)/2] ^= 4; return b }(),
		// These are whole: only carrying them out shows what is wrong.
		"a conversation that is not there": tampered(func(p []byte) []byte {
			return bytes.Replace(p, []byte(`"messages":3,"digest":"`), []byte(`"messages":4,"digest":"`), 1)
		}),
		"a message that is no JSON": tampered(func(p []byte) []byte {
			return bytes.Replace(p, []byte(`{"role":"user","content":"do 2"}`), []byte(`{"role":"user","content":"do 2"!`), 1)
		}),
		"a bad label": tampered(func(p []byte) []byte {
			return bytes.Replace(p, []byte(`"label":"second"`), []byte(`"label":"../cnd"`), 1)
		}),
		"a name twice": tampered(func(p []byte) []byte { return bytes.Replace(p, []byte("\x03new"), []byte("\x03sub"), 1) }),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := other.Import(t.Context(), control.ImportRequest{Branch: "im"}, bytes.NewReader(bad))
			wantCode(t, err, control.CodeBadArchive)
			if !strings.Contains(err.Error(), "nothing was imported") {
				t.Errorf("it does not say that nothing was imported: %v", err)
			}
			other.wantNothingLeft(t)
		})
	}
	newer := slices.Clone(file)
	binary.BigEndian.PutUint32(newer[16:], 2)
	_, err := other.Import(t.Context(), control.ImportRequest{Branch: "im"}, bytes.NewReader(newer))
	wantCode(t, err, control.CodeUnsupported)
	_, err = other.Import(t.Context(), control.ImportRequest{Branch: "main"}, bytes.NewReader(file))
	wantCode(t, err, control.CodeConflict)
	_, err = other.Import(t.Context(), control.ImportRequest{Branch: "a/b"}, bytes.NewReader(file))
	wantCode(t, err, control.CodeBadRequest)
}

// rebuilt changes the records of an archive and makes all digests right again.
func rebuilt(t *testing.T, file []byte, change func([]byte) []byte) []byte {
	t.Helper()
	const start = 20
	z, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	p, err := z.DecodeAll(file[start:len(file)-32], nil)
	if err != nil {
		t.Fatal(err)
	}
	q := change(slices.Clone(p))
	if bytes.Equal(p, q) {
		t.Fatal("nothing was changed")
	}
	// Digests of sections.
	begin := 0
	for at := 0; at < len(q); {
		n, k := binary.Uvarint(q[at+1:])
		end := at + 1 + k + int(n)
		switch q[at] {
		case 'B':
			begin = at
		case 'E':
			d := blake3.Sum256(q[begin:at])
			copy(q[end-32:], d[:])
		}
		at = end
	}
	e, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	out := e.EncodeAll(q, slices.Clone(file[:start]))
	d := blake3.Sum256(out)
	return append(out, d[:]...)
}

// Whoever sends an archive may go away in the middle.
func TestImportThatIsGivenUpLeavesNothing(t *testing.T) {
	r := start(t, options(t))
	r.story(t)
	file, _ := r.export(t, control.ExportRequest{Ref: "second", WithBase: true})
	other := start(t, options(t))
	ctx, cancel := context.WithCancel(t.Context())
	from := io.MultiReader(bytes.NewReader(file[:len(file)/2]), readerFunc(func([]byte) (int, error) {
		cancel()
		return 0, ctx.Err()
	}))
	if _, err := other.Import(ctx, control.ImportRequest{Branch: "im"}, from); err == nil {
		t.Fatal("half an archive was imported")
	}
	other.wantNothingLeft(t)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// An import that was not finished when the daemon died leaves nothing for the next one.
func TestUnfinishedImportIsDroppedAtTheNextStart(t *testing.T) {
	r := start(t, options(t))
	b, err := r.s.stageBranch()
	if err != nil {
		t.Fatal(err)
	}
	a, err := b.Mknod(layers.RootIno, "half", 0o600, 0, layers.Cred{})
	if err != nil {
		t.Fatal(err)
	}
	b.Forget(a.Ino, 1)
	if _, err := b.Seal(nil); err != nil {
		t.Fatal(err)
	}
	r.wantBranches(t, "main mounted")
	_, err = r.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	again := start(t, r.o)
	again.s.background.Wait()
	again.wantNothingLeft(t)
}

// What an import has sealed is not taken by a collection meanwhile.
func TestCollectionSparesWhatIsBeingImported(t *testing.T) {
	r := start(t, options(t))
	b, err := r.s.stageBranch()
	if err != nil {
		t.Fatal(err)
	}
	first, err := b.Seal(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Seal(nil); err != nil {
		t.Fatal(err)
	}
	r.s.sweepDropped(context.Background())
	if !r.s.tree.Has(first.Layer) {
		t.Error("a layer of a staged branch was given up")
	}
	r.s.dropStaged(b)
	r.wantNothingLeft(t)
}

func TestImportKeepsLabelsApart(t *testing.T) {
	r := start(t, options(t))
	c := r.checkpoint(t, "x")
	m := &importing{s: r.s}
	for _, l := range []string{"a", "a", "", "", c.ID[:10], strings.Repeat("l", 200), strings.Repeat("l", 200)} {
		e, err := entryOf(&archive.Checkpoint{Label: l})
		if err != nil {
			t.Fatal(err)
		}
		m.entries = append(m.entries, e)
	}
	renamed := m.labels()
	var got []string
	for _, e := range m.entries {
		got = append(got, e.Label)
	}
	want := []string{"a", "a-2", "", "", c.ID[:10] + "-2", strings.Repeat("l", 200), strings.Repeat("l", 198) + "-2"}
	if !slices.Equal(got, want) || len(renamed) != 3 {
		t.Errorf("labels are %q, renamed %v", got, renamed)
	}
}

// stalled is a reader of an export that takes nothing until then.
type stalled struct {
	got         bytes.Buffer
	begun, then chan struct{}
}

func (w *stalled) Write(p []byte) (int, error) {
	if w.got.Len() == 0 {
		close(w.begun)
		<-w.then
	}
	return w.got.Write(p)
}

// TestExportKeepsWhatItNeeds: a collection meanwhile drops checkpoints, and the export has them all the same.
func TestExportKeepsWhatItNeeds(t *testing.T) {
	o := options(t)
	r := start(t, o)
	for i := range 6 {
		r.write(t, "f", randomText(uint64(i), 3<<20)) // far more than a socket holds
		r.checkpoint(t, fmt.Sprint("c", i))
	}
	w := &stalled{begun: make(chan struct{}), then: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := r.Export(t.Context(), control.ExportRequest{Ref: "c5", History: true}, w)
		done <- err
	}()
	select {
	case <-w.begun:
	case err := <-done:
		t.Fatalf("export: %v", err)
	}
	if g := r.gc(t, control.GCRequest{GCRules: control.GCRules{Keep: keep(1).Keep, ForgetUndo: true}}); len(g.Dropped) != 5 || g.Layers != 0 {
		t.Errorf("the collection: %+v", g)
	}
	close(w.then)
	if err := <-done; err != nil {
		t.Fatalf("export: %v", err)
	}
	o2 := options(t)
	o2.Base = o.Base
	other := start(t, o2)
	if im := other.bring(t, w.got.Bytes(), "im"); len(im.Checkpoints) != 6 {
		t.Errorf("imported: %+v", im)
	}
	for i := range 6 {
		other.on("im").want(t, fmt.Sprint("c", i), "f", randomText(uint64(i), 3<<20))
	}
	if g := r.gc(t, control.GCRequest{}); g.Layers != 5 {
		t.Errorf("afterwards: %+v", g)
	}
}
