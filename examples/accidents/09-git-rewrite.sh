#!/usr/bin/env bash
# history rewritten with filter-branch, and the old one expired
. "$(dirname "$0")/lib.sh"

set_up
accident - <<'END'
git stash -q; git filter-branch -f --tree-filter 'rm -rf docs' HEAD && git update-ref -d refs/original/refs/heads/main && git reflog expire --expire=now --all && git gc -q --prune=now
END
taken_back
