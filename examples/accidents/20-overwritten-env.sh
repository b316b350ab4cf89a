#!/usr/bin/env bash
# .env is overwritten with its template
. "$(dirname "$0")/lib.sh"

set_up
accident 'cp .env.example .env'
taken_back
