#!/usr/bin/env bash
# git push --force onto a remote outside of the project
. "$(dirname "$0")/lib.sh"

set_up 'git init -q --bare ~/remote.git && git remote add origin ~/remote.git && git push -q origin main'
accident 'git commit -q --amend -m rewritten && git push -q --force origin main && test "$(git -C ~/remote.git log -1 --format=%s)" = rewritten'
refused
