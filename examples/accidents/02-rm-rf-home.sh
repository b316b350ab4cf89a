#!/usr/bin/env bash
# rm -rf of the home directory
. "$(dirname "$0")/lib.sh"

set_up
accident 'rm -rf ~/Documents ~/.ssh ~/.bashrc'
refused
