#!/usr/bin/env bash
# a write outside of the project through a link in it
. "$(dirname "$0")/lib.sh"

set_up 'ln -s ~/Documents link'
accident 'echo gone >link/thesis.txt; rm -rf link/ link/*; grep -q gone ~/Documents/thesis.txt'
refused
