#!/usr/bin/env bash
# dedup.sh [CHECKPOINTS]: how much a store takes for CHECKPOINTS (default 1000) checkpoints of a project in
# which dependencies were installed: about 5,000 files of 1 to 15 KB. Between two checkpoints three sources
# change, and a build writes a file that it wrote before; with REINSTALL=1 a package of 20 files is also installed again as
# it was, which changes no byte but 150 records. Prints what was written that is not like anything before, and what
# the store grew by, before and after a gc that keeps all.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
case "${1-}" in -*) sed -n '2,6s/^# \?//p' "$0"; exit 64 ;; esac
N=${1-1000}
need_go
TMP=$(mktemp -d)
export XDG_STATE_HOME=$TMP/state
BASE=$TMP/proj MNT=$TMP/proj.rewind BIN=$TMP/rewindfs
finish() {
	"$BIN" unmount -s "$MNT" >/dev/null 2>&1 || end_mount "$MNT"
	rm -rf "$TMP"
}
trap finish EXIT
build_rewindfs "$BIN"
mkdir -p "$BASE/src"
"$BIN" mount "$BASE" "$MNT" >/dev/null
STORE=$(echo "$XDG_STATE_HOME"/rewindfs/proj-*)

UNIQUE=0
# fresh FILE BYTES: bytes that are like no others.
fresh() {
	head -c "$2" /dev/urandom >"$1"
	UNIQUE=$((UNIQUE + $2))
}
# taken: what the files of the store take, but for what its log has allocated ahead.
taken() { echo $(($(du -s --block-size=1 "$STORE" | cut -f1) - $(du -s --block-size=1 "$STORE/kv/log" | cut -f1))); }

say "Installing dependencies"
for p in $(seq 250); do
	mkdir -p "$MNT/node_modules/p$p/lib"
	for f in $(seq 20); do fresh "$MNT/node_modules/p$p/lib/f$f.js" $((1000 + (p * 7919 + f * 104729) % 14000)); done
done
say "$N checkpoints"
for i in $(seq "$N"); do
	for k in 1 2 3; do fresh "$MNT/src/s$(((i * k) % 40)).ts" $((2000 + (i * 7919 + k * 104729) % 14000)); done
	if [ "${REINSTALL-}" = 1 ]; then
		d=$MNT/node_modules/p$((i % 250 + 1))
		cp -r "$d" "$d.new"
		rm -r "$d"
		mv "$d.new" "$d"
	fi
	cat "$MNT/node_modules/p1/lib/"*.js >"$MNT/bundle.js"
	"$BIN" checkpoint "c$i" -s "$MNT" -q >/dev/null
done
# The daemon puts the last of it into packs.
for _ in $(seq 600); do
	"$BIN" status -s "$MNT" --json | grep -Eq '"pending_bytes": *0[,}]' && break
	sleep 0.1
done
BEFORE=$(taken)
"$BIN" gc -s "$MNT"
AFTER=$(taken)
"$BIN" cat -s "$MNT" c1:node_modules/p1/lib/f1.js >/dev/null
"$BIN" fsck -s "$MNT"
say "Result"
note "$(awk -v u=$UNIQUE -v b="$BEFORE" -v a="$AFTER" 'BEGIN {printf "%.1f MB unique; the store grew by %.1f MB (%.3f x), after gc %.1f MB (%.3f x)", u/1e6, b/1e6, b/u, a/1e6, a/u}')"
