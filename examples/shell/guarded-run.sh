#!/bin/sh
# guarded-run.sh [-m FILE] VERIFIER COMMAND [ARG...]: run COMMAND in a rewindfs mount, and keep what it did
# only if it succeeds and VERIFIER (for sh -c) then says pass.
#
# Call it with the working directory in the mount. -m FILE is the agent's conversation: it is kept with the
# files in front of COMMAND, and when they go back FILE is replaced by what to go on with, valid for its
# provider and telling the model why.
#
# Exit codes: 0 kept; 7 taken back; 8 the verifier gave no verdict, so nothing was touched (look, then
# rewindfs rollback); 64 usage; others: rewindfs failed, see its message.
set -eu

rewindfs=${REWINDFS_BIN:-rewindfs}
usage() { sed -n '2,4s/^# //p' "$0" >&2; exit 64; }

messages=
while getopts m: flag; do
	case $flag in
	m) messages=$OPTARG ;;
	*) usage ;;
	esac
done
shift $((OPTIND - 1))
[ $# -ge 2 ] || usage
verifier=$1
shift

mark=guarded-$(date +%Y%m%d-%H%M%S)-$$
"$rewindfs" checkpoint -q ${messages:+--messages "$messages"} "$mark" >/dev/null

code=0
"$@" || code=$?
if [ "$code" != 0 ]; then
	"$rewindfs" rollback ${messages:+--messages-out "$messages"} --notes "$1 ended with exit code $code" "$mark"
	exit 7
fi

# Without a verdict nobody is asked: the caller is a program.
"$rewindfs" verify --mode agent --cmd "$verifier" --to "$mark" || code=$?
if [ "$code" = 7 ] && [ -n "$messages" ]; then
	"$rewindfs" memory get >"$messages.new"
	mv "$messages.new" "$messages"
fi
exit "$code"
