# shellcheck shell=bash
# Shared by the scripts here: sourced, never run.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '\n== %s\n' "$*"; }
note() { printf '   %s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

# as_root CMD...: run as root, by sudo where needed.
as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"
	elif command -v sudo >/dev/null; then sudo "$@"
	else die "root is needed for: $* (no sudo here)"; fi
}

# need_packages COMMAND:PACKAGE...: install the packages whose command is missing.
need_packages() {
	local pair missing=()
	for pair in "$@"; do
		command -v "${pair%%:*}" >/dev/null || [ -x "/usr/sbin/${pair%%:*}" ] || missing+=("${pair##*:}")
	done
	[ ${#missing[@]} = 0 ] && return
	command -v apt-get >/dev/null || die "missing: ${missing[*]}. Install them with your package manager and run this again."
	note "installing ${missing[*]}"
	as_root apt-get update -qq
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

need_go() {
	command -v go >/dev/null || die "Go is missing: see https://go.dev/doc/install (version: the go line in go.mod)."
}

# open_dev_fuse: let ordinary users open /dev/fuse, as distributions ship it.
# Some bare machines have it 0600.
open_dev_fuse() {
	[ -e /dev/fuse ] || as_root modprobe fuse 2>/dev/null || true
	[ -e /dev/fuse ] || die "/dev/fuse is missing: load the fuse module, or give the container --device /dev/fuse."
	if [ "$(stat -c %a /dev/fuse)" != 666 ]; then
		as_root chmod 0666 /dev/fuse
	fi
}

# build_rewindfs FILE
build_rewindfs() {
	(cd "$ROOT" && go build -o "$1" ./cmd/rewindfs)
}

# end_mount DIR: take a FUSE mount away by all means.
end_mount() {
	local minor
	mountpoint -q "$1" 2>/dev/null || grep -q " $1 " /proc/self/mountinfo || return 0
	minor=$(awk -v d="$1" '$5 == d {split($3, a, ":"); m = a[2]} END {print m}' /proc/self/mountinfo)
	[ -n "$minor" ] && echo 1 2>/dev/null >"/sys/fs/fuse/connections/$minor/abort"
	umount -l "$1" 2>/dev/null || fusermount3 -uz "$1" 2>/dev/null || true
}

# work_place: make TOP, a directory that is gone at the end, name B and M in it for a base and its mount, and set BIN to $REWINDFS_BIN, or to
# a build. At the end, before_end is run first, if it is set.
work_place() {
	TOP=$(mktemp -d)
	B=$TOP/base M=$TOP/mnt
	export XDG_STATE_HOME=$TOP/state REWINDFS_SESSION=$M
	trap leave_work_place EXIT
	trap 'exit 130' INT TERM
	BIN=${REWINDFS_BIN-}
	if [ -z "$BIN" ]; then
		need_go
		BIN=$TOP/rewindfs
		build_rewindfs "$BIN" || die "the build failed"
	fi
	BIN=$(realpath "$BIN")
}

leave_work_place() {
	cd /
	[ -z "${before_end-}" ] || $before_end
	[ -z "${BIN-}" ] || timeout 60 "$BIN" unmount >/dev/null 2>&1
	end_mount "$M"
	chmod -R u+w "$TOP" 2>/dev/null
	rm -rf --one-file-system "$TOP"
}
