#!/usr/bin/env bash
# rm -rf "$DIR/"* with DIR unset in a clean-up script
. "$(dirname "$0")/lib.sh"

set_up
accident 'cd src && unset DIR && rm -rf -- "${DIR:-..}"/* "${DIR:-..}"/.git'
taken_back
