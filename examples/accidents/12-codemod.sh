#!/usr/bin/env bash
# a codemod with sed -i runs over everything, .git and data too
. "$(dirname "$0")/lib.sh"

set_up
accident - <<'END'
find . -type f -print0 | xargs -0 sed -i 's/e/E/g'
END
taken_back
