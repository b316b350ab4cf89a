#!/usr/bin/env bash
# rsync --delete the wrong way round
. "$(dirname "$0")/lib.sh"

command -v rsync >/dev/null || skip 'rsync is not installed'
set_up 'mkdir ~/backup && cp README.md ~/backup'
accident 'rsync -a --delete ~/backup/ ./'
taken_back
