#!/usr/bin/env bash
# a redirect over the file that is being read
. "$(dirname "$0")/lib.sh"

set_up
accident 'sort src/f1.go >src/f1.go; awk 1 README.md >README.md'
taken_back
