#!/usr/bin/env bash
# git checkout . over edits that were not committed
. "$(dirname "$0")/lib.sh"

set_up
accident 'git reset -q && git checkout -q .'
taken_back
