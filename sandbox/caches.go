package sandbox

import (
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Paths in these lists may begin with ~ (the home directory) or with a variable of the environment, without which the entry
// is left out. They may have wildcards. What is not there is left out.

// DefaultWritable are the caches that tools share between projects, and the state of agent clients: what stays writable in Local.
// A single file can be written to, but not be replaced by another.
var DefaultWritable = []string{
	"~/.cache", "$XDG_CACHE_HOME",
	"~/.npm", "~/.node-gyp", "~/.yarn/berry", "~/.pnpm-store", "~/.local/share/pnpm/store", "~/.bun/install/cache",
	"~/go/pkg", "$GOPATH/pkg", "$GOMODCACHE", "$GOCACHE", "~/.config/go/telemetry",
	"~/.cargo", "$CARGO_HOME",
	"~/.gradle", "~/.m2/repository", "~/.ivy2/cache", "~/.nuget/packages", "~/.ccache", "~/.pub-cache",
	"~/.claude", "~/.claude.json", "$CLAUDE_CONFIG_DIR", "~/.codex", "$CODEX_HOME", "~/.gemini", "~/.qwen", "~/.copilot", "~/.aider*", "~/.crush", "~/.goose",
	"~/.config/opencode", "~/.local/share/opencode", "~/.local/state/opencode", "~/.config/goose", "~/.local/share/goose", "~/.local/share/crush",
}

// firstMade are directories that programs make when they are first used, in a place where a command may not: made for it
// where there is such a program. instead are variables by which the user has named another place.
var firstMade = []struct {
	program, dir string
	instead      []string
}{
	{"", "~/.cache", nil},
	{"npm", "~/.npm", []string{"npm_config_cache", "NPM_CONFIG_CACHE"}},
	{"pnpm", "~/.local/share/pnpm/store", []string{"PNPM_HOME", "XDG_DATA_HOME"}},
	{"bun", "~/.bun/install/cache", []string{"BUN_INSTALL", "BUN_INSTALL_CACHE_DIR"}},
	{"go", "~/go/pkg", []string{"GOPATH", "GOMODCACHE"}},
	{"go", "$GOPATH/pkg", []string{"GOMODCACHE"}},
	{"cargo", "~/.cargo", []string{"CARGO_HOME"}},
	{"gradle", "~/.gradle", []string{"GRADLE_USER_HOME"}},
	{"mvn", "~/.m2/repository", nil},
	{"dotnet", "~/.nuget/packages", []string{"NUGET_PACKAGES"}},
	{"claude", "~/.claude", []string{"CLAUDE_CONFIG_DIR"}},
	{"codex", "~/.codex", []string{"CODEX_HOME"}},
	{"gemini", "~/.gemini", nil},
	{"qwen", "~/.qwen", nil},
	{"copilot", "~/.copilot", nil},
	{"opencode", "~/.config/opencode", []string{"XDG_CONFIG_HOME"}},
	{"opencode", "~/.local/share/opencode", []string{"XDG_DATA_HOME"}},
	{"opencode", "~/.local/state/opencode", []string{"XDG_STATE_HOME"}},
}

// makeCaches makes those directories that are missing and will be writable. One that cannot be made is the program's to complain about.
func makeCaches(s *Spec) {
	for _, c := range firstMade {
		name, rest, _ := strings.Cut(strings.TrimPrefix(c.dir, "$"), "/")
		top := getenv(s.Env, "HOME")
		if name != "~" {
			top, _, _ = strings.Cut(getenv(s.Env, name), ":")
		}
		dir := filepath.Join(top, rest)
		switch {
		case !filepath.IsAbs(top) || top == "/" || !exists(top) || !slices.Contains(s.Rules.writable(), c.dir):
			continue
		case slices.ContainsFunc(c.instead, func(v string) bool { return getenv(s.Env, v) != "" }):
			continue
		case exists(dir) || within(dir, s.Project) || within(dir, s.Mount): // the host's copy of a project stays as it is
			continue
		}
		if c.program != "" {
			if _, err := lookPath(c.program, s.Env); err != nil {
				continue
			}
		}
		_ = os.MkdirAll(dir, 0o700)
	}
}

// DefaultGuarded lie in writable paths and are read-only all the same, unless Rules.Allow names them: programs and settings
// that would act for the user later, outside of any sandbox.
var DefaultGuarded = []string{
	"~/.cargo/bin", "~/.cargo/env", "~/.cargo/config", "~/.cargo/config.toml", "$CARGO_HOME/bin", "$CARGO_HOME/config.toml",
	"~/.gradle/init.d", "~/.gradle/init.gradle", "~/.gradle/gradle.properties",
}

// DefaultSockets are doors to processes that act for the user without a sandbox: closed in Local unless Rules.Allow names them. In NS
// nothing of /run is to be seen.
var DefaultSockets = []string{
	"/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock", "/run/buildkit/buildkitd.sock", "/run/dbus/system_bus_socket", "/run/systemd/private",
	"/run/libvirt/*-sock", "/run/snapd.socket", "/run/incus/unix.socket", "/var/lib/incus/unix.socket", "/var/lib/lxd/unix.socket", "/var/snap/lxd/common/lxd/unix.socket", "/run/screen/S-*", "$TMUX_TMPDIR/tmux-*",
	// Where they usually are, for commands that come without the variable below.
	"/run/user/*/bus", "/run/user/*/systemd/private", "/run/user/*/docker.sock", "/run/user/*/podman/podman.sock", "/run/user/*/keyring/*", "/run/user/*/gnupg/S.*", "/run/user/*/gcr/ssh",
	"$XDG_RUNTIME_DIR/bus", "$XDG_RUNTIME_DIR/systemd/private", "$XDG_RUNTIME_DIR/docker.sock", "$XDG_RUNTIME_DIR/podman/podman.sock", "$XDG_RUNTIME_DIR/keyring/*",
	"$XDG_RUNTIME_DIR/gnupg/S.*", "~/.docker/run/docker.sock", "~/.gnupg/S.*", "$SSH_AUTH_SOCK",
}

// DefaultSecrets cannot be seen in NS.
var DefaultSecrets = []string{
	"~/.ssh", "~/.aws", "~/.azure", "~/.config/gcloud", "~/.netrc", "~/.git-credentials", "~/.config/git/credentials", "~/.config/gh", "~/.config/glab-cli",
	"~/.docker/config.json", "~/.kube", "~/.gnupg", "~/.password-store", "~/.local/share/keyrings", "~/.pki", "~/.npmrc", "~/.pypirc", "~/.pgpass", "~/.my.cnf",
	"~/.cargo/credentials", "~/.cargo/credentials.toml", "~/.vault-token", "~/.terraform.d/credentials.tfrc.json", "~/.config/rclone", "~/.config/age", "~/.config/sops",
	"~/.mozilla", "~/.thunderbird", "~/.config/google-chrome*", "~/.config/chromium", "~/.config/BraveSoftware", "~/.config/microsoft-edge*", "~/.config/vivaldi*",
	"~/.config/opera*", "~/.var/app/*", "~/snap/firefox", "~/snap/chromium",
	"~/.bash_history", "~/.zsh_history", "~/.python_history", "~/.node_repl_history", "~/.psql_history", "~/.local/share/fish/fish_history",
	"/etc/shadow*", "/etc/gshadow*", "/etc/ssh/ssh_host_*_key", "/etc/sudoers*", "/etc/krb5.keytab",
}

// homes are the home directories that ~ stands for: $HOME and what the system has for the user; for a privileged user, who can read them, those of all.
func homes(env []string) []string {
	var all []string
	add := func(dir string) {
		if filepath.IsAbs(dir) && dir != "/" && !slices.Contains(all, filepath.Clean(dir)) {
			all = append(all, filepath.Clean(dir))
		}
	}
	add(getenv(env, "HOME"))
	if u, err := user.LookupId(strconv.Itoa(os.Geteuid())); err == nil {
		add(u.HomeDir)
	}
	if os.Geteuid() == 0 {
		others, _ := filepath.Glob("/home/*")
		for _, dir := range others {
			add(dir)
		}
	}
	return all
}

// expand is what the entries of a list stand for, as far as there is something there. own is set where ~ is the user's own home alone.
// A variable may say anything: neither a whole home nor everything is a cache, or a secret.
func expand(list, env []string, own bool) []string {
	dirs := homes(env)
	return slices.DeleteFunc(expandAll(list, env, own), func(path string) bool { return path == "/" || slices.Contains(dirs, path) })
}

// expandAll is expand for what the user has asked for.
func expandAll(list, env []string, own bool) (paths []string) {
	dirs := homes(env)
	if own && len(dirs) > 1 {
		dirs = dirs[:1]
	}
	add := func(pattern string) {
		if !filepath.IsAbs(pattern) {
			return
		}
		found, err := filepath.Glob(pattern)
		if err != nil {
			return
		}
		for _, path := range found {
			if path = filepath.Clean(path); !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	for _, entry := range list {
		rest, home := strings.CutPrefix(entry, "~/")
		name, variable := strings.CutPrefix(entry, "$")
		switch {
		case home:
			for _, dir := range dirs {
				add(filepath.Join(dir, rest))
			}
		case variable:
			name, rest, _ := strings.Cut(name, "/")
			for _, value := range filepath.SplitList(getenv(env, name)) {
				add(filepath.Join(value, rest))
			}
		default:
			add(entry)
		}
	}
	return paths
}
