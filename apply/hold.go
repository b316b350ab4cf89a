package apply

import (
	"bufio"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// DefaultHold lists what would run by itself on the host, or tell a program there to run
// something, when somebody works in the directory: as patterns, see ParseHold.
const DefaultHold = `# What commit does not bring unless it is told to: one pattern a line.
# A pattern is matched with the end of a path, in any directory, whatever the case; * and ? stand for parts of a name, ** for any directories.
.git
.git/config
.git/config.worktree
.git/commondir
.git/hooks/**
.git/**/config
.git/**/config.worktree
.git/**/commondir
.git/**/git-rebase-todo
.git/**/hooks/**
*.git/config
*.git/hooks/**
.gitmodules
.githooks/**
.hg/hgrc
.hg/hgrc-not-shared
.hg/sharedpath
.husky/**
.envrc
rewindfs.toml
.env.vault
.mise.toml
mise.toml
.mise.local.toml
mise.local.toml
.mise/**
.config/mise.toml
.config/mise/**
.rvmrc
.vscode/tasks.json
.vscode/settings.json
.vscode/launch.json
.vscode/extensions.json
.vscode/mcp.json
*.code-workspace
.idea/runConfigurations/**
.idea/workspace.xml
.idea/watcherTasks.xml
.run/**
.zed/tasks.json
.zed/settings.json
.devcontainer/**
.devcontainer.json
.claude/settings.json
.claude/settings.local.json
.claude/hooks/**
.mcp.json
.codex/config.toml
.gemini/settings.json
.cursor/mcp.json
.cursor/hooks.json
.npmrc
.yarnrc
.yarnrc.yml
.yarn/releases/**
.yarn/plugins/**
.pnpmfile.cjs
.pnp.cjs
.pnp.loader.mjs
bunfig.toml
.mvn/**
.bundle/config
.cargo/config
.cargo/config.toml
pip.conf
.bazelrc
.exrc
.nvimrc
.nvim.lua
.vimrc
.lvimrc
.dir-locals.el
.dir-locals-2.el
.Rprofile
.RData
.irbrc
.pryrc
.iex.exs
.ghci
.ocamlinit
.octaverc
.pdbrc
.gdbinit
.lldbinit
.pre-commit-config.yaml
.pre-commit-config.yml
lefthook.yml
.lefthook.yml
.github/workflows/**
.github/actions/**
.gitlab-ci.yml
.gitea/workflows/**
.forgejo/workflows/**
.circleci/**
.travis.yml
.drone.yml
.woodpecker.yml
.woodpecker/**
.buildkite/**
azure-pipelines.yml
bitbucket-pipelines.yml
Jenkinsfile
`

// Hold is a list of what is held back.
type Hold struct {
	patterns [][]string
	named    map[string][][]string // those that begin with a name
	wild     [][]string            // and the others
}

// ParseHold reads patterns, one a line, beside those of DefaultHold; lines that begin with # are comments, and what stands behind a ! is
// not held back, though an earlier line says it.
func ParseHold(text string) (*Hold, error) {
	h := &Hold{named: map[string][][]string{}}
	ownLines := strings.Count(DefaultHold, "\n")
	lines := bufio.NewScanner(strings.NewReader(DefaultHold + text))
	for n := 1 - ownLines; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		line, not := strings.CutPrefix(line, "!")
		parts := strings.Split(strings.Trim(fold(line), "/"), "/")
		for _, part := range parts {
			if _, err := path.Match(part, ""); err != nil || part == "" {
				return nil, fmt.Errorf("line %d: %q is no pattern", n, line)
			}
		}
		if not {
			h.patterns = slices.DeleteFunc(h.patterns, func(p []string) bool { return slices.Equal(p, parts) })
			continue
		}
		h.patterns = append(h.patterns, parts)
	}
	for _, parts := range h.patterns {
		if strings.ContainsAny(parts[0], `*?[\`) {
			h.wild = append(h.wild, parts)
		} else {
			h.named[parts[0]] = append(h.named[parts[0]], parts)
		}
	}
	return h, lines.Err()
}

// fold makes names alike that some file system takes for the same: by case, and without what is not seen.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Variation_Selector, r) {
			return -1
		}
		low := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			low = min(low, f)
		}
		return low
	}, s)
}

// matches reports whether what want has at path, of type typ (S_IFMT bits), is held back, base being what the host had. A directory is not, but what
// is in it; a symbolic link in the place of a directory that leads to what is held back is.
func (h *Hold) matches(want, base *side, p string, typ uint32) bool {
	parts := parts(p)
	if typ == unix.S_IFDIR {
		return becomesGitDir(want, base, p, parts)
	}
	if h.listed(p) {
		return true
	}
	if typ == unix.S_IFLNK && h.leads(parts) {
		return true
	}
	return inGitDir(want, p, parts) || becomesGitDir(want, base, p, parts)
}

func parts(p string) []string { return strings.Split(fold(p), "/") }

// listed reports whether a pattern matches the path.
func (h *Hold) listed(p string) bool {
	parts := parts(p)
	for from, name := range parts {
		for _, some := range [][][]string{h.named[name], h.wild} {
			if slices.ContainsFunc(some, func(pat []string) bool { return match(pat, parts[from:]) }) {
				return true
			}
		}
	}
	return false
}

// leads reports whether something that is held back could lie below a path.
func (h *Hold) leads(parts []string) bool {
	for _, pat := range h.patterns {
		for n := 1; n < len(pat); n++ {
			if pat[n-1] == "**" {
				break
			}
			for from := range parts {
				if match(pat[:n], parts[from:]) {
					return true
				}
			}
		}
	}
	return false
}

func match(pat, parts []string) bool {
	if len(pat) == 0 {
		return len(parts) == 0
	}
	if pat[0] == "**" {
		for n := range parts {
			if match(pat[1:], parts[n:]) || len(pat) == 1 {
				return true
			}
		}
		return false
	}
	if len(parts) == 0 {
		return false
	}
	ok, err := path.Match(pat[0], parts[0])
	return ok && err == nil && match(pat[1:], parts[1:])
}
