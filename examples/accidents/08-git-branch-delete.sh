#!/usr/bin/env bash
# git branch -D of the only branch with the work, and gc
. "$(dirname "$0")/lib.sh"

set_up 'git switch -qc feature && git commit -qam work && git switch -q main'
accident 'git branch -qD feature && git reflog expire --expire=now --all && git gc -q --prune=now'
taken_back
