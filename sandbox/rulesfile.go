package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// RulesFile is the name of the file with the user's own rules, below rewindfs in the directory for settings. It has lists:
//
//	allow    = ["~/go/bin"]        # may be written to
//	deny     = ["~/.cache/mine"]   # may not, whatever else says so
//	hide     = ["~/letters"]       # cannot be seen in ns
//	env      = ["GITHUB_TOKEN"]    # variables that are let through, or NAME=VALUE
//	writable = ["~/.cache"]        # takes the place of the caches that may be written to in local
//	secrets  = ["~/.ssh"]          # takes the place of what cannot be seen in ns
//
//	[docker]
//	cli       = "podman"           # docker, podman, nerdctl, or a path
//	image     = "debian:stable"    # of the containers
//	workspace = "/workspace"       # where they have the project, or "same" for where the host has it
//
// Paths may begin with ~ or a variable, and have wildcards; what is not there is passed over. Nothing that a project
// has is read: whoever is to be held by rules must not make them.
const RulesFile = "sandbox.toml"

// maxRules bounds the file, in bytes.
const maxRules = 64 << 10

// rulesFile is the path of the file, "" where there can be none.
func rulesFile(env []string) string {
	dir := getenv(env, "XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		home := getenv(env, "HOME")
		if home == "" {
			return ""
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "rewindfs", RulesFile)
}

// HostRules are the rules that the user has on this machine, for a command that is called with an environment. Flags add to
// them. No file is no rules; a bad one is an error that says where.
func HostRules(env []string) (Rules, error) {
	file := rulesFile(env)
	if file == "" {
		return Rules{}, nil
	}
	text, err := readBounded(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Rules{}, nil
	}
	if err != nil {
		return Rules{}, fmt.Errorf("read the rules for sandboxes: %w", err)
	}
	r, err := parseRules(string(text), env)
	if err != nil {
		return Rules{}, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

func readBounded(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRules+1))
	if err == nil && len(text) > maxRules {
		err = fmt.Errorf("%s has more than %d bytes", file, maxRules)
	}
	return text, err
}

func parseRules(text string, env []string) (Rules, error) {
	var f struct {
		Allow, Deny, Hide, Env, Writable, Secrets []string
		Docker                                    struct{ CLI, Image, Workspace string }
	}
	meta, err := toml.Decode(text, &f)
	if err != nil {
		return Rules{}, err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 { // a rule that is misspelled must not be one that is not kept
		return Rules{}, fmt.Errorf("%s is not known: there are allow, deny, hide, env, writable, secrets and [docker] with cli, image and workspace", unknown[0])
	}
	for _, path := range slices.Concat(f.Allow, f.Deny, f.Hide, f.Writable, f.Secrets) {
		if !filepath.IsAbs(path) && !strings.HasPrefix(path, "~/") && !strings.HasPrefix(path, "$") {
			return Rules{}, fmt.Errorf("%q: begin paths with /, ~/ or a variable", path)
		}
	}
	for _, v := range f.Env {
		if v == "" || v[0] == '=' || strings.ContainsRune(v, 0) {
			return Rules{}, fmt.Errorf("env %q: write it as NAME or NAME=VALUE", v)
		}
	}
	return Rules{
		Allow: expandAll(f.Allow, env, true), Deny: expandAll(f.Deny, env, true), Hide: expandAll(f.Hide, env, false),
		Env: f.Env, Writable: f.Writable, Secrets: f.Secrets,
		Docker: DockerRules{CLI: f.Docker.CLI, Image: f.Docker.Image, Workspace: f.Docker.Workspace},
	}, nil
}

// ShowRules writes down what a kind lets a command do, in words and lists that the user can check.
func ShowRules(w io.Writer, kind Kind, r Rules, env []string) {
	list := func(title string, entries []string) {
		if len(entries) > 0 {
			fmt.Fprintf(w, "%s:\n  %s\n", title, strings.Join(entries, "\n  "))
		}
	}
	home := func(paths []string) []string {
		for i, p := range paths {
			if h := getenv(env, "HOME"); h != "" && within(p, h) {
				paths[i] = "~" + p[len(h):]
			}
		}
		return paths
	}
	fmt.Fprintf(w, "rules of %s, and of %s\n", kind, rulesFile(env))
	switch kind {
	case Local:
		fmt.Fprintln(w, "can be written to: the project, /tmp, /var/tmp and /dev/shm of the session's own, plain devices")
		list("caches and state of tools (writable in "+RulesFile+" takes their place)", home(expand(r.writable(), env, true)))
		list("of these only to be read (unless --allow names them)", home(expand(DefaultGuarded, env, true)))
		list("doors that are closed (unless --allow names them)", home(expand(DefaultSockets, env, true)))
	case NS:
		fmt.Fprintln(w, "can be written to: the project, /tmp, /var/tmp and /dev/shm of the command's own, plain devices")
		list("out of sight (secrets in "+RulesFile+" takes their place)", home(expand(r.secrets(), env, false)))
	case Docker:
		fmt.Fprintln(w, "can be seen: the project, the image, and what --allow names; can be written to: the project, /tmp and /var/tmp of the session's own")
		fmt.Fprintln(w, "variables: those of terminal and language, and what --env names")
		list("image", []string{cmp.Or(r.Docker.Image, "(none is set)")})
	}
	list("--allow", home(slices.Clone(r.Allow)))
	list("--deny", home(slices.Clone(r.Deny)))
	if kind == NS {
		list("--hide", home(slices.Clone(r.Hide)))
	}
	if kind != None && kind != Docker {
		_, removed := Scrub(env, r.Env)
		for i, v := range removed {
			removed[i], _, _ = strings.Cut(v, "=")
		}
		slices.Sort(removed)
		list("variables that are kept from the command (unless --env names them)", removed)
	}
}

func (r *Rules) writable() []string {
	if r.Writable != nil {
		return r.Writable
	}
	return DefaultWritable
}

func (r *Rules) secrets() []string {
	if r.Secrets != nil {
		return r.Secrets
	}
	return DefaultSecrets
}
