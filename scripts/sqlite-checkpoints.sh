#!/usr/bin/env bash
# sqlite-checkpoints.sh [COUNT]: take COUNT checkpoints (default: 10000) while SQLite commits into two databases of a mount, one with
# a WAL and one with a rollback journal, both with synchronous=FULL; then look at every one twice: copied out of .rewind/checkpoints,
# and in the mount after a rollback to it. It must pass PRAGMA integrity_check, hold every transaction that was committed before
# the checkpoint was asked for, and nothing of a later one.
#
# Prints how many there were, and exits 0 when all are right. REWINDFS_BIN names a binary to test; else one is built.
set -uo pipefail
. "$(dirname "$0")/lib.sh"

count=${1:-10000}
[[ $count =~ ^[1-9][0-9]*$ ]] || { sed -n '2,7s/^# \?//p' "$0"; exit 64; }
command -v python3 >/dev/null || die "python3 is missing: install it with your package manager"

work_place
mkdir "$B" "$M"
timeout 60 "$BIN" mount -q "$B" "$M" --store "$TOP/store" >/dev/null || die "mount failed"
python3 "$ROOT/scripts/sqlite-checkpoints.py" "$M" "$TOP/store/control.sock" "$count"
