#!/usr/bin/env bash
# crash.sh [KILLS] [SEED|fresh]: the crash tests, long: the daemon is killed KILLS (default 100) times
# under writers, under checkpoints, and under an agent; what was acknowledged must be there, and
# files and conversations be of one piece. The store of a run that failed is kept; the output says where.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
case "${1-}" in -*) sed -n '2,4s/^# \?//p' "$0"; exit 64 ;; esac
need_go
cd "$ROOT"
TOP=$(mktemp -d)
chmod 755 "$TOP"
# However this ends, no mount stays behind.
clean() {
	local m
	[ -z "${PID-}" ] || kill "$PID" 2>/dev/null || true
	while read -r m; do end_mount "$m"; done < <(awk -v t="$TOP/" 'index($2, t) == 1 {print $2}' /proc/mounts)
	compgen -G "$TOP/rewindfs-crash-store-*" >/dev/null || rm -rf "$TOP"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP
go test -c -o "$TOP/crash.test" ./tests/crash
cd tests/crash
TMPDIR=$TOP REWINDFS_TEST_KILLS=${1-100} REWINDFS_TEST_SEED=${2-1} "$TOP/crash.test" -test.v -test.timeout 60m &
PID=$!
wait "$PID"
