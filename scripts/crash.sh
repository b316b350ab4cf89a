#!/usr/bin/env bash
# crash.sh [KILLS] [SEED|fresh]: the crash tests, long: the daemon is killed KILLS
# (default 100) times under load; every acknowledged operation must be there.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
case "${1-}" in -*) sed -n '2,3s/^# \?//p' "$0"; exit 64 ;; esac
need_go
cd "$ROOT"
REWINDFS_TEST_KILLS=${1-100} REWINDFS_TEST_SEED=${2-1} exec go test -v -count=1 -timeout 60m ./tests/crash
