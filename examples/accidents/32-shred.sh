#!/usr/bin/env bash
# shred -u of what was taken for temporary
. "$(dirname "$0")/lib.sh"

command -v shred >/dev/null || skip 'shred is not installed'
set_up
accident 'shred -u data/measurements.bin .env logs/app.log'
taken_back
