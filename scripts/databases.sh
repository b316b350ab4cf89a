#!/usr/bin/env bash
# databases.sh [NAME...]: databases at work in a mount while checkpoints are taken; then each checkpoint is gone back to, and the database
# must start as after a power cut and hold every transaction that was committed before the checkpoint was asked for.
#
#   postgresql   four clients insert, fsync on; started again after each rollback, pg_amcheck over all
#   lmdb         a program in C that commits with fsync
#
# (SQLite: sqlite-checkpoints.sh. Badger: tests/faults.) Prints 'ok NAME', 'FAIL NAME' with what it said, or 'skip NAME: why'.
# REWINDFS_BIN names a binary to test; else one is built.
set -uo pipefail
. "$(dirname "$0")/lib.sh"

names=("$@")
[ $# -gt 0 ] || names=(postgresql lmdb)
checkpoints=${CHECKPOINTS:-15}

work_place
chmod 0755 "$TOP"
RW() { timeout 120 "$BIN" -q "$@" >>"$TOP/rewindfs.out"; }

# as_user CMD...: PostgreSQL does not run as root.
as_user() {
	if [ "$(id -u)" = 0 ]; then setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups -- "$@"; else "$@"; fi
}

# mount_for_all: PostgreSQL runs as another user than a root that mounts.
mount_for_all() {
	mkdir "$B" "$M"
	[ "$(id -u)" != 0 ] || chown "$user" "$B"
	RW mount "$B" "$M" --store "$TOP/store" $([ "$(id -u)" != 0 ] || echo --allow-other)
}

# acked FILE...: how many lines each has, of those that are whole.
acked() { wc -l -- "$@" | awk '{print $1}' | head -n $#; }

sum() { awk '{s += $1} END {print s}'; }

# take_all ACKS...: take the checkpoints, and note in $TOP/before/N what each writer had been told is committed.
take_all() {
	mkdir "$TOP/before"
	local i
	for i in $(seq 1 "$checkpoints"); do
		acked "$@" >"$TOP/before/$i"
		RW checkpoint "c$i" || return 1
		# The next one when the writers have done something.
		until [ "$(acked "$@" | sum)" -gt $(($(sum <"$TOP/before/$i") + 3)) ]; do
			kill -0 "${writers[@]}" || return 1
			sleep 0.02
		done
	done
}

t_postgresql() {
	bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1)
	[ -x "$bin/initdb" ] || { echo "PostgreSQL is not installed (Debian: postgresql)" >"$TOP/skip"; return; }
	user=$(id -un)
	[ "$user" != root ] || { user=postgres; id -u postgres >/dev/null 2>&1 || user=nobody; }
	mount_for_all || return 1
	mkdir "$TOP/sock" "$TOP/ack" && chmod 0777 "$TOP/sock" "$TOP/ack" || return 1
	data=$M/pg
	local opts="-c listen_addresses='' -c unix_socket_directories='$TOP/sock' -c fsync=on -c synchronous_commit=on -c max_wal_size=64MB -c checkpoint_timeout=30s"
	local sql=("$bin/psql" -h "$TOP/sock" -U me -d postgres -v ON_ERROR_STOP=1 -qAt)
	start() { as_user "$bin/pg_ctl" -D "$data" -l "$TOP/sock/log" -w -t 60 -o "$opts" start >/dev/null || { tail "$TOP/sock/log"; return 1; }; }
	halt() { as_user "$bin/pg_ctl" -D "$data" -m immediate -w stop >/dev/null 2>&1; }
	as_user "$bin/initdb" -D "$data" -U me -A trust -k --no-sync >/dev/null || return 1
	before_end=halt
	start || return 1
	"${sql[@]}" -c 'CREATE TABLE t(w int, n int, pad text, PRIMARY KEY (w, n))' || return 1
	writers=()
	local w
	for w in 1 2 3 4; do
		: >"$TOP/ack/$w"
		awk -v w=$w -v ack="$TOP/ack/$w" 'BEGIN {for (n = 1; n <= 100000; n++) printf "INSERT INTO t VALUES (%d, %d, repeat(md5(random()::text), %d));\n\\! echo %d >>%s\n", w, n, 1 + n % 60, n, ack}' >"$TOP/w$w.sql"
		"${sql[@]}" -f "$TOP/w$w.sql" >/dev/null 2>"$TOP/w$w.err" & writers+=($!)
	done
	take_all "$TOP"/ack/{1,2,3,4} || { cat "$TOP"/w*.err; return 1; }
	kill "${writers[@]}" 2>/dev/null
	wait "${writers[@]}" 2>/dev/null
	halt
	local i before got
	for ((i = checkpoints; i > 0; i--)); do
		RW rollback "c$i" || return 1
		rm -f "$data/postmaster.pid" # as after a power cut: the process that it names is gone, or is another
		start || { echo "checkpoint $i: it does not start"; return 1; }
		got=$("${sql[@]}" -c 'SELECT coalesce(max(n), 0), count(n) FROM generate_series(1, 4) g LEFT JOIN t ON t.w = g GROUP BY g ORDER BY g') || return 1
		before=$(cat "$TOP/before/$i")
		paste -d'|' <(echo "$got") <(echo "$before") | awk -F'|' '{if ($1 != $2 || $1 < $3) {print "max " $1 ", count " $2 ", committed before " $3; bad = 1}} END {exit bad || NR != 4}' || { echo "checkpoint $i"; return 1; }
		as_user "$bin/pg_amcheck" -h "$TOP/sock" -U me -d postgres --install-missing --heapallindexed >/dev/null || { echo "checkpoint $i: pg_amcheck"; return 1; }
		halt
	done
	before_end=
}

t_lmdb() {
	printf '#include <lmdb.h>\n' | cc -E - >/dev/null 2>&1 || { echo "LMDB is not installed (Debian: gcc liblmdb-dev)" >"$TOP/skip"; return; }
	user=$(id -un)
	cat >"$TOP/lm.c" <<-'C'
		#include <lmdb.h>
		#include <stdio.h>
		#include <stdlib.h>
		#include <string.h>
		#define MUST(x) do { int rc = (x); if (rc) { fprintf(stderr, "%s: %s\n", #x, mdb_strerror(rc)); exit(1); } } while (0)
		/* lm write DIR: commits numbers from 1 on, and says each on standard output. lm check DIR N: 1..max are there, and max >= N. */
		int main(int argc, char **argv) {
			MDB_env *env; MDB_txn *txn; MDB_dbi dbi; MDB_val k, v;
			unsigned n, got = 0;
			char pad[3000];
			MUST(mdb_env_create(&env));
			MUST(mdb_env_set_mapsize(env, 256 << 20));
			MUST(mdb_env_open(env, argv[2], 0, 0644));
			MUST(mdb_txn_begin(env, NULL, 0, &txn));
			MUST(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &dbi));
			MUST(mdb_txn_commit(txn));
			for (n = 1; !strcmp(argv[1], "write"); n++) {
				MUST(mdb_txn_begin(env, NULL, 0, &txn));
				memset(pad, n, sizeof pad);
				k.mv_size = sizeof n; k.mv_data = &n;
				v.mv_size = 1 + n % sizeof pad; v.mv_data = pad;
				MUST(mdb_put(txn, dbi, &k, &v, 0));
				MUST(mdb_txn_commit(txn));
				printf("%u\n", n); fflush(stdout);
			}
			MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
			for (n = 1;; n++, got++) {
				k.mv_size = sizeof n; k.mv_data = &n;
				if (mdb_get(txn, dbi, &k, &v)) break;
				for (size_t i = 0; i < v.mv_size; i++) if (((unsigned char *)v.mv_data)[i] != (unsigned char)n) return 2;
				if (v.mv_size != 1 + n % sizeof pad) return 2;
			}
			MDB_stat st;
			MUST(mdb_stat(txn, dbi, &st));
			printf("%u there, %zu counted, %s committed before\n", got, st.ms_entries, argv[3]);
			return got < (unsigned)atoi(argv[3]) || st.ms_entries != got;
		}
	C
	cc -O1 -o "$TOP/lm" "$TOP/lm.c" -llmdb || return 1
	mount_for_all && mkdir "$M/db" && mkdir "$TOP/ack" || return 1
	"$TOP/lm" write "$M/db" >"$TOP/ack/1" & writers=($!)
	take_all "$TOP/ack/1" || return 1
	kill -9 "${writers[0]}"
	wait "${writers[0]}" 2>/dev/null
	local i
	for ((i = checkpoints; i > 0; i--)); do
		RW rollback "c$i" || return 1
		"$TOP/lm" check "$M/db" "$(cat "$TOP/before/$i")" || { echo "checkpoint $i"; return 1; }
	done
}

failed=0
for name in "${names[@]}"; do
	declare -F "t_$name" >/dev/null || die "unknown database $name; there are postgresql and lmdb"
	rm -f "$TOP/skip"
	"t_$name" >"$TOP/log" 2>&1
	status=$?
	if [ -e "$TOP/skip" ]; then echo "skip $name: $(cat "$TOP/skip")"
	elif [ $status = 0 ]; then echo "ok $name"
	else
		echo "FAIL $name"
		tail -25 "$TOP/log" | sed 's/^/   /'
		failed=$((failed + 1))
	fi
	[ -z "${before_end-}" ] || $before_end
	before_end=
	RW unmount >/dev/null 2>&1
	end_mount "$M"
	rm -rf --one-file-system "$B" "$M" "$TOP/store" "$TOP/before" "$TOP/ack" "$TOP/sock"
done
[ $failed = 0 ]
