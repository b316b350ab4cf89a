#!/bin/sh
# demo.sh MOUNTPOINT: guarded-run.sh keeps good work and takes back bad work, with the conversation that
# goes with it. MOUNTPOINT is a fresh mount of examples/project.
set -eu

[ $# = 1 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 64; }
rewindfs=${REWINDFS_BIN:-rewindfs}
here=$(cd "$(dirname "$0")" && pwd)
verifier="python3 '$here/../verifier.py'"
messages=$(mktemp)
trap 'rm -f "$messages"' EXIT
cd "$1"

# The model has asked for a command, and the answer is not there yet: cut here, no provider would take it.
cat >"$messages" <<'JSON'
[{"role":"user","content":"Make words() keep digits, and tidy up."},
 {"role":"assistant","content":null,"tool_calls":[
  {"id":"call_1","type":"function","function":{"name":"shell","arguments":"{\"command\":\"rm -rf samples\"}"}}]}]
JSON

must() { "$@" || { echo "NOT AS CLAIMED: $*" >&2; exit 1; }; }
guarded() { # guarded EXPECTED-CODE ARGS...
	want=$1 got=0
	shift
	"$here/guarded-run.sh" "$@" || got=$?
	must [ "$got" = "$want" ]
}

echo '== good work is kept'
guarded 0 "$verifier" sed -i "s/\[a-z'\]/[a-z0-9']/" words.py
must grep -q a-z0-9 words.py

echo '== bad work is taken back, and the model is told'
guarded 7 -m "$messages" "$verifier" sh -c "rm -rf samples; sed -i 's/text.lower()/text/' words.py"
must [ -f samples/fox.txt ]
must grep -q 'a-z0-9.*text.lower()' words.py
must grep -q 'rewindfs-rollback' "$messages"
must sh -c '! grep -q call_1 "$1"' sh "$messages"

echo '== so is what a command that failed has left'
guarded 7 "$verifier" sh -c 'echo half >half-done; exit 3'
must [ ! -e half-done ]

echo '== a verifier that says nothing decides nothing'
guarded 8 'echo looks good to me' touch new-file
must [ -e new-file ]

must sh -c "$verifier"
must "$rewindfs" ledger verify
