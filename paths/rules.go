// Package paths has the rules about paths that a user writes into rewindfs.toml: which ones a rollback
// leaves as they are, which ones a commit leaves out, and what outside of the mount every checkpoint copies.
//
//	[paths]
//	keep   = ["/.cache/", "*.log"]
//	ignore = ["node_modules/", "!/vendor/node_modules/"]
//
//	[[target]]
//	sqlite = "~/data/app.db"
//
//	[[target]]
//	volume = "app_pgdata"
//
// The lists have gitignore syntax, matched by package doublestar: a pattern with a slash at its start or in its middle is about
// the whole path, any other about a name at whatever depth; one that ends in a slash is about directories; ! takes back what an earlier
// one said; of several that match the last one counts; and what is below a directory that matches, matches, whatever follows.
//
// What does not belong here: what is done with the paths.
package paths

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
)

// FileName is the name of the file with the rules, in the store or at the root of the base.
const FileName = "rewindfs.toml"

// Bounds of the file: bytes, and patterns of each kind.
const (
	maxSize     = 64 << 10
	maxPatterns = 1000
	maxTargets  = 100
)

// Rules say which paths are kept and which are ignored. Nil has none.
type Rules struct {
	File         string   // that they are from, "" for none
	Keep, Ignore []string // as they were written
	Targets      []Target
	keep, ignore []rule
}

// Target is something outside of the mount: either a database of SQLite, by its absolute path or one below ~/, or
// a volume of Docker, or of what is called like it, that is reached by a container of Image.
type Target struct {
	SQLite string
	Volume string
	Docker string // "" for the usual program
	Image  string // "" for the usual image
}

// rule is one pattern.
type rule struct {
	glob     string
	not, dir bool
}

// Load reads the rules in the first of dirs that has a file of them: the store, then the base's root, as the host has it. No file is
// no rules; a bad one is an error that says where.
func Load(dirs ...string) (*Rules, error) {
	for _, dir := range dirs {
		file := filepath.Join(dir, FileName)
		text, err := read(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the rules for paths: %w", err)
		}
		r, err := Parse(text)
		if err != nil {
			return nil, fmt.Errorf("the rules for paths in %s: %w (correct the file, or take it away)", file, err)
		}
		r.File = file
		return r, nil
	}
	return nil, nil
}

// read reads a small regular file: it is no way to make a daemon wait, or to read something else.
func read(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", file)
	case st.Size() > maxSize:
		return nil, fmt.Errorf("%s is larger than %d bytes", file, maxSize)
	}
	return io.ReadAll(io.LimitReader(f, maxSize))
}

// Parse reads rules from a text in TOML. Keys that it does not know are errors: a rule that
// is misspelt must not be taken for none.
func Parse(text []byte) (*Rules, error) {
	var f struct {
		Paths  struct{ Keep, Ignore []string }
		Target []Target
	}
	meta, err := toml.Decode(string(text), &f)
	if err != nil {
		return nil, err
	}
	if keys := meta.Undecoded(); len(keys) > 0 {
		return nil, fmt.Errorf("unknown key %s: there are paths.keep, paths.ignore, and target with sqlite, or volume, docker and image", keys[0])
	}
	r := &Rules{Keep: f.Paths.Keep, Ignore: f.Paths.Ignore, Targets: f.Target}
	if err := checkTargets(f.Target); err != nil {
		return nil, err
	}
	for _, l := range []struct {
		name string
		from []string
		to   *[]rule
	}{{"keep", r.Keep, &r.keep}, {"ignore", r.Ignore, &r.ignore}} {
		if len(l.from) > maxPatterns {
			return nil, fmt.Errorf("paths.%s has %d patterns; %d are allowed", l.name, len(l.from), maxPatterns)
		}
		for _, p := range l.from {
			one, err := parseRule(p)
			if err != nil {
				return nil, fmt.Errorf("paths.%s, pattern %q: %w", l.name, p, err)
			}
			*l.to = append(*l.to, one)
		}
	}
	return r, nil
}

func checkTargets(targets []Target) error {
	if len(targets) > maxTargets {
		return fmt.Errorf("there are %d targets; %d are allowed", len(targets), maxTargets)
	}
	for i := range targets {
		t := &targets[i]
		switch {
		case (t.SQLite == "") == (t.Volume == ""):
			return fmt.Errorf("target %d: it needs sqlite or volume, and not both", i+1)
		case t.Volume == "" && t.Docker+t.Image != "":
			return fmt.Errorf("target %d: docker and image go with volume", i+1)
		case t.SQLite != "" && !filepath.IsAbs(t.SQLite) && !strings.HasPrefix(t.SQLite, "~/"):
			return fmt.Errorf("target %d: sqlite = %q is no absolute path, and none below ~/", i+1, t.SQLite)
		}
	}
	return nil
}

func parseRule(p string) (rule, error) {
	var r rule
	if p, r.not = strings.CutPrefix(p, "!"); p == "" || strings.ContainsAny(p, "\x00\n") {
		return r, errors.New("it is empty, or holds a line break")
	}
	if strings.HasSuffix(p, `\`) && !strings.HasSuffix(p, `\\`) {
		return r, errors.New("it ends in a backslash that quotes nothing")
	}
	if p, r.dir = strings.CutSuffix(p, "/"); strings.Trim(p, "/") == "" {
		return r, errors.New("it names no path below the root")
	}
	rooted := strings.Contains(p, "/")
	p = strings.TrimPrefix(p, "/")
	for part := range strings.SplitSeq(p, "/") {
		if part == "" || part == "." || part == ".." {
			return r, fmt.Errorf("no path has the part %q", part)
		}
	}
	r.glob = strings.NewReplacer("{", `\{`, "}", `\}`).Replace(p) // braces mean nothing in gitignore
	switch {
	case !rooted:
		r.glob = "**/" + r.glob
	case strings.HasSuffix(r.glob, "/**"): // all that is in it, but not itself
		r.glob += "/*"
	}
	if !doublestar.ValidatePattern(r.glob) {
		return r, errors.New("it is malformed")
	}
	return r, nil
}

// Kept reports whether a rollback leaves path (relative to the root), which is a directory or not, as it is.
func (r *Rules) Kept(path string, dir bool) bool { return r != nil && below(r.keep, path, dir) }

// Ignored reports whether a commit leaves path (relative to the root), which is a directory or not, out.
func (r *Rules) Ignored(path string, dir bool) bool { return r != nil && below(r.ignore, path, dir) }

// Keeps and Ignores report whether there are any such rules.
func (r *Rules) Keeps() bool   { return r != nil && len(r.keep) > 0 }
func (r *Rules) Ignores() bool { return r != nil && len(r.ignore) > 0 }

// below reports whether path, or a directory above it, matches.
func below(rules []rule, path string, dir bool) bool {
	if len(rules) == 0 {
		return false
	}
	for i := 0; i < len(path); i++ {
		if path[i] == '/' && matches(rules, path[:i], true) {
			return true
		}
	}
	return matches(rules, path, dir)
}

func matches(rules []rule, path string, dir bool) bool {
	for i := len(rules) - 1; i >= 0; i-- {
		if r := &rules[i]; (dir || !r.dir) && doublestar.MatchUnvalidated(r.glob, path) {
			return !r.not
		}
	}
	return false
}
