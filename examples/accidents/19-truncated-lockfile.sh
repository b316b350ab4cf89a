#!/usr/bin/env bash
# the lockfile is truncated
. "$(dirname "$0")/lib.sh"

set_up
accident ': >package-lock.json'
taken_back
