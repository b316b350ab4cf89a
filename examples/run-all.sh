#!/usr/bin/env bash
# run-all.sh [-v] BINARY [NAME...]: run the examples with the rewindfs at BINARY (default: all of them), each
# in a fresh mount of a copy of examples/project, and say ok or FAILED. -v shows what they print. The last one, accidents, is
# accidents/run.sh, which prints a line for each.
#
# Exit code 0 when all are ok. Nothing is left behind: no mount, no store, no file.
set -uo pipefail
. "$(dirname "$0")/../scripts/lib.sh"

usage="usage: examples/run-all.sh [-v] BINARY [NAME...]"
verbose=
[ "${1-}" != -v ] || { verbose=1; shift; }
[ $# -ge 1 ] || die "$usage"
REWINDFS_BIN=$(realpath -e -- "$1" 2>/dev/null) && [ -x "$REWINDFS_BIN" ] || die "$1 is no program; $usage"
shift
export REWINDFS_BIN
unset REWINDFS_SESSION REWINDFS_GENERATION
export PYTHONDONTWRITEBYTECODE=1
here=$ROOT/examples

names=("$@")
[ $# != 0 ] || names=(openai_chat openai_responses anthropic_messages gemini langchain_dicts mistral ollama guarded-run accidents)

tmp=$(mktemp -d)
mnt=
finish() {
	[ -z "$mnt" ] || end_mount "$mnt"
	rm -rf --one-file-system "$tmp"
}
trap finish EXIT
trap 'exit 130' INT TERM
cp -R "$here/project" "$tmp" # the checkout may belong to another user

example() { # example NAME MOUNTPOINT
	case $1 in
	guarded-run) timeout 120 "$here/shell/demo.sh" "$2" ;;
	*) timeout 120 python3 "$here/python/$1.py" "$2" ;;
	esac
}

# in_mount NAME: the whole life of an example. Runs in the directory that holds its mount and its store.
in_mount() {
	export XDG_STATE_HOME=$tmp/state
	timeout 60 "$REWINDFS_BIN" mount -q "$tmp/project" "$mnt" >/dev/null || return 1
	example "$1" "$mnt"
	local code=$?
	# An example that leaves the mount in use, or a daemon that does not end well, is not ok.
	timeout 60 "$REWINDFS_BIN" -s "$mnt" unmount >/dev/null || code=1
	return $code
}

failed=0
for name in "${names[@]}"; do
	if [ "$name" = accidents ]; then
		"$here/accidents/run.sh" "$REWINDFS_BIN" || failed=$((failed + 1))
		continue
	fi
	mnt=$tmp/mnt
	mkdir -p "$mnt"
	if [ -n "$verbose" ]; then
		say "$name"
		in_mount "$name"
	else
		in_mount "$name" >"$tmp/log" 2>&1
	fi
	if [ $? = 0 ]; then
		echo "ok      $name"
	else
		echo "FAILED  $name"
		[ -n "$verbose" ] || sed 's/^/        /' "$tmp/log" | tail -40
		failed=$((failed + 1))
	fi
	end_mount "$mnt"
	rm -rf --one-file-system "$tmp/state"
done
[ $failed = 0 ] || die "$failed of ${#names[@]} examples failed"
