package targets

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/zeebo/blake3"

	"github.com/rewindfs/rewindfs/cas"
	"github.com/rewindfs/rewindfs/kv"
)

// ErrCorrupt says that a stored content is not what its digest says, or not there. It also is kv.ErrCorrupt.
var ErrCorrupt = fmt.Errorf("the copy of a target is damaged: %w", kv.ErrCorrupt)

const (
	nodeVersion = 1  // the first byte of a node; its level is the second one, its children follow
	fanout      = 64 // children of a node at most
	maxLevel    = 8  // of a node: more than any file can need
)

type digest = cas.Hash

// Content is something stored: its size in bytes, and the digest of its root node in hex.
type Content struct {
	Size   int64
	Digest string
}

// NameChunks is layers.Tree.NameChunks.
type NameChunks func(sweep uint64, names []cas.Hash, b *kv.Batch) (bool, error)

// Store keeps contents. Its methods may be called by any goroutine.
type Store struct {
	db     *kv.DB
	chunks *cas.Store
	name   NameChunks

	// turn guards holders and sweeping: a Sweep waits until nobody holds, and is waited for while it is at work, but
	// not while it waits itself. So one who holds may wait for another who wants to.
	turn     *sync.Cond
	holders  int
	sweeping bool
	// working is held by whoever is at a target: one at a time, because a process that has a database open twice loses its locks.
	working sync.Mutex
	last    map[string]taken // working: by target
}

// NewStore returns the contents of db and chunks. name may be nil for one that nothing is put into.
func NewStore(db *kv.DB, chunks *cas.Store, name NameChunks) *Store {
	return &Store{db: db, chunks: chunks, name: name, turn: sync.NewCond(&sync.Mutex{}), last: map[string]taken{}}
}

// Hold keeps sweeps away: from before a content is put until its digest is in the journal, and while one is read.
// release may be called more than once.
func (s *Store) Hold() (release func()) {
	s.turn.L.Lock()
	defer s.turn.L.Unlock()
	for s.sweeping {
		s.turn.Wait()
	}
	s.holders++
	return sync.OnceFunc(func() {
		s.turn.L.Lock()
		defer s.turn.L.Unlock()
		s.holders--
		s.turn.Broadcast()
	})
}

// sweepAlone waits until nobody holds, and keeps others from it until it is released.
func (s *Store) sweepAlone() (release func()) {
	s.turn.L.Lock()
	defer s.turn.L.Unlock()
	for s.holders > 0 || s.sweeping {
		s.turn.Wait()
	}
	s.sweeping = true
	return func() {
		s.turn.L.Lock()
		defer s.turn.L.Unlock()
		s.sweeping = false
		s.turn.Broadcast()
	}
}

// Put stores what r has to the end. Preconditions: Hold.
func (s *Store) Put(r io.Reader) (Content, error) {
	return cut(r, s.putLeaf, s.putNode)
}

// Sum is the Content that Put would return. It stores nothing.
func Sum(r io.Reader) (Content, error) {
	leaf := func(chunks [][]byte) (digest, error) {
		children := make([]digest, len(chunks))
		for i, c := range chunks {
			children[i] = cas.HashOf(c)
		}
		return blake3.Sum256(encodeNode(0, children)), nil
	}
	return cut(r, leaf, func(level byte, children []digest) (digest, error) {
		return blake3.Sum256(encodeNode(level, children)), nil
	})
}

// cut makes the tree of r's content, from the leaves up.
func cut(r io.Reader, leaf func([][]byte) (digest, error), node func(byte, []digest) (digest, error)) (c Content, err error) {
	var levels [][]digest // children of the node that is being filled, by its level - 1
	var add func(level int, d digest) error
	add = func(level int, d digest) error {
		if level == len(levels) {
			levels = append(levels, nil)
		}
		levels[level] = append(levels[level], d)
		if len(levels[level]) < fanout {
			return nil
		}
		up, err := node(byte(level+1), levels[level])
		levels[level] = nil
		if err != nil {
			return err
		}
		return add(level+1, up)
	}
	buf := make([]byte, fanout*cas.ChunkSize)
	for end := false; !end; {
		n, err := io.ReadFull(r, buf)
		end = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return c, fmt.Errorf("read what is to be copied: %w", err)
		}
		if n == 0 && c.Size > 0 {
			break
		}
		c.Size += int64(n)
		d, err := leaf(chunksOf(buf[:n]))
		if err == nil {
			err = add(0, d)
		}
		if err != nil {
			return c, err
		}
	}
	root, err := rootOf(levels, node)
	c.Digest = hex.EncodeToString(root[:])
	return c, err
}

// rootOf closes the nodes that are not full and returns the one above all.
func rootOf(levels [][]digest, node func(byte, []digest) (digest, error)) (root digest, err error) {
	for level := 0; level < len(levels); level++ {
		children, last := levels[level], level == len(levels)-1
		if last && len(children) == 1 {
			return children[0], nil
		}
		if len(children) == 0 {
			continue
		}
		if root, err = node(byte(level+1), children); err != nil || last {
			return root, err
		}
		levels[level+1] = append(levels[level+1], root) // of which it had one less than fanout at most
	}
	return root, nil
}

// chunksOf cuts b, which may be empty, into chunks.
func chunksOf(b []byte) (out [][]byte) {
	for len(b) > 0 {
		n := min(len(b), cas.ChunkSize)
		out = append(out, b[:n])
		b = b[n:]
	}
	return out
}

func encodeNode(level byte, children []digest) []byte {
	v := append(make([]byte, 0, 2+len(children)*len(digest{})), nodeVersion, level)
	for _, c := range children {
		v = append(v, c[:]...)
	}
	return v
}

func decodeNode(v []byte) (level byte, children []digest, ok bool) {
	const n = len(digest{})
	if len(v) < 2 || v[0] != nodeVersion || v[1] > maxLevel || (len(v)-2)%n != 0 || len(v)-2 > fanout*n {
		return 0, nil, false
	}
	for at := 2; at < len(v); at += n {
		children = append(children, digest(v[at:at+n]))
	}
	return v[1], children, true
}

// putLeaf stores chunks and the node that names them, in one batch: a sweep takes both or none.
func (s *Store) putLeaf(chunks [][]byte) (digest, error) {
	for {
		var b kv.Batch
		sweep := s.chunks.Sweeps()
		names, err := s.chunks.PutAll(&b, chunks)
		if err != nil {
			return digest{}, fmt.Errorf("store a copy: %w", err)
		}
		v := encodeNode(0, names)
		d := blake3.Sum256(v)
		b.Put(kv.TargetNode(d[:]), v)
		if done, err := s.name(sweep, names, &b); err != nil || done {
			return d, err
		}
	}
}

func (s *Store) putNode(level byte, children []digest) (digest, error) {
	v := encodeNode(level, children)
	d := blake3.Sum256(v)
	var b kv.Batch
	b.Put(kv.TargetNode(d[:]), v)
	if err := s.db.Apply(&b); err != nil {
		return d, fmt.Errorf("store a copy: %w", err)
	}
	return d, nil
}

// walk calls fn for the nodes of a content, from its root down, children in order. below, the level of the node above, keeps cycles out.
func (s *Store) walk(d digest, below int, fn func(d digest, level byte, children []digest) (down bool, err error)) error {
	v, ok, err := s.db.Get(kv.TargetNode(d[:]))
	if err != nil {
		return fmt.Errorf("read node %x: %w", d, err)
	}
	level, children, sound := decodeNode(v)
	if !ok || !sound || int(level) >= below || blake3.Sum256(v) != d {
		return fmt.Errorf("node %x: %w", d, ErrCorrupt)
	}
	down, err := fn(d, level, children)
	if err != nil || !down || level == 0 {
		return err
	}
	for _, c := range children {
		if err := s.walk(c, int(level), fn); err != nil {
			return err
		}
	}
	return nil
}

func parse(c Content) (digest, error) {
	raw, err := hex.DecodeString(c.Digest)
	if err != nil || len(raw) != len(digest{}) || c.Size < 0 {
		return digest{}, fmt.Errorf("digest %q: %w", c.Digest, ErrCorrupt)
	}
	return digest(raw), nil
}

// Read writes a content to w, in order. Every chunk is checked against its hash. Preconditions: Hold.
func (s *Store) Read(c Content, w io.Writer) error {
	root, err := parse(c)
	if err != nil {
		return err
	}
	left := c.Size
	buf := make([]byte, cas.ChunkSize)
	err = s.walk(root, maxLevel+1, func(_ digest, level byte, children []digest) (bool, error) {
		if level > 0 {
			return true, nil
		}
		for _, h := range children {
			n := min(left, cas.ChunkSize)
			if err := s.chunks.ReadAt(h, buf[:n], 0); err != nil {
				return false, err
			}
			if _, err := w.Write(buf[:n]); err != nil {
				return false, fmt.Errorf("write what was copied: %w", err)
			}
			left -= n
		}
		return false, nil
	})
	if err == nil && left != 0 {
		err = fmt.Errorf("%d bytes are missing: %w", left, ErrCorrupt)
	}
	return err
}

// Check reads all of a content. Preconditions: Hold, or nobody else has the store.
func (s *Store) Check(c Content) error { return s.Read(c, io.Discard) }

// Named calls fn for every chunk that a content names.
func (s *Store) Named(fn func(cas.Hash)) error {
	var bad error
	err := s.db.Scan(kv.TargetNodePrefix(), nil, func(k, v []byte) bool {
		level, children, ok := decodeNode(v)
		if !ok {
			bad = fmt.Errorf("node %x: %w", k, ErrCorrupt)
			return false
		}
		if level == 0 {
			for _, h := range children {
				fn(h)
			}
		}
		return true
	})
	return errors.Join(err, bad)
}

// sweepBatch is how many nodes one batch removes.
const sweepBatch = 4096

// Sweep removes the nodes that none of needed, listed once no content is on its way, is made of, and returns how many those were. Chunks that
// nothing names then are free to be reclaimed.
func (s *Store) Sweep(needed func() ([]Content, error)) (removed int, err error) {
	defer s.sweepAlone()()
	s.working.Lock()
	clear(s.last) // what they name may go
	s.working.Unlock()
	all, err := needed()
	if err != nil {
		return 0, fmt.Errorf("list the copies of targets that are needed: %w", err)
	}
	keep := map[digest]bool{}
	for _, c := range all {
		root, err := parse(c)
		if err != nil {
			return 0, fmt.Errorf("sweep the copies of targets: %w", err)
		}
		err = s.walk(root, maxLevel+1, func(d digest, _ byte, _ []digest) (bool, error) {
			down := !keep[d]
			keep[d] = true
			return down, nil
		})
		if err != nil && !errors.Is(err, ErrCorrupt) { // of a damaged one, what is there stays
			return 0, fmt.Errorf("sweep the copies of targets: %w", err)
		}
	}
	var gone [][]byte
	err = s.db.Scan(kv.TargetNodePrefix(), nil, func(k, _ []byte) bool {
		if d, ok := kv.ParseTargetNode(k); !ok || len(d) != len(digest{}) || !keep[digest(d)] {
			gone = append(gone, append([]byte(nil), k...))
		}
		return true
	})
	if err != nil {
		return 0, fmt.Errorf("sweep the copies of targets: %w", err)
	}
	for len(gone) > 0 {
		var b kv.Batch
		b.UseReserve()
		n := min(len(gone), sweepBatch)
		for _, k := range gone[:n] {
			b.Delete(k)
		}
		if err := s.db.Apply(&b); err != nil {
			return removed, fmt.Errorf("sweep the copies of targets: %w", err)
		}
		removed, gone = removed+n, gone[n:]
	}
	return removed, nil
}
