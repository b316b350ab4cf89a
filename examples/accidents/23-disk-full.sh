#!/usr/bin/env bash
# a build that fills the disk
. "$(dirname "$0")/lib.sh"

small_disk
set_up
accident - <<'END'
head -c 1G /dev/zero | tr '\0' x >logs/build.out; echo 'what was written then' >src/f1.go; cp -r .git copy
END
taken_back
