#!/usr/bin/env bash
# run.sh [-v] BINARY [NAME...]: replay accidents with the rewindfs at BINARY (default: all of them), each in a pretend home of its own. It
# prints what became of each: taken back, refused, skipped (and why), or FAILED with what it said.
#
# Exit code 0 when none failed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../../scripts/lib.sh"

usage="usage: examples/accidents/run.sh [-v] BINARY [NAME...]"
verbose=
[ "${1-}" != -v ] || { verbose=1; shift; }
[ $# -ge 1 ] || die "$usage"
REWINDFS_BIN=$(realpath -e -- "$1" 2>/dev/null) && [ -x "$REWINDFS_BIN" ] || die "$1 is no program; $usage"
export REWINDFS_BIN
shift

scripts=("$here"/[0-9]*.sh)
if [ $# -gt 0 ]; then
	scripts=()
	for name; do
		found=("$here"/*"$name"*.sh)
		[ -e "${found[0]}" ] || die "there is no accident $name"
		scripts+=("${found[@]}")
	done
fi
failed=0
for script in "${scripts[@]}"; do
	said=$(timeout 300 "$script" 2>&1)
	code=$?
	last=$(tail -n 1 <<<"$said")
	case $code in
	0) word=$last ;;
	77) word=$last ;;
	*) word=FAILED failed=$((failed + 1)) ;;
	esac
	printf '%-32s %-72s %s\n' "$(basename "$script" .sh)" "$(sed -n '2s/^# //p' "$script")" "$word"
	if [ -n "$verbose" ] || [ "$word" = FAILED ]; then sed 's/^/        /' <<<"$said" | tail -40; fi
done
[ $failed = 0 ] || die "$failed of ${#scripts[@]} accidents were not taken back"
