#!/usr/bin/env bash
# DROP TABLE in a database of the project
. "$(dirname "$0")/lib.sh"

command -v sqlite3 >/dev/null || skip 'sqlite3 is not installed'
set_up - <<'END'
sqlite3 data/app.db 'PRAGMA journal_mode=WAL; CREATE TABLE users(name); INSERT INTO users VALUES("ann"),("bob")' >/dev/null
END
accident - <<'END'
sqlite3 data/app.db 'DROP TABLE users; VACUUM'
END
taken_back
