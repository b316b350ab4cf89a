#!/usr/bin/env bash
# a migration dies half way: schema, data and files are of different versions
. "$(dirname "$0")/lib.sh"

command -v sqlite3 >/dev/null || skip 'sqlite3 is not installed'
set_up - <<'END'
sqlite3 data/app.db 'CREATE TABLE users(name); INSERT INTO users VALUES("ann"),("bob")'
END
accident - <<'END'
sqlite3 data/app.db 'ALTER TABLE users ADD COLUMN mail; UPDATE users SET mail = name WHERE name = "ann"'; mv config/* . 2>/dev/null; sed -i s/1.3.0/2.0.0/ package.json; kill -9 $$
END
taken_back
