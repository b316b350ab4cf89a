#!/usr/bin/env bash
# a write through one name of a file changes the other, too
. "$(dirname "$0")/lib.sh"

set_up
accident 'echo oops >data/same.bin; rm data/measurements.bin; cp data/same.bin data/measurements.bin'
taken_back
