#!/usr/bin/env bash
# recursive chown
. "$(dirname "$0")/lib.sh"

[ "$(id -u)" = 0 ] || skip 'only root may give files away'
set_up
accident 'chown -R 65534:65534 .'
taken_back
