#!/usr/bin/env bash
# pjdfstest.sh DIR [TEST...]: run pjdfstest, of which DIR is a checkout, as root in
# a mount and in a plain directory beside it, and compare.
#
# Prints each test that fails in the mount and not in the plain directory, and the
# totals. TESTs are paths below DIR/tests (default: all), such as rename or chmod/00.t.
# The checkout is built in place (needs autoconf, automake, a C compiler).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
case "${1--h}" in -h | --help) sed -n '2,7s/^# \?//p' "$0"; exit 0 ;; esac
[ "$(id -u)" = 0 ] || die "pjdfstest needs root"
[ -f "$1/configure.ac" ] || die "$1 is no checkout of pjdfstest"
SUITE=$(cd "$1" && pwd); shift

need_go
need_packages autoreconf:autoconf automake:automake gcc:gcc make:make prove:perl fusermount3:fuse3
[ -x "$SUITE/pjdfstest" ] || (cd "$SUITE" && autoreconf -ifs >/dev/null 2>&1 && ./configure >/dev/null && make -s pjdfstest >/dev/null)

TOP=$(mktemp -d)
chmod 755 "$TOP"
export XDG_STATE_HOME=$TOP/state REWINDFS_SESSION=$TOP/mnt
trap 'cd /; "$TOP/rewindfs" unmount >/dev/null 2>&1 || end_mount "$TOP/mnt"; rm -rf "$TOP"' EXIT
build_rewindfs "$TOP/rewindfs"
mkdir "$TOP/base" "$TOP/mnt" "$TOP/plain"
"$TOP/rewindfs" -q mount "$TOP/base" "$TOP/mnt" --allow-other >/dev/null

tests=("$@")
[ ${#tests[@]} -gt 0 ] || tests=(.)
paths=()
for t in "${tests[@]}"; do paths+=("$SUITE/tests/$t"); done

# run DIR OUT: one line 'FILE NUMBER' for each failed test.
run() {
	(cd "$1" && umask 0 && find "${paths[@]}" -name '*.t' | sort | while read -r f; do
		timeout 120 bash "$f" 2>/dev/null | awk -v f="${f#"$SUITE/tests/"}" '
			/^1\.\./ {split($0, a, "\\.\\."); plan = a[2]}
			/^ok/ {n++} /^not ok/ {n++; print f, n}
			END {if (n != plan) print f, "ran " n + 0 " of " plan; printf "%s total %d\n", f, plan >"/dev/stderr"}' || true
	done) >"$2" 2>"$2.totals"
}
run "$TOP/plain" "$TOP/plain.failed"
run "$TOP/mnt" "$TOP/mnt.failed"
total=$(awk '$2 == "total" {n += $3} END {print n + 0}' "$TOP/mnt.failed.totals")
sort "$TOP/plain.failed" >"$TOP/p" && sort "$TOP/mnt.failed" >"$TOP/m"
new=$(comm -13 "$TOP/p" "$TOP/m")
[ -z "$new" ] || printf 'failed in the mount only:\n%s\n' "$new"
printf '%d tests in %d files; failed in the mount: %d, in the plain directory: %d, in the mount only: %d\n' \
	"$total" "$(wc -l <"$TOP/mnt.failed.totals")" "$(wc -l <"$TOP/m")" "$(wc -l <"$TOP/p")" "$(printf %s "$new" | grep -c . || true)"
[ -z "$new" ]
