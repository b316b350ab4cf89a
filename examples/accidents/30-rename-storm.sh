#!/usr/bin/env bash
# all names are "normalised": Unicode, spaces, case
. "$(dirname "$0")/lib.sh"

set_up
accident - <<'END'
i=0; find . -depth -mindepth 1 ! -path './.git/*' | while read -r f; do i=$((i+1)); mv -T "$f" "$(dirname "$f")/ñ-$i"; done; mv -T .git git
END
taken_back
