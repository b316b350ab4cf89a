#!/usr/bin/env bash
# quickstart.sh [DIR]: build rewindfs, mount DIR (or a small sample project) and
# show checkpoint, damage and rollback.
#
# DIR itself is never written. With DIR the mount is left in place, rolled back,
# for you to go on with; without, everything is taken away again.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

case "${1-}" in -h | --help) sed -n '2,6s/^# \?//p' "$0"; exit 0 ;; esac
[ $# -le 1 ] || die "usage: scripts/quickstart.sh [DIR]"

run() { printf '\n$ %s\n' "$*" | sed "s|$BIN|rewindfs|g"; "$@"; }

say "Set-up"
need_go
need_packages fusermount3:fuse3
[ -e /dev/fuse ] && [ -r /dev/fuse ] && [ -w /dev/fuse ] || open_dev_fuse
BIN=$ROOT/bin/rewindfs
mkdir -p "$ROOT/bin"
build_rewindfs "$BIN"
note "built ${BIN#"$ROOT"/}"

if [ $# = 1 ]; then
	[ -d "$1" ] || die "$1 is not a directory"
	BASE=$(cd "$1" && pwd -P)
	MNT=$BASE.rewind
else
	TMP=$(mktemp -d)
	export XDG_STATE_HOME=$TMP/state # nothing is left of the sample
	BASE=$TMP/project MNT=$TMP/project.rewind
	mkdir -p "$BASE/src"
	printf '# A sample project\n' >"$BASE/README.md"
	for i in 1 2 3; do printf 'package src // file %s\n' "$i" >"$BASE/src/file$i.go"; done
	finish() {
		"$BIN" unmount -s "$MNT" >/dev/null 2>&1 || end_mount "$MNT"
		rm -rf "$TMP"
	}
	trap finish EXIT
fi

say "Mount: $MNT shows $BASE, writable; $BASE itself is never written"
run "$BIN" mount "$BASE"
export REWINDFS_SESSION=$MNT

say "Checkpoint: constant time, whatever the size of the tree"
LABEL=quickstart
[ $# = 0 ] || LABEL=quickstart-$(date +%H%M%S)
run "$BIN" checkpoint "$LABEL"

say "Damage: an edit, a new file, and everything else deleted"
cd "$MNT"
printf '\n$ rm -rf * ; echo oops > new-file\n'
find . -mindepth 1 -maxdepth 1 -exec rm -rf {} +
echo oops >new-file
run ls -A
run "$BIN" status
run "$BIN" diff --stat

say "Rollback: all of it is back, exactly"
run "$BIN" rollback "$LABEL"
run ls -A
cd /

if [ $# = 1 ]; then
	diff -rq --no-dereference "$BASE" "$MNT" >/dev/null && note "$MNT and $BASE are the same again" || true
	say "Go on"
	note "work in            $MNT"
	note "save a state       rewindfs checkpoint NAME"
	note "go back            rewindfs rollback NAME"
	note "stop               rewindfs unmount    (mount it again tomorrow: all is there)"
	note "forget it all      rewindfs destroy"
else
	diff -r "$BASE" "$MNT"
	note "compared with the base: no difference"
	say "Done; the sample is unmounted and removed. Try it on a project of yours: scripts/quickstart.sh DIR"
fi
note "install the binary: scripts/install.sh"
