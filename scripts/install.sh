#!/usr/bin/env bash
# install.sh [PREFIX]: build rewindfs and put it, with shell completions, below
# PREFIX (default /usr/local as root, ~/.local otherwise). --uninstall removes them.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

uninstall=
if [ "${1-}" = --uninstall ]; then uninstall=1; shift; fi
case "${1-}" in -*) sed -n '2,3s/^# \?//p' "$0"; exit 64 ;; esac
if [ "$(id -u)" = 0 ]; then default=/usr/local; else default=$HOME/.local; fi
prefix=${1-$default}

bin=$prefix/bin/rewindfs
bash=$prefix/share/bash-completion/completions/rewindfs
zsh=$prefix/share/zsh/site-functions/_rewindfs
fish=$prefix/share/fish/vendor_completions.d/rewindfs.fish

if [ -n "$uninstall" ]; then
	rm -fv "$bin" "$bash" "$zsh" "$fish"
	exit
fi

need_go
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
build_rewindfs "$tmp/rewindfs"
install -D -m 0755 "$tmp/rewindfs" "$bin"
for shell in bash zsh fish; do
	"$bin" completion "$shell" >"$tmp/$shell"
	install -D -m 0644 "$tmp/$shell" "${!shell}"
done
printf '%s\n' "$bin" "$bash" "$zsh" "$fish"
command -v fusermount3 >/dev/null || note "fusermount3 is missing: install fuse3 to mount as an ordinary user."
case ":$PATH:" in *":$prefix/bin:"*) ;; *) note "$prefix/bin is not in PATH." ;; esac
