#!/usr/bin/env bash
# git clean -fdx takes .env, data and node_modules
. "$(dirname "$0")/lib.sh"

set_up
accident 'git clean -qfdx'
taken_back
