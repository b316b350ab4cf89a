#!/usr/bin/env bash
# mv onto files that exist
. "$(dirname "$0")/lib.sh"

set_up
accident 'mv src/f1.go src/f2.go && mv src/uncommitted.go README.md && mv .env data/measurements.bin'
taken_back
