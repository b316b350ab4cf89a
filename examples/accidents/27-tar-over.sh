#!/usr/bin/env bash
# tar extracts an old archive over the project
. "$(dirname "$0")/lib.sh"

set_up 'tar -cf ~/old.tar README.md src && echo newer >>README.md && echo newer >>src/f1.go'
accident 'tar -xf ~/old.tar --recursive-unlink'
taken_back
