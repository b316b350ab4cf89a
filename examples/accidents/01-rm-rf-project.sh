#!/usr/bin/env bash
# rm -rf of the whole project
. "$(dirname "$0")/lib.sh"

set_up
accident 'rm -rf -- * .[!.]*'
taken_back
