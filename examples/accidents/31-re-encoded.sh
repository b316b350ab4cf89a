#!/usr/bin/env bash
# all sources are re-encoded and get other line ends
. "$(dirname "$0")/lib.sh"

set_up
accident - <<'END'
for f in src/*.go README.md package.json docs/*/*.md; do iconv -t UTF-16 "$f" >tmp && cat tmp >"$f"; sed -i 's/$/\r/' "$f"; done; rm tmp
END
taken_back
