package kv

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
)

// Placed is the key of what commit n put at path below target, which is "" for the
// base. A very long path is replaced by its SHA-256, in hex behind a slash, with which no
// relative path begins. The newest commit sorts first.
func Placed(target, path string, n uint64) []byte {
	return appendVersion(PlacedAt(target, path), n)
}

// PlacedAt starts what all commits put at path.
func PlacedAt(target, path string) []byte {
	if PlacedHashed(path) {
		sum := sha256.Sum256([]byte(path))
		path = "/" + hex.EncodeToString(sum[:])
	}
	return append(append(PlacedPrefix(target), path...), 0)
}

// PlacedHashed reports whether keys hold only the hash of path.
func PlacedHashed(path string) bool { return len(path) > maxBasePath }

// PlacedPrefix starts all keys made by Placed for a target, which has no NUL in it.
func PlacedPrefix(target string) []byte { return append([]byte("k/p/"+target), 0) }

// ParsePlaced undoes Placed, but for the hash of a long path.
func ParsePlaced(k []byte) (target, path string, n uint64, ok bool) {
	if !bytes.HasPrefix(k, []byte("k/p/")) {
		return "", "", 0, false
	}
	t, rest, ok := bytes.Cut(k[4:], []byte{0})
	p, v, ok2 := bytes.Cut(rest, []byte{0})
	if !ok || !ok2 || len(v) != numLen {
		return "", "", 0, false
	}
	return string(t), string(p), ^num(v), true
}

// CommitSteps is the key of a part of the steps of the commit that is under way.
func CommitSteps(part uint64) []byte { return appendNum(CommitStepsPrefix(), part) }

// CommitStepsPrefix starts all keys made by CommitSteps, in order.
func CommitStepsPrefix() []byte { return []byte("k/s/") }

// Commit is the key of the record of commit n, which can be undone.
func Commit(n uint64) []byte { return appendNum(CommitPrefix(), n) }

// CommitPrefix starts all keys made by Commit, in order.
func CommitPrefix() []byte { return []byte("k/c/") }
