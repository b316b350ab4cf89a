#!/usr/bin/env bash
# the .git directory is deleted to get rid of a lock
. "$(dirname "$0")/lib.sh"

set_up
accident 'touch .git/index.lock && rm -rf .git && git init -q . && git add -A && git commit -qm new'
taken_back
