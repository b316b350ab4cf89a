#!/usr/bin/env bash
# dd onto a file
. "$(dirname "$0")/lib.sh"

set_up
accident 'dd if=/dev/zero of=data/measurements.bin bs=4096 count=10 conv=notrunc status=none'
taken_back
