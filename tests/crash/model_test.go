package crash

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// file is what must be there under a name.
type file struct {
	content []byte // never changed in place
	mode    uint32 // permission bits
	mtime   int64  // nanoseconds since 1970; 0: nobody has seen it yet
}

// model is a flat directory.
type model map[string]file

// edit is what an operation does to one name: nil takes it away.
type edit struct {
	name string
	file *file
}

func (m model) apply(edits []edit) {
	for _, e := range edits {
		if e.file == nil {
			delete(m, e.name)
		} else {
			m[e.name] = *e.file
		}
	}
}

// read describes what is in the directory now. Of the names that its listing does
// not have, none of those in known may be found by looking it up.
func read(dir string, known []string) (model, error) {
	ents, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	m := make(model, len(ents))
	for _, e := range ents {
		if m[e.Name()], err = readFile(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	for _, name := range known {
		if _, ok := m[name]; ok {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			return nil, fmt.Errorf("%s is not in the listing, but looking it up says: %v", name, err)
		}
	}
	return m, nil
}

func readFile(path string) (file, error) {
	f, err := os.Open(path)
	if err != nil {
		return file{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return file{}, err
	}
	p := make([]byte, info.Size())
	if _, err := io.ReadFull(f, p); err != nil {
		return file{}, fmt.Errorf("read %s, %d bytes by its size: %w", path, len(p), err)
	}
	if n, err := f.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return file{}, fmt.Errorf("read %s behind its size of %d: %d bytes, %v", path, len(p), n, err)
	}
	return file{p, uint32(info.Mode().Perm()), info.ModTime().UnixNano()}, nil
}

// seenMtime asks for a file's modification time, as programs do that compare it later.
func seenMtime(path string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, err
	}
	return st.Mtim.Nano(), nil
}

// diff says which name differs and how, "" and "" if none does.
func diff(want, got model) (name, how string) {
	for n, w := range want {
		g, ok := got[n]
		switch {
		case !ok:
			return n, fmt.Sprintf("(%d bytes) is missing", len(w.content))
		case !bytes.Equal(g.content, w.content):
			return n, fmt.Sprintf("has %d bytes, want %d; they differ from byte %d on", len(g.content), len(w.content), firstDiff(g.content, w.content))
		case g.mode != w.mode:
			return n, fmt.Sprintf("has mode %#o, want %#o", g.mode, w.mode)
		case w.mtime != 0 && g.mtime != w.mtime:
			return n, fmt.Sprintf("has mtime %v, want %v", time.Unix(0, g.mtime).UTC(), time.Unix(0, w.mtime).UTC())
		}
	}
	for n, g := range got {
		if _, ok := want[n]; !ok {
			return n, fmt.Sprintf("(%d bytes) should not be there", len(g.content))
		}
	}
	return "", ""
}

func firstDiff(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
