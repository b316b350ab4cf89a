package session

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/zeebo/blake3"
)

// StateRoot is the directory of the default stores: $XDG_STATE_HOME/rewindfs, or
// ~/.local/state/rewindfs.
func StateRoot() (string, error) {
	// The specification says that a relative path is to be ignored.
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "rewindfs"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) {
		return "", errors.New("neither XDG_STATE_HOME nor HOME says where state goes: set one, or give --store DIR")
	}
	return filepath.Join(home, ".local", "state", "rewindfs"), nil
}

// DefaultStore is the store of the base at the canonical path base, below root.
func DefaultStore(root, base string) string {
	return filepath.Join(root, storeName(base)+"-"+shortHash(base))
}

// storeName is the last part of path as a name for people: without what does not
// print, and short enough to take a hash behind it.
func storeName(path string) string {
	name := filepath.Base(path)
	if name == "/" || name == "." {
		return "root"
	}
	if len(name) > 200 {
		name = name[:200]
	}
	name = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, name)
	if name[0] == '-' {
		name = "_" + name[1:]
	}
	return name
}

func shortHash(s string) string {
	sum := blake3.Sum256([]byte(s))
	return hex.EncodeToString(sum[:6])
}

// Canonical makes path absolute and free of symlinks as far as it exists; what
// does not exist yet stays as it is written. A dead mount at its end is not an obstacle.
func Canonical(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("make %s absolute: %w", path, err)
	}
	rest := ""
	for dir := abs; ; dir = filepath.Dir(dir) {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !daemonGone(err) {
			return "", fmt.Errorf("look up %s: %w", path, err)
		}
		if dir == "/" {
			return abs, nil
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
}

// inside reports whether path is dir or lies below it. Both are canonical; a
// directory that is there under another name (a bind mount) is recognised too.
func inside(path, dir string) bool {
	if below(path, dir) {
		return true
	}
	want, err := os.Stat(dir)
	if err != nil {
		return false
	}
	for p := path; ; p = filepath.Dir(p) {
		if fi, err := os.Stat(p); err == nil && os.SameFile(fi, want) {
			return true
		}
		if p == "/" {
			return false
		}
	}
}

// below compares by name only.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
