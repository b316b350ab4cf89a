#!/usr/bin/env bash
# npm-like install is killed half way through replacing node_modules
. "$(dirname "$0")/lib.sh"

set_up
accident - <<'END'
rm -rf node_modules && mkdir -p node_modules/left-pad && printf 'module.exp' >node_modules/left-pad/index.js && kill -9 $$
END
taken_back
