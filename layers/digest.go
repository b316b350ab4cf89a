package layers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sys/unix"

	"github.com/rewindfs/rewindfs/kv"
)

// Every sealed layer has a digest: BLAKE3 over its own records and over the digest of its parent.
//
//	own     over the n/, d/, r/, x/ and a/ records of the layer, keys and values, in the order of its
//	        change index. It is kept (g/), once nothing is pending in the layer: from then on its records never
//	        change, but for what a collection takes out of a link
//	digest  over the parent's digest and own. It is not kept: a chain of 10,000 takes milliseconds
//
// A collection that takes a record out of a layer, or changes one, takes its g/ record in the same batch, and the
// layer gets a new one. So what is kept is always true of what is there, and the digests of the layers
// above a link change with it.

// Digest is the digest of a layer.
type Digest [32]byte

const (
	digestContext = "rewindfs layer digest 1"
	digestVersion = 1 // of a g/ record
	digestLen     = 1 + len(Digest{})
)

// digestTick is how often is looked for layers without a digest, and digestRest how many times its own
// duration one round waits for the next.
const (
	digestTick  = time.Second
	digestRest  = 10
	digestRound = 50 * time.Millisecond
)

// Digest returns the digest of a sealed layer. It waits for a collection under way. ErrNoLayer.
func (t *Tree) Digest(l Layer) (Digest, error) {
	t.collecting <- struct{}{}
	defer func() { <-t.collecting }()
	t.mu.RLock()
	rec := t.held(l)
	var chain []Layer
	if rec != nil && rec.sealed {
		for at := l; at != BaseLayer; at = t.layers[at].parent {
			chain = append(chain, at)
		}
	}
	t.mu.RUnlock()
	if chain == nil {
		return Digest{}, fmt.Errorf("digest of layer %d, which is not there or open: %w", l, ErrNoLayer)
	}
	d := Digest(blake3.Sum256([]byte(digestContext)))
	for _, at := range slices.Backward(chain) {
		own, ok, err := t.keptDigest(at)
		if err == nil && !ok {
			if err = t.settleSealed(at); err == nil {
				own, err = t.ownDigest(at)
			}
		}
		if err != nil {
			return Digest{}, fmt.Errorf("digest of layer %d: %w", at, err)
		}
		d = d.under(own)
	}
	return d, nil
}

// under is the digest of a layer on top of one with digest d.
func (d Digest) under(own Digest) Digest {
	return blake3.Sum256(slices.Concat([]byte(digestContext), d[:], own[:]))
}

// keptDigest reads the g/ record of a layer.
func (t *Tree) keptDigest(l Layer) (own Digest, ok bool, err error) {
	v, ok, err := t.db.Get(kv.Digest(uint64(l)))
	if err != nil || !ok {
		return own, false, err
	}
	if len(v) != digestLen || v[0] != digestVersion {
		return own, false, fmt.Errorf("digest record of layer %d: %w", l, ErrCorrupt)
	}
	return Digest(v[1:]), true, nil
}

// settleSealed cuts what is pending in layer l.
func (t *Tree) settleSealed(l Layer) error {
	for _, p := range t.pendingIn(l) {
		if err := t.cut(p); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) pendingIn(l Layer) (out []*pending) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, list := range t.pend {
		for _, p := range list {
			if p.layer == l {
				out = append(out, p)
			}
		}
	}
	return out
}

// ownDigest hashes what a layer has. Nothing is pending in it.
func (t *Tree) ownDigest(l Layer) (Digest, error) {
	h := blake3.New()
	put := func(k, v []byte) {
		var n [8]byte
		for _, b := range [][]byte{k, v} {
			binary.BigEndian.PutUint64(n[:], uint64(len(b)))
			_, _ = h.Write(n[:])
			_, _ = h.Write(b)
		}
	}
	get := func(key []byte) error {
		v, ok, err := t.db.Get(key)
		if ok {
			put(key, v)
		}
		return err
	}
	c := &collector{t: t}
	for from := kv.ChangePrefix(uint64(l)); from != nil; {
		var part []entry
		var err error
		if part, from, err = c.part(l, from); err != nil {
			return Digest{}, err
		}
		for _, e := range part {
			if e.dir {
				err = get(kv.Name(uint64(e.Dir), e.Name, uint64(l)))
			} else if err = get(kv.Inode(uint64(e.ino), uint64(l))); err == nil {
				err = t.recordsOf(e.ino, l, put)
			}
			if err != nil {
				return Digest{}, err
			}
		}
	}
	return Digest(h.Sum(nil)), nil
}

// recordsOf gives fn the x/, a/ and r/ records of an inode that layer l has.
func (t *Tree) recordsOf(ino Ino, l Layer, fn func(k, v []byte)) error {
	i := uint64(ino)
	for _, prefix := range [][]byte{kv.ExtentInoPrefix(i), kv.XattrInoPrefix(i), kv.RNamePrefix(i)} {
		err := t.db.Scan(prefix, nil, func(k, v []byte) bool {
			if layerAt(k) == l {
				fn(k, v)
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// digestedIn returns the layer whose digest covers the record with this key.
func digestedIn(key []byte) (Layer, bool) {
	switch key[0] {
	case 'n', 'd', 'r', 'x', 'a':
		return layerAt(key), true
	}
	return 0, false
}

// loadDigests finds out which layers have one.
func (t *Tree) loadDigests() error {
	return t.db.Scan(kv.DigestPrefix(), nil, func(k, _ []byte) bool {
		if l, ok := kv.ParseDigest(k); ok {
			t.digested[Layer(l)] = true
		}
		return true
	})
}

// digestLoop gives sealed layers their digests.
func (t *Tree) digestLoop() {
	wait := time.NewTimer(digestTick)
	defer wait.Stop()
	for {
		select {
		case <-t.stop:
			return
		case <-wait.C:
		}
		start := time.Now()
		if err := t.digestSome(start.Add(digestRound)); err != nil {
			t.log.Warn("cannot make the digests of layers", "error", err)
		}
		wait.Reset(max(digestTick, digestRest*time.Since(start)))
	}
}

// digestSome makes digests until a moment, unless a collection is under way.
func (t *Tree) digestSome(until time.Time) error {
	select {
	case t.collecting <- struct{}{}:
		defer func() { <-t.collecting }()
	default:
		return nil
	}
	for _, l := range t.undigested() {
		own, err := t.ownDigest(l)
		if err == nil {
			err = t.keepDigest(l, own)
		}
		if err != nil {
			return fmt.Errorf("layer %d: %w", l, err)
		}
		if time.Now().After(until) {
			break
		}
	}
	return nil
}

// undigested lists the layers whose digest can be made now, in order.
func (t *Tree) undigested() []Layer {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(t.digested) >= len(t.layers) {
		return nil
	}
	busy := map[Layer]bool{}
	for _, list := range t.pend {
		for _, p := range list {
			busy[p.layer] = true
		}
	}
	var out []Layer
	for l, rec := range t.layers {
		if rec.sealed && !t.digested[l] && !busy[l] {
			out = append(out, l)
		}
	}
	slices.Sort(out)
	return out
}

// keepDigest notes own, unless l is to go. The caller holds the token of t.collecting.
func (t *Tree) keepDigest(l Layer, own Digest) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.layers[l] == nil {
		return nil
	}
	var b kv.Batch
	b.Put(kv.Digest(uint64(l)), append([]byte{digestVersion}, own[:]...))
	err := t.db.Apply(&b)
	if err == nil || errors.Is(err, unix.ENOSPC) {
		t.digested[l] = true // of a full disk: it is made when it is asked for, or after the next start
		err = nil
	}
	return err
}
