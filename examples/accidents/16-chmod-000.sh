#!/usr/bin/env bash
# chmod -R 000
. "$(dirname "$0")/lib.sh"

set_up
accident 'chmod -R 000 src docs .git data .env'
taken_back
