#!/usr/bin/env bash
# run-cost.sh [ROUNDS] [DIR]: what `rewindfs run -- true` takes, with the daemon running and with none, next to plain `true`: medians of
# ROUNDS (default 30) interleaved rounds. DIR (default: $HOME) says where; not below /tmp, which sandboxes replace. Run it on an idle machine.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
case "${1-}" in -*) sed -n '2,3s/^# \?//p' "$0"; exit 64 ;; esac
need_go
ROUNDS=${1-30}
TOP=$(mktemp -d -p "${2-$HOME}" rewindfs-cost-XXXXXX)
export XDG_STATE_HOME=$TOP/state
mkdir "$TOP/base"
M=$TOP/base.rewind
R=$TOP/rewindfs
clean() {
	if grep -q " $M " /proc/mounts; then "$R" -q unmount --force "$M" >/dev/null || true; fi
	rm -rf "$TOP"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP
build_rewindfs "$R"
cd "$TOP/base"

# took NAME CMD...: notes the milliseconds that CMD takes.
took() {
	local name=$1 from to
	shift
	from=$(date +%s%N)
	"$@" >/dev/null
	to=$(date +%s%N)
	echo "$(((to - from) / 1000))" >>"$TOP/$name"
}

cold() { "$R" -q run -- true; }
ours() { "$R" -q run --sandbox "$1" -- true; }

cold >/dev/null
for ((i = 0; i < ROUNDS; i++)); do
	took true /bin/true
	for kind in none local ns; do took "run --sandbox $kind" ours "$kind"; done
	"$R" -q unmount "$M" >/dev/null
	took "run without a daemon" cold
done
for name in true "run --sandbox none" "run --sandbox local" "run --sandbox ns" "run without a daemon"; do
	sort -n "$TOP/$name" | awk -v name="$name" '{t[NR] = $1} END {printf "%-22s p50 %6.1f ms   p90 %6.1f ms\n", name, t[int((NR + 1) / 2)] / 1000, t[int(NR * 0.9 + 0.5)] / 1000}'
done
