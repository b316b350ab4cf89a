package apply

import (
	"slices"
	"strings"
)

// Git takes a directory for a repository by what is in it, whatever it is called: HEAD, and objects and refs there or in the
// directory that the file commondir names, which then also has the configuration and the hooks. A name in the list of what
// is held back does not see such a one, so they are looked for by what is in them.

// gitStores are the directories that are next to the configuration.
var gitStores = []string{"objects", "refs"}

// inGitDir reports whether p, which is no directory, says to git what to run: the configuration or a hook of something like a
// repository, or the file that leads to another one's.
func inGitDir(want *side, p string, parts []string) bool {
	n := len(parts)
	up := func(n int) string { return above(p, n) }
	switch parts[n-1] {
	case fold("config"), fold("hooks"): // hooks: a link to where they are
		return hasAll(want, up(n-1), gitStores...)
	case fold("config.worktree"), fold("commondir"):
		return hasAll(want, up(n-1), "HEAD") || hasAll(want, up(n-1), gitStores...)
	}
	return n > 1 && parts[n-2] == fold("hooks") && hasAll(want, up(n-2), gitStores...)
}

// becomesGitDir reports whether p belongs to what would make a repository of a directory that was none, under a name
// that does not tell it: what says in it what to run may have come with an earlier commit, when it meant nothing.
func becomesGitDir(want, base *side, p string, parts []string) bool {
	if base == nil {
		return false // a tree of its own
	}
	for i, part := range parts {
		if strings.HasSuffix(part, fold(".git")) {
			return false // told by name
		}
		made := slices.ContainsFunc(gitStores, func(s string) bool { return part == fold(s) })
		if !made && (i != len(parts)-1 || part != fold("HEAD")) {
			continue
		}
		up := above(p, i)
		all := append([]string{"HEAD"}, gitStores...)
		if hasAll(want, up, all...) && hasAny(want, up, "config", "hooks", "config.worktree") && !hasAll(base, up, all...) {
			return true
		}
	}
	return false
}

// above returns the first n parts of p.
func above(p string, n int) string { return strings.Join(strings.Split(p, "/")[:n], "/") }

func hasAll(s *side, dir string, names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !hasAny(s, dir, name) })
}

func hasAny(s *side, dir string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		a, err := s.at(join(dir, name))
		return err == nil && a != nil
	})
}
