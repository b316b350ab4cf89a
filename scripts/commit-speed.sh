#!/usr/bin/env bash
# commit-speed.sh [FILES] [DIR]: how long `rewindfs commit` of FILES (default 100000) new, and then changed, files of 1 KiB
# takes, next to `cp -a` of the same files and a sync of the file system. DIR (default: $TMPDIR) says on which disk. Run it on an idle machine.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
case "${1-}" in -*) sed -n '2,3s/^# \?//p' "$0"; exit 64 ;; esac
need_go
FILES=${1-100000}
TOP=$(mktemp -d -p "${2-${TMPDIR-/tmp}}")
export XDG_STATE_HOME=$TOP/state
mkdir "$TOP/base" "$TOP/copy"
M=$TOP/base.rewind
clean() {
	if grep -q " $M " /proc/mounts; then "$TOP/rewindfs" -q unmount --force "$M" >/dev/null || true; fi
	rm -rf "$TOP"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP
(cd "$ROOT" && go build -o "$TOP/rewindfs" ./cmd/rewindfs)

# fill ROUND: FILES files in directories of 1000, each with a kilobyte of its own.
fill() {
	python3 - "$M" "$FILES" "$1" <<'END'
import os, sys
top, files, round_ = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for i in range(files):
    d = f"{top}/d{i // 1000}"
    if i % 1000 == 0:
        os.makedirs(d, exist_ok=True)
    with open(f"{d}/f{i}", "w") as f:
        f.write(f"{round_} {i} ".ljust(1024, "x"))
END
}

seconds() {
	local from to
	from=$(date +%s%N)
	"$@" >/dev/null
	to=$(date +%s%N)
	echo $(((to - from) / 1000000))
}

copy() { cp -a "$TOP/base/." "$TOP/copy/$1" && sync -f "$TOP/copy/$1"; }

"$TOP/rewindfs" -q mount "$TOP/base" >/dev/null
for round in new changed; do
	fill "$round"
	"$TOP/rewindfs" checkpoint -s "$M" "$round" >/dev/null
	sync -f "$TOP"
	ours=$(seconds "$TOP/rewindfs" commit -s "$M" "$round")
	sync -f "$TOP"
	theirs=$(seconds copy "$round")
	echo "$FILES $round files: commit $ours ms, cp -a and sync $theirs ms, ratio $(awk -v a="$ours" -v b="$theirs" 'BEGIN {printf "%.2f", a / b}')"
done
again=$(seconds "$TOP/rewindfs" commit -s "$M")
echo "a commit of nothing after that: $again ms"
"$TOP/rewindfs" -q unmount "$M" >/dev/null
