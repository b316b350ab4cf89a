#!/usr/bin/env bash
# git reset --hard with work not committed
. "$(dirname "$0")/lib.sh"

set_up
accident 'git reset -q --hard HEAD~1'
taken_back
