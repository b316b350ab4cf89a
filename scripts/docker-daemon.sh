#!/usr/bin/env bash
# docker-daemon.sh CMD...: run CMD with a Docker daemon of its own, which ends with it: its socket, images and
# containers are in a temporary directory, and it touches neither network nor firewall. It has one image, made from
# Debian's busybox-static; CMD finds it by REWINDFS_TEST_DOCKER_HOST. Both are in a mount namespace of their own, in which users may mount
# with --allow-other. Needs root, and the packages docker.io and busybox-static. Ends with 77 where the daemon cannot be started here.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

if [ -z "${REWINDFS_DOCKER_APART:-}" ] && [ "$(id -u)" = 0 ]; then
	unshare --mount true 2>/dev/null || { note "no Docker daemon can be started here: no mount namespace can be made"; exit 77; }
	REWINDFS_DOCKER_APART=1 exec unshare --mount -- "$0" "$@"
fi

dir=$(mktemp -d)
host=unix://$dir/docker.sock
daemon=

# shellcheck disable=SC2317
end() {
	if [ -n "$daemon" ]; then
		docker --host "$host" ps --all --quiet 2>/dev/null | xargs -r docker --host "$host" rm --force >/dev/null 2>&1 || true
		kill "$daemon" 2>/dev/null || true
		wait "$daemon" 2>/dev/null || true
	fi
	{ grep -o " $dir/[^ ]*" /proc/self/mountinfo || true; } | sort -r | while read -r m; do umount -l "$m" 2>/dev/null || true; done
	umount -l /etc/fuse.conf 2>/dev/null || true
	rm -rf "$dir"
}
trap end EXIT

cannot() {
	note "no Docker daemon can be started here: $*"
	[ ! -s "$dir/log" ] || tail -3 "$dir/log" | sed 's/^/      /'
	exit 77
}

# start DRIVER: true once it answers.
start() {
	dockerd --host "$host" --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" --storage-driver "$1" \
		--bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false >"$dir/log" 2>&1 &
	daemon=$!
	for _ in $(seq 150); do
		docker --host "$host" version >/dev/null 2>&1 && return 0
		kill -0 "$daemon" 2>/dev/null || break
		sleep 0.2
	done
	kill "$daemon" 2>/dev/null || true
	wait "$daemon" 2>/dev/null || true
	daemon=
	return 1
}

make_image() {
	local root=$dir/image box=$1 applet
	mkdir -p "$root"/{bin,etc,tmp,run,proc,sys,dev,var,root}
	cp "$box" "$root/bin/busybox"
	for applet in $("$box" --list); do [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"; done
	echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
	tar -C "$root" -c . | docker --host "$host" import - rewindfs-test:1 >/dev/null
}

[ "$(id -u)" = 0 ] || cannot "it needs root"
chmod 0711 "$dir" # other users may use the socket
box=$(command -v busybox) || cannot "busybox-static is not installed"
ldd "$box" >/dev/null 2>&1 && cannot "$box needs libraries: install busybox-static"
command -v dockerd >/dev/null || cannot "docker.io is not installed"
if [ -e /etc/fuse.conf ]; then
	echo user_allow_other >"$dir/fuse.conf"
	mount --bind "$dir/fuse.conf" /etc/fuse.conf
fi
start overlay2 || start vfs || cannot "dockerd ended, or did not answer within 30 s"
chmod 0666 "$dir/docker.sock"
make_image "$box"
REWINDFS_TEST_DOCKER_HOST=$host "$@"
