package layers

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
	"github.com/tidwall/btree"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// dirState is what a view knows of one directory: its name records, complete, and
// for as long as a listing goes on, the names of the base directory. Guarded by Tree.mu.
//
// Listings are ordered by a hash of the name, as ext4's are. So a cookie needs no
// memory and stays valid whatever is added or removed around it.
type dirState struct {
	names  *btree.BTreeG[dirent] // nil: no records
	base   []baseName            // base names by position, set while listed
	listed bool                  // base is set
	reads  readRun               // how far its files have been read in the listing's order
}

// dirent is a name record, or (with a zero layer) a name of the base listing.
type dirent struct {
	pos  uint64
	name string
	nameRec
}

// baseName is a name of the base listing.
type baseName struct {
	pos  uint64
	name string
	ino  Ino
	typ  uint32
}

func before(pos uint64, name string, pos2 uint64, name2 string) bool {
	if pos != pos2 {
		return pos < pos2
	}
	return name < name2
}

func (a dirent) less(b dirent) bool { return before(a.pos, a.name, b.pos, b.name) }

// firstCookie leaves room for the cookies of "." and "..", which the caller adds.
const firstCookie = 16

// position is the place of a name in its directory's listing: 63 bits, because
// telldir positions are signed.
func position(name string) uint64 {
	return max(xxhash.Sum64String(name)>>1, firstCookie)
}

func (d *dirState) find(name string) (dirent, bool) {
	if d.names == nil {
		return dirent{}, false
	}
	return d.names.Get(dirent{pos: position(name), name: name})
}

func (d *dirState) set(name string, r nameRec) {
	if d.names == nil {
		d.names = btree.NewBTreeGOptions(dirent.less, btree.Options{NoLocks: true, Degree: 16})
	}
	d.names.Set(dirent{pos: position(name), name: name, nameRec: r})
}

func (d *dirState) remove(name string) {
	d.names.Delete(dirent{pos: position(name), name: name})
}

// dirOf returns the state of directory n, loading it. ENOTDIR.
func (v *View) dirOf(n *node) (*dirState, error) {
	if n.dir != nil {
		return n.dir, nil
	}
	ok, err := v.isDir(n)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, unix.ENOTDIR
	}
	d := &dirState{}
	if n.rec != nil { // a directory without a record has no name records either
		if err := v.loadNames(n.ino, d); err != nil {
			return nil, err
		}
	}
	n.dir = d
	return d, nil
}

func (v *View) loadNames(dir Ino, d *dirState) error {
	_, err := v.scanNames(dir, d, math.MaxInt)
	return err
}

// scanNames is loadNames that ends after limit records; whole says that there were no more.
func (v *View) scanNames(dir Ino, d *dirState, limit int) (whole bool, err error) {
	var bad error
	last, have := "", false
	whole = true
	err = v.t.db.Scan(kv.DirPrefix(uint64(dir)), nil, func(k, val []byte) bool {
		if limit--; limit < 0 {
			whole = false
			return false
		}
		_, name, l, ok := kv.ParseName(k)
		if !ok {
			bad = fmt.Errorf("name key %x: %w", k, ErrCorrupt)
			return false
		}
		if (have && name == last) || !v.anc.has(Layer(l)) {
			return true
		}
		rec, err := decodeName(Layer(l), val)
		if err != nil {
			bad = fmt.Errorf("name %q: %w", name, err)
			return false
		}
		last, have = name, true
		d.set(name, rec)
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return false, fmt.Errorf("read directory %d: %w", dir, err)
	}
	return whole, nil
}

// loadName returns the record that the view sees of one name in a directory.
func (v *View) loadName(dir Ino, name string) (rec nameRec, ok bool, err error) {
	err = v.newest(kv.NamePrefix(uint64(dir), name), func(l Layer, val []byte) (err error) {
		rec, err = decodeName(l, val)
		ok = err == nil
		return err
	})
	if err != nil {
		return nameRec{}, false, fmt.Errorf("read name %q of directory %d: %w", name, dir, err)
	}
	return rec, ok, nil
}

// record is loadName for a directory that may be in memory.
func (v *View) record(dn *node, name string) (rec nameRec, ok bool, err error) {
	switch {
	case dn.dir != nil:
		e, ok := dn.dir.find(name)
		return e.nameRec, ok, nil
	case dn.rec == nil: // no name records either
		return nameRec{}, false, nil
	}
	return v.loadName(dn.ino, name)
}

// maxListed bounds the base names kept for listings in progress, over all directories.
const maxListed = 200_000

// list makes the base names of n available. again reads them anew.
func (v *View) list(n *node, d *dirState, again bool) error {
	if !n.inb || n.orphan || (d.listed && !again) {
		d.listed = true
		return nil
	}
	entries, err := v.base.readDir(n.path())
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ESTALE) {
		return err
	}
	v.t.listed -= len(d.base)
	d.base = make([]baseName, 0, len(entries))
	for _, e := range entries {
		d.base = append(d.base, baseName{pos: position(e.name), name: e.name, ino: Ino(e.ino), typ: e.typ})
	}
	slices.SortFunc(d.base, func(a, b baseName) int {
		if a.pos != b.pos {
			if a.pos < b.pos {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	d.listed = true
	d.reads.restart()
	v.t.listed += len(d.base)
	if v.t.listed > maxListed {
		v.unlist(n)
	}
	return nil
}

// unlist drops the base names of every directory but keep.
func (v *View) unlist(keep *node) {
	for _, n := range v.nodes {
		if n != keep {
			v.unlist1(n)
		}
	}
}

// unlist1 drops the base names of one directory.
func (v *View) unlist1(n *node) {
	if n.dir != nil {
		v.t.listed -= len(n.dir.base)
		n.dir.base, n.dir.listed = nil, false
	}
}

// forgetDir drops what is known of a directory's names.
func (v *View) forgetDir(n *node) {
	v.unlist1(n)
	n.dir = nil
}

// listBatch is how many entries are gathered per hold of the lock.
const listBatch = 512

// ReadDir calls fn for the entries of dir behind cookie (0: from the start) in a
// stable order until fn returns false. "." and ".." are not among them. Cookies
// are at least 16.
func (v *View) ReadDir(dir Ino, cookie uint64, fn func(Entry) bool) error {
	again := cookie == 0
	for {
		batch, err := v.entries(dir, cookie, again)
		if err != nil {
			return err
		}
		for _, e := range batch {
			if !fn(e) {
				return nil
			}
		}
		if len(batch) < listBatch {
			return nil
		}
		cookie, again = batch[len(batch)-1].Cookie, false
	}
}

func (v *View) entries(dir Ino, cookie uint64, again bool) ([]Entry, error) {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	n, err := v.get(dir)
	if err != nil {
		return nil, err
	}
	d, err := v.dirOf(n)
	if err != nil {
		return nil, err
	}
	if err := v.list(n, d, again); err != nil {
		return nil, err
	}
	out := make([]Entry, 0, 64)
	bad := error(nil)
	d.ascend(cookie, func(e dirent) bool {
		ent := Entry{Name: e.name, Ino: e.ino, Type: e.typ, Cookie: e.pos}
		if e.layer == 0 && (e.typ == 0 || !v.plain(e.ino)) {
			if ok, err := v.refine(n, &ent); err != nil || !ok {
				bad = err
				return err == nil
			}
		}
		out = append(out, ent)
		return len(out) < listBatch
	})
	return out, bad
}

// plain reports whether a base object of this number has the number here too.
func (v *View) plain(ino Ino) bool {
	t := v.t
	if _, copied := t.copied[ino]; copied || ino <= RootIno || ino >= firstOwnIno {
		return false
	}
	x := t.kept.Load()
	if x == nil && len(t.shared) == 0 {
		return true
	}
	_, shared := t.shared[ino]
	return !shared && !x.hasIno(ino)
}

// refine asks the base about an entry that its listing does not describe fully.
func (v *View) refine(dir *node, e *Entry) (bool, error) {
	p := join(dir.path(), e.Name)
	st, err := v.base.stat(p)
	if err != nil {
		return false, nil // went away meanwhile
	}
	e.Type = st.mode & unix.S_IFMT
	e.Ino, err = v.t.inoOf(p, &st)
	return true, err
}

// ascend merges name records and base names behind cookie, whiteouts left out.
func (d *dirState) ascend(cookie uint64, fn func(dirent) bool) {
	i, _ := slices.BinarySearchFunc(d.base, cookie, func(e baseName, c uint64) int {
		if e.pos <= c {
			return -1
		}
		return 1
	})
	base := d.base[i:]
	stop := false
	flush := func(until *dirent) {
		for len(base) > 0 && !stop && (until == nil || before(base[0].pos, base[0].name, until.pos, until.name)) {
			b := &base[0]
			stop = !fn(dirent{pos: b.pos, name: b.name, nameRec: nameRec{ino: b.ino, typ: b.typ}})
			base = base[1:]
		}
	}
	if d.names != nil {
		d.names.Ascend(dirent{pos: cookie + 1}, func(e dirent) bool {
			flush(&e)
			if stop {
				return false
			}
			if len(base) > 0 && base[0].pos == e.pos && base[0].name == e.name {
				base = base[1:]
			}
			if e.ino != 0 {
				stop = !fn(e)
			}
			return !stop
		})
	}
	flush(nil)
}

// empty reports whether directory n shows no entry.
func (v *View) empty(n *node) (bool, error) {
	d, err := v.dirOf(n)
	if err != nil {
		return false, err
	}
	if err := v.list(n, d, true); err != nil {
		return false, err
	}
	any := false
	d.ascend(0, func(dirent) bool { any = true; return false })
	return !any, nil
}
