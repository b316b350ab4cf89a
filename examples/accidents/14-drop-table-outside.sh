#!/usr/bin/env bash
# DROP TABLE in a database outside of the project
. "$(dirname "$0")/lib.sh"

command -v sqlite3 >/dev/null || skip 'sqlite3 is not installed'
RUN+=(--sqlite "$HOME/db/app.db" --allow "$HOME/db")
set_up - <<'END'
mkdir ~/db
sqlite3 ~/db/app.db 'CREATE TABLE users(name); INSERT INTO users VALUES("ann"),("bob")'
END
accident - <<'END'
sqlite3 ~/db/app.db 'DROP TABLE users'
END
[ -z "$(sqlite3 ~/db/app.db .tables)" ] || die 'the table is still there'
# One command takes back files and database; and undo takes that back.
cd "$P" && timeout 60 "$BIN" rollback -q latest >"$TOP/rollback.log" || die "the rollback failed: $(cat "$TOP/rollback.log")"
[ "$(sqlite3 ~/db/app.db 'SELECT group_concat(name) FROM users')" = ann,bob ] || die 'the rows are not back'
timeout 60 "$BIN" undo -q >/dev/null && [ -z "$(sqlite3 ~/db/app.db .tables)" ] || die 'undo does not bring back what the rollback found'
echo 'taken back'
