#!/usr/bin/env bash
# find . -delete -name '*.tmp': the order of the arguments matters
. "$(dirname "$0")/lib.sh"

set_up
accident - <<'END'
find . -delete -name '*.tmp'
END
taken_back
