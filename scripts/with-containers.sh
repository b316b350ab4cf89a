#!/usr/bin/env bash
# with-containers.sh docker|podman CMD...: run CMD with a container engine of its own. Its socket, images and containers are in a
# temporary directory and end with it; it touches neither network nor firewall. It has one image, made from Debian's busybox-static
# and the libraries of this machine, as there is no registry to get one from. CMD finds it by variables: see internal/dockertest.
# All is in a mount namespace of its own, in which users may mount with --allow-other. Needs root, and the packages docker.io or podman, and
# busybox-static. Ends with 77 where that cannot be done here.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

cannot() {
	note "no containers can be started here: $*"
	[ ! -s "${dir:-}/log" ] || tail -3 "$dir/log" | sed 's/^/      /'
	exit 77
}

[ "$(id -u)" = 0 ] || cannot "it needs root"
if [ -z "${REWINDFS_APART:-}" ]; then
	unshare --mount true 2>/dev/null || cannot "no mount namespace can be made"
	REWINDFS_APART=1 exec unshare --mount -- "$0" "$@"
fi

engine=$1
shift
dir=$(mktemp -d)
daemon=

# shellcheck disable=SC2317
end() {
	"${call[@]}" ps --all --quiet 2>/dev/null | xargs -r "${call[@]}" rm --force >/dev/null 2>&1 || true
	if [ -n "$daemon" ]; then
		kill "$daemon" 2>/dev/null || true
		wait "$daemon" 2>/dev/null || true
	fi
	{ grep -o " $dir/[^ ]*" /proc/self/mountinfo || true; } | sort -r | while read -r m; do umount -l "$m" 2>/dev/null || true; done
	umount -l /etc/fuse.conf 2>/dev/null || true
	rm -rf "$dir"
}

# start_docker DRIVER: true once the daemon answers.
start_docker() {
	dockerd --host "$DOCKER_HOST" --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" --storage-driver "$1" \
		--bridge none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false >"$dir/log" 2>&1 &
	daemon=$!
	for _ in $(seq 150); do
		docker version >/dev/null 2>&1 && return 0
		kill -0 "$daemon" 2>/dev/null || break
		sleep 0.2
	done
	kill "$daemon" 2>/dev/null || true
	wait "$daemon" 2>/dev/null || true
	daemon=
	return 1
}

# Podman has no daemon: that its files are elsewhere is all.
set_up_podman() {
	printf '[storage]\ndriver = "%s"\ngraphroot = "%s/graph"\nrunroot = "%s/run"\n' "$1" "$dir" "$dir" >"$CONTAINERS_STORAGE_CONF"
	# Its usual limits are above what root may have in some places.
	printf '[containers]\ndefault_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n' >"$CONTAINERS_CONF"
	podman info >"$dir/log" 2>&1
}

make_image() {
	local root=$dir/image applet lib
	mkdir -p "$root"/{bin,etc,tmp,run,proc,sys,dev,var,root}
	cp "$box" "$root/bin/busybox"
	for applet in $("$box" --list); do [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"; done
	echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
	# For programs that tests bring along: the C library, and what resolves names.
	{ ldd /bin/true; /sbin/ldconfig -p | grep -m1 'libresolv.so.2'; } | grep -o '/[^ ]*' | sort -u | while read -r lib; do
		cp --parents --dereference "$lib" "$root" 2>/dev/null || true
	done
	tar -C "$root" -c . | "${call[@]}" import - rewindfs-test:1 >/dev/null 2>"$dir/log"
}

call=("$engine")
trap end EXIT
box=$(command -v busybox) || cannot "busybox-static is not installed"
ldd "$box" >/dev/null 2>&1 && cannot "$box needs libraries: install busybox-static"
command -v "$engine" >/dev/null || cannot "$engine is not installed"
chmod 0711 "$dir" # other users may use the socket
if [ -e /etc/fuse.conf ]; then
	echo user_allow_other >"$dir/fuse.conf"
	mount --bind "$dir/fuse.conf" /etc/fuse.conf
fi
case "$engine" in
docker)
	export DOCKER_HOST=unix://$dir/docker.sock
	command -v dockerd >/dev/null || cannot "docker.io is not installed"
	start_docker overlay2 || start_docker vfs || cannot "dockerd ended, or did not answer within 30 s"
	chmod 0666 "$dir/docker.sock"
	;;
podman)
	export CONTAINERS_STORAGE_CONF=$dir/storage.conf CONTAINERS_CONF=$dir/containers.conf
	set_up_podman overlay || set_up_podman vfs || cannot "podman does not work"
	;;
*) die "$0 docker|podman CMD..." ;;
esac
make_image || cannot "no image can be made"
"${call[@]}" run --rm --network none rewindfs-test:1 true >"$dir/log" 2>&1 || cannot "a container does not run"
REWINDFS_TEST_CONTAINERS=$engine "$@"
