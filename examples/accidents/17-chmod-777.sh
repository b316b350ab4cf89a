#!/usr/bin/env bash
# chmod -R 777 to make an error go away
. "$(dirname "$0")/lib.sh"

set_up
accident 'chmod -R 777 .'
taken_back
