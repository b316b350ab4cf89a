#!/usr/bin/env bash
# git stash, and then git stash drop
. "$(dirname "$0")/lib.sh"

set_up
accident 'git stash -qu && git stash drop -q && git gc -q --prune=now'
taken_back
