#!/usr/bin/env bash
# a directory becomes a symbolic link, and what is written goes elsewhere
. "$(dirname "$0")/lib.sh"

set_up
accident 'rm -rf config && ln -s ../src src/loop && mv docs docs2 && ln -s src docs && echo lost >docs/f1.go && ln -sf /nowhere .env'
taken_back
