package fs

import (
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/layers"
)

// Cookies of the entries that layers does not have; its own start at 16.
const (
	cookieDot    = 1
	cookieDotDot = 2
)

// opReaddirplus is the opcode of READDIRPLUS, for which an entry has another form.
const opReaddirplus = 44

const (
	direntSize = 24  // struct fuse_dirent without the name
	entrySize  = 128 // struct fuse_entry_out
)

// room is how many bytes of out are left; in.Size says how many there are.
func room(in *fuse.ReadIn, out *fuse.DirEntryList) int { return int(in.Size) - len(out.Bytes()) }

func need(name string) int { return direntSize + (len(name)+7)&^7 }

func (f *FS) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.list(in, out, func(p place, e *layers.Entry) (bool, error) {
		return out.AddDirEntry(fuse.DirEntry{Name: e.Name, Ino: p.statIno(e.Ino), Mode: e.Type, Off: e.Cookie}), nil
	})
}

func (f *FS) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.list(in, out, func(p place, e *layers.Entry) (bool, error) {
		if room(in, out) < entrySize+need(e.Name) {
			return false, nil
		}
		d := fuse.DirEntry{Name: e.Name, Ino: p.statIno(e.Ino), Mode: e.Type, Off: e.Cookie}
		added := false
		_, err := f.enter(p, e.Name, func(a *layers.Attr) *fuse.EntryOut {
			added = true
			d.Ino, d.Mode = p.statIno(a.Ino), a.Mode
			return out.AddDirLookupEntry(d)
		})
		if added || errors.Is(err, unix.ENOENT) { // else removed since it was listed
			return true, nil
		}
		// The name is there; let whoever touches it get the error. Node 0 says no more than the name.
		f.log.Warn("listed, but cannot be looked at", "dir", in.NodeId, "name", e.Name, "error", err)
		out.AddDirLookupEntry(d)
		return true, nil
	})
}

// list runs add for the entries of in's directory from its offset on. add returns
// false when it has no room left.
func (f *FS) list(in *fuse.ReadIn, out *fuse.DirEntryList, add func(place, *layers.Entry) (bool, error)) fuse.Status {
	if isVirtual(in.NodeId) {
		return f.listVirtual(in, out)
	}
	p, st := f.at(in.NodeId)
	if st != fuse.OK {
		return st
	}
	plain := func(name string, ino uint64, cookie uint64) bool {
		if in.Opcode == opReaddirplus {
			// Node 0: the kernel knows these two already.
			return out.AddDirLookupEntry(fuse.DirEntry{Name: name, Ino: ino, Mode: unix.S_IFDIR, Off: cookie}) != nil
		}
		return out.AddDirEntry(fuse.DirEntry{Name: name, Ino: ino, Mode: unix.S_IFDIR, Off: cookie})
	}
	if in.Offset < cookieDot && !plain(".", p.statIno(p.ino), cookieDot) {
		return fuse.OK
	}
	if in.Offset < cookieDotDot {
		up, err := p.view.Parent(p.ino)
		if err != nil {
			return f.status("readdir", in.NodeId, err)
		}
		if !plain("..", p.statIno(up), cookieDotDot) {
			return fuse.OK
		}
	}
	from := in.Offset
	if from <= cookieDotDot {
		from = 0
	}
	var failed error
	err := p.view.ReadDir(p.ino, from, func(e layers.Entry) bool {
		if in.NodeId == fuse.FUSE_ROOT_ID && e.Name == rewindName {
			return true // ours hides it, see rewind.go
		}
		ok, err := add(p, &e)
		failed = err
		return ok && err == nil
	})
	return f.status("readdir", in.NodeId, errors.Join(err, failed))
}
