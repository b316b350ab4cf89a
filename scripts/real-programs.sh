#!/usr/bin/env bash
# real-programs.sh [--short] [NAME...]: real programs working in a mount.
#
# Prints one line for each: 'ok NAME', 'FAIL NAME' with its output, or 'skip NAME: why'.
# --short takes smaller inputs. REWINDFS_BIN names a binary to test; else one is built.
set -uo pipefail
. "$(dirname "$0")/lib.sh"

files=4000 rows=400 gopkgs="./kv ./cas ./layers ./control"
short=
all=(git_clone git_day git_edits git_rollback git_outside_index go_build go_modcache npm sqlite_wal sqlite_checkpoint sqlite_kill
	sqlite_old_reader tar rsync cp_reflink find_delete running_executable make_rebuild python editors mv_dirs rm_rf)
names=()
while [ $# -gt 0 ]; do
	case "$1" in
	--short) short=1 files=800 rows=80 gopkgs="./control" ;;
	-*) sed -n '2,5s/^# \?//p' "$0"; exit 64 ;;
	*) names+=("$1") ;;
	esac
	shift
done
[ ${#names[@]} -gt 0 ] || names=("${all[@]}")

work_place
export GIT_CONFIG_GLOBAL=$TOP/gitconfig GIT_CONFIG_SYSTEM=/dev/null
RW() { timeout 120 "$BIN" "$@" >>"$TOP/rewindfs.out"; }

# fingerprint DIR: everything that must not change, atime aside.
fingerprint() {
	(cd "$1" && find . -printf '%p %i %m %U %G %n %s %T@ %C@ %l\n' | sort && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}
same() { [ "$1" = "$2" ] || { printf 'want: %s\ngot:  %s\n' "$2" "$1"; return 1; }; }
empty() { [ -z "$1" ] || { printf 'want no output, got: %s\n' "$1"; return 1; }; }

make_base() {
	mkdir -p "$B" "$M"
	git config --global user.name test
	git config --global user.email test@example.invalid
	git config --global init.defaultBranch main
	git config --global advice.detachedHead false
	mkdir "$B/repo"
	(
		cd "$B/repo"
		awk -v n="$files" 'BEGIN {for (i = 0; i < n; i++) {d = "d" i % 40; if (!(d in made)) {system("mkdir -p " d); made[d]}
			f = d "/f" i ".txt"; for (j = 0; j < 20; j++) print "file " i " line " j * i > f; close(f)}}'
		git init -q . && git add . && git commit -qm one
		for i in $(seq 1 20); do echo "change $i" >>"d$i/f$i.txt"; git commit -qam "change $i"; done
	) >/dev/null
	mkdir "$B/tree"
	(
		cd "$B/tree"
		mkdir -p a/b/c empty
		head -c 200000 /dev/urandom >a/data
		ln a/data a/b/hardlink; ln -s ../data a/b/symlink; ln -s nowhere dangling
		truncate -s 5M sparse; printf x | dd of=sparse bs=1 seek=2000000 conv=notrunc status=none
		mkfifo fifo
		setfattr -n user.test -v value a/data
		for i in $(seq 1 100); do echo "$i" >"a/b/c/$i"; done
		chmod 4755 a/b/c/1; chmod 0 a/b/c/2; chmod 1777 empty
		touch -d '2001-02-03 04:05:06.789' a/b/c/3 empty a
	)
	(cd "$ROOT" && git ls-files -z --cached --others --exclude-standard | tar -c --null -T - --ignore-failed-read 2>/dev/null) | (mkdir "$B/proj" && tar -x -C "$B/proj")
	sqlite3 "$B/base.db" 'PRAGMA journal_mode=WAL; CREATE TABLE t(w INTEGER, n INTEGER); INSERT INTO t VALUES(0,0);' >/dev/null
	mkdir -p "$B/node_modules/.bin" "$B/node_modules/one/lib"
	echo 'module.exports = 1' >"$B/node_modules/one/lib/index.js"
}

t_git_clone() {
	git clone -q "$B/repo" clone && cd clone
	same "$(git ls-files | wc -l)" "$files"
	git fsck --full --strict >/dev/null
	empty "$(git status --porcelain)"
	git gc -q --prune=now && git fsck --full >/dev/null
	git -C "$M/repo" fsck >/dev/null
	git clone -q --local "$M/repo" "$M/clone2" && empty "$(git -C "$M/clone2" status --porcelain)"
}

t_git_day() {
	cd "$M/repo"
	empty "$(git status --porcelain)"
	git checkout -qb topic
	echo new >new; git add new; sed -i s/line/LINE/ d1/f1.txt; git mv d2 moved; git commit -qam topic
	git checkout -q main; echo other >>d3/f3.txt; git commit -qam other
	git merge -q -m merge topic; git stash list; echo x >>d4/f4.txt; git stash -q; git stash pop -q
	git checkout -q -- d4/f4.txt; git rebase -q main; git worktree add -q "$M/wt" topic
	git tag t; git repack -adq; git gc -q; git fsck --full >/dev/null
	empty "$(git status --porcelain)"
	git reset -q --hard HEAD~1; empty "$(git status --porcelain)"
	git worktree remove "$M/wt"
}

t_git_edits() {
	cd "$M/repo"
	local i f
	for i in $(seq 1 60); do
		f=d$((i % 40))/f$((i % 40)).txt
		sed "s/line 0/LINE 0/" "$f" >tmp && mv tmp "$f" # same size, same second
		git diff --name-only | grep -qx "$f"
		git checkout -q -- "$f"
		empty "$(git diff --name-only)"
	done
}

t_git_rollback() {
	cd "$M/repo"
	git status >/dev/null
	RW -q checkpoint git-clean
	sed -i s/file/FILE/ d5/*.txt; rm -rf d6; git commit -qam wreck; git gc -q; git reset -q --hard HEAD~3; rm -rf d7
	RW -q rollback git-clean
	# diff-files trusts the index's stat data alone: silent only if stat is exactly as before.
	git diff-files --quiet
	empty "$(git status --porcelain)"
	git fsck --full >/dev/null
}

t_git_outside_index() {
	cd "$M/repo"
	export GIT_INDEX_FILE=$TOP/index
	git read-tree HEAD; git update-index -q --refresh
	RW -q checkpoint idx
	sed -i s/line/LANE/ d8/f8.txt; git update-index d8/f8.txt # the index outside has the new content now
	RW -q rollback idx
	# Told by the stat data alone. (The new content's object went with the rollback.)
	same "$(git diff-files --name-only)" d8/f8.txt
	same "$(readlink /proc/self/cwd)" "$M/repo"
	unset GIT_INDEX_FILE
	empty "$(git status --porcelain)"
}

t_go_build() {
	cd "$M/proj"
	export GOCACHE=$M/gocache GOTMPDIR=$M/gotmp GOFLAGS=-buildvcs=false
	mkdir -p "$GOTMPDIR"
	go build -o "$M/rw" ./cmd/rewindfs
	"$M/rw" version
	same "$(go build -v -o "$M/rw" ./cmd/rewindfs 2>&1)" "" # all from the cache
	# shellcheck disable=SC2086
	go test $gopkgs
	go test ./control 2>&1 | grep -q cached
}

t_go_modcache() {
	cd "$M/proj"
	local outside; outside=$(go env GOMODCACHE)
	export GOMODCACHE=$M/modcache GOFLAGS=-buildvcs=false GOPROXY=file://$outside/cache/download GONOSUMDB='*' GONOSUMCHECK=1 GOSUMDB=off
	go mod download golang.org/x/sys pgregory.net/rapid
	if touch "$M/modcache/golang.org/x/"sys*/x 2>/dev/null && [ "$(id -u)" != 0 ]; then return 1; fi
	go clean -modcache
	[ ! -e "$M/modcache/golang.org" ]
}

t_npm() {
	command -v npm >/dev/null || { echo "npm is not installed" >"$SKIP"; return; }
	mkdir "$TOP/npm"
	(cd "$TOP/npm" && npm init -y >/dev/null && timeout 120 npm install --cache "$TOP/npmcache" --no-audit --no-fund lodash semver) ||
		{ echo "npm install does not work in a plain directory either (offline?)" >"$SKIP"; return 0; }
	mkdir npm && cd npm && cp "$TOP/npm/package.json" . && chmod u+w package.json
	npm install --cache "$TOP/npmcache" --prefer-offline --no-audit --no-fund
	same "$(node_modules/.bin/semver 1.2.3)" 1.2.3
	same "$(find node_modules -type f | grep -v package-lock | wc -l)" "$(find "$TOP/npm/node_modules" -type f | grep -v package-lock | wc -l)"
	diff -r node_modules/lodash "$TOP/npm/node_modules/lodash"
	npm install --cache "$TOP/npmcache" --prefer-offline --no-audit --no-fund | grep -q 'up to date'
	RW -q checkpoint npm
	rm -rf node_modules; [ ! -e node_modules ]
	RW -q rollback npm
	diff -r node_modules/lodash "$TOP/npm/node_modules/lodash"
}

sql_writers() {
	python3 - "$1" "$2" <<'PY'
import os, sqlite3, sys, time
db, rows = sys.argv[1], int(sys.argv[2])
def work(w):
    c = sqlite3.connect(db, timeout=60)
    if w < 4:
        for n in range(rows):
            with c:
                c.execute("INSERT INTO t VALUES(?,?)", (w + 1, n))
    else:
        last = 0
        for _ in range(rows):
            n = c.execute("SELECT count(*) FROM t").fetchone()[0]
            assert n >= last, (n, last)
            last = n
pids = []
for w in range(7):
    pid = os.fork()
    if pid == 0:
        work(w)
        os._exit(0)
    pids.append(pid)
sys.exit(any(os.waitpid(p, 0)[1] for p in pids))
PY
}

t_sqlite_wal() {
	for db in base.db fresh.db; do
		[ -e $db ] || sqlite3 $db 'PRAGMA journal_mode=WAL; CREATE TABLE t(w INTEGER, n INTEGER);' >/dev/null
		sql_writers $db "$rows"
		same "$(sqlite3 $db 'SELECT count(DISTINCT w || "/" || n) FROM t WHERE w > 0')" $((4 * rows))
		same "$(sqlite3 $db 'PRAGMA integrity_check')" ok
	done
}

t_sqlite_checkpoint() {
	sqlite3 ck.db 'PRAGMA journal_mode=WAL; CREATE TABLE t(w INTEGER, n INTEGER);' >/dev/null
	sql_writers ck.db $((rows * 3)) & local pid=$! i
	for i in 1 2 3; do sleep 0.2; RW -q checkpoint "ck$i"; done
	wait $pid
	for i in 3 2 1; do
		RW -q rollback "ck$i"
		same "$(sqlite3 "$M/ck.db" 'PRAGMA integrity_check')" ok
		sqlite3 "$M/ck.db" 'INSERT INTO t VALUES(9,9)'
	done
}

t_sqlite_kill() {
	for mode in WAL DELETE; do
		rm -f k.db*
		sqlite3 k.db "PRAGMA journal_mode=$mode; CREATE TABLE t(n INTEGER);" >/dev/null
		python3 - "$mode" <<'PY'
import os, signal, sqlite3, time
r, w = os.pipe()
pid = os.fork()
if pid == 0:
    c = sqlite3.connect("k.db")
    n = 0
    while True:
        n += 1
        with c:
            c.execute("INSERT INTO t VALUES(?)", (n,))
        os.write(w, b"%d\n" % n)
os.close(w)
f = os.fdopen(r)
acked = 0
while acked < 50:
    acked = int(f.readline())
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
for line in f:
    acked = int(line)
c = sqlite3.connect("k.db")
got = c.execute("SELECT max(n), count(*) FROM t").fetchone()
assert got[0] == got[1] and acked <= got[0] <= acked + 1, (got, acked)
assert c.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
PY
	done
}

t_sqlite_old_reader() {
	python3 - <<'PY'
import sqlite3
r = sqlite3.connect("base.db")
n = r.execute("SELECT count(*) FROM t").fetchone()[0]   # opened before the first write
w = sqlite3.connect("base.db")
with w:
    w.execute("INSERT INTO t VALUES(7, 7)")
assert r.execute("SELECT count(*) FROM t").fetchone()[0] == n + 1
w.execute("BEGIN IMMEDIATE")
r.execute("PRAGMA busy_timeout=10")
try:
    r.execute("BEGIN IMMEDIATE")
    raise SystemExit("two writers at once")
except sqlite3.OperationalError:
    pass
PY
}

t_tar() {
	tar -C "$B" --xattrs --sparse -cf "$TOP/t.tar" tree
	mkdir out && tar -C out --xattrs -xpf "$TOP/t.tar"
	local list='%P %m %U %G %n %s %T@ %l\n'
	diff <(cd "$B/tree" && find . ! -type d -printf "$list" | sort) <(cd out/tree && find . ! -type d -printf "$list" | sort)
	diff <(cd "$B/tree" && find . -type d -printf '%P %m %T@\n' | sort) <(cd out/tree && find . -type d -printf '%P %m %T@\n' | sort)
	same "$(getfattr --only-values -n user.test out/tree/a/data)" value
	[ out/tree/a/data -ef out/tree/a/b/hardlink ]
	[ "$(stat -c %b out/tree/sparse)" -lt 1000 ]
	# And out of the mount again.
	tar -C "$M" --xattrs --sparse -cf "$TOP/t2.tar" tree
	mkdir "$TOP/out2" && tar -C "$TOP/out2" --xattrs -xpf "$TOP/t2.tar"
	empty "$(rsync -aHAXni --delete "$B/tree/" "$TOP/out2/tree/")"
	mv out/tree out/tree2 && mv out/tree2/a out/a
}

t_rsync() {
	rsync -aHAXS "$B/tree/" synced/
	empty "$(rsync -aHAXni --checksum --delete "$B/tree/" synced/)"
	empty "$(rsync -aHAXni --checksum --delete "$B/tree/" "$M/tree/")"
	rsync -aHAX --delete "$M/tree/" "$TOP/synced/"
	empty "$(rsync -aHAXni --checksum --delete "$B/tree/" "$TOP/synced/")"
}

t_cp_reflink() {
	cp --reflink=auto tree/a/data copy && cmp copy "$B/tree/a/data"
	cp -a tree tree-copy && empty "$(rsync -aHAXni --checksum tree/ tree-copy/)"
	mv tree-copy tree-moved && cp -r tree-moved/a again && diff -r --no-dereference again tree/a
	cp --reflink=auto --sparse=always tree/sparse sp && cmp sp tree/sparse
}

t_find_delete() {
	cp -a repo doomed
	find doomed -delete
	[ ! -e doomed ]
	find repo/d1 -type f -name '*1*' -delete
	empty "$(find repo/d1 -name '*1*' -type f)"
}

t_running_executable() {
	cat >p.c <<-'C'
		#include <stdio.h>
		#include <unistd.h>
		int main(int c, char **v) { puts(VERSION); fflush(stdout); if (c > 1) pause(); return 0; }
	C
	gcc -DVERSION='"one"' -o p p.c
	./p wait >"$TOP/p.out" & local pid=$!
	until grep -q one "$TOP/p.out"; do sleep 0.02; done
	if echo x 2>/dev/null >>p; then kill $pid; echo "writing a running program did not give ETXTBSY"; return 1; fi
	gcc -DVERSION='"two"' -o p.new p.c && mv p.new p
	same "$(./p)" two
	gcc -DVERSION='"three"' -o p p.c
	same "$(./p)" three
	kill -0 $pid && kill $pid
	for i in $(seq 1 20); do gcc -DVERSION="\"$i\"" -O0 -o p p.c && same "$(./p)" "$i"; done
}

t_make_rebuild() {
	mkdir mk && cd mk
	printf 'all: a.o b.o\n%%.o: %%.c\n\tcp $< $@; echo $@ >>log\n' >Makefile
	echo a >a.c; echo b >b.c
	make -s; same "$(sort log | tr '\n' ' ')" "a.o b.o "
	make -s; same "$(wc -l <log)" 2
	sleep 0.02; touch b.c; make -s; same "$(tail -1 log)" b.o
	chmod u+x a.c; make -s; same "$(wc -l <log)" 3
	# A metadata change of a base file keeps its mtime to the nanosecond.
	local before; before=$(stat -c %y "$B/tree/a/b/c/3")
	chmod 600 "$M/tree/a/b/c/3"; same "$(stat -c %y "$M/tree/a/b/c/3")" "$before"
}

t_python() {
	mkdir py && cd py
	local i
	for i in $(seq 1 20); do
		echo "v = $i" >mod.py
		sleep 0.01
		same "$(PYTHONPATH=. python3 -c 'import mod; print(mod.v)')" "$i"
		rm -rf __pycache__
	done
	python3 -m venv --without-pip v
	same "$(v/bin/python -c 'import sys; print(sys.prefix)')" "$PWD/v"
}

t_editors() {
	cd "$M/tree/a/b/c"
	sed -i s/^/x/ 10; same "$(cat 10)" x10
	empty "$(find . -name 'sed*')"
	cp 11 11~ && echo new >11 && same "$(cat 11~)" 11 && rm 11~
	: >12; echo y >>12; same "$(cat 12)" y
	(for i in $(seq 1 300); do echo "whole $i" >13.tmp; mv 13.tmp 13; done) & local pid=$!
	while kill -0 $pid 2>/dev/null; do read -r word _ <13; [ "$word" = whole ] || [ "$word" = 13 ]; done
	wait $pid
}

t_mv_dirs() {
	mv node_modules/one node_modules/.one-RANDOM
	mkdir node_modules/one; mv -T node_modules/.one-RANDOM node_modules/one
	same "$(cat node_modules/one/lib/index.js)" 'module.exports = 1'
	mv node_modules nm && mv nm/one two && mv two nm/one && mv nm node_modules
	same "$(cat node_modules/one/lib/index.js)" 'module.exports = 1'
	mv repo repo2 && empty "$(git -C repo2 status --porcelain)"
}

t_rm_rf() {
	rm -rf repo proj; [ ! -e repo ] && mkdir repo && empty "$(ls -A repo)"
	(cd "$M" && ls | xargs -P 4 -I{} rm -rf {})
	empty "$(ls -A "$M")"
}

say "Set-up"
make_base
before=$(fingerprint "$B")
RW mount "$B" "$M" --store "$TOP/store" || die "mount failed"

failed=0
for name in "${names[@]}"; do
	declare -F "t_$name" >/dev/null || die "unknown test $name; there are: ${all[*]}"
	export SKIP=$TOP/skip
	rm -f "$SKIP"
	log=$TOP/log.$name
	(cd "$M" && set -eE && trap 'echo "line $LINENO: $BASH_COMMAND"' ERR && "t_$name") >"$log" 2>&1
	status=$?
	if [ -e "$SKIP" ]; then echo "skip $name: $(cat "$SKIP")"
	elif [ $status = 0 ]; then echo "ok $name"
	else
		echo "FAIL $name"
		tail -25 "$log" | sed 's/^/   /'
		failed=$((failed + 1))
	fi
	# Every test starts on the base; and this is a rollback of what it did.
	if ! RW -q rollback base 2>"$TOP/rb"; then echo "FAIL rollback-after-$name"; cat "$TOP/rb"; failed=$((failed + 1)); fi
	if [ -n "$(rsync -aHAXni --delete --exclude=/.rewind "$B/" "$M/")" ]; then
		echo "FAIL rollback-of-$name"
		rsync -aHAXni --delete "$B/" "$M/" | head -5 | sed 's/^/   /'
		failed=$((failed + 1))
	fi
done
if [ "$(fingerprint "$B")" = "$before" ]; then echo "ok base-untouched"
else
	echo "FAIL base-untouched"
	diff <(echo "$before") <(fingerprint "$B") | head -5 | sed 's/^/   /'
	failed=$((failed + 1))
fi
[ $failed = 0 ]
