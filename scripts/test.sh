#!/usr/bin/env bash
# test.sh [PART...] [--quick] [-- GO-TEST-FLAGS]: everything that must pass.
#
# Parts, all of them by default, in this order:
#   format   gofmt and vet
#   unit     the packages, with the race detector
#   layers   random operations against a model, without a mount
#   e2e      the binary: faults, differential, crash, disk full, users
#   docker   commands in containers, with a Docker daemon started for it, and Podman
#   race     the differential test again, on a daemon with the race detector
#   real     the examples; git, go, npm, sqlite, tar, rsync... in a mount (short form)
# --quick   no race detector, few random sequences; leaves out race and real
# -v        show the output of each test
# Examples: scripts/test.sh --quick unit      scripts/test.sh e2e -- -run Rename
#
# Whole logs go to $REWINDFS_TEST_LOGS (default: a temporary directory).
# The last line is 'N passed, N failed'.
set -uo pipefail
. "$(dirname "$0")/lib.sh"

parts=() quick= verbose= flags=()
while [ $# -gt 0 ]; do
	case "$1" in
	-h | --help) sed -n '2,18s/^# \?//p' "$0"; exit 0 ;;
	--quick) quick=1 ;;
	-v) verbose=1 ;;
	--) shift; flags=("$@"); break ;;
	format | unit | layers | e2e | docker | race | real) parts+=("$1") ;;
	*) die "unknown argument $1; see --help" ;;
	esac
	shift
done
if [ ${#parts[@]} = 0 ]; then
	parts=(format unit layers e2e docker race real)
	[ -z "$quick" ] || parts=(format unit layers e2e)
fi

cd "$ROOT" || exit 1
logs=${REWINDFS_TEST_LOGS:-$(mktemp -d)}
mkdir -p "$logs"
passed=0 failed=0 failures=()
under=() # what go test is run by

pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); failures+=("$1"); }

# check NAME CMD...: one check that passes when the command does.
check() {
	local name=$1; shift
	if "$@" >"$logs/$name.log" 2>&1; then note "ok    $name"; pass
	else note "FAIL  $name"; sed 's/^/      /' "$logs/$name.log" | tail -40; fail "$name"; fi
}

# gotest NAME ARGS...: go test -v, counted test by test; the log is kept.
gotest() {
	local name=$1; shift
	local log=$logs/$name.log status p f
	"${under[@]}" go test -v -count=1 "$@" "${flags[@]}" >"$log" 2>&1
	status=$?
	p=$(grep -cE '^ *--- PASS' "$log") f=$(grep -cE '^ *--- FAIL' "$log")
	if [ -n "$verbose" ]; then cat "$log"
	elif [ $status != 0 ]; then failed_only "$log"; fi
	grep -E '^(ok|FAIL|panic:)[[:space:]]' "$log"
	passed=$((passed + p)) failed=$((failed + f))
	[ "$f" = 0 ] || while read -r t; do failures+=("$name: $t"); done < <(grep -oE -- '--- FAIL: [^ ]+' "$log" | sed 's/--- FAIL: //' | sort -u)
	if [ $status != 0 ] && [ "$f" = 0 ]; then fail "$name (go test failed)"; fi
}

# failed_only LOG: what a failing run said, without the tests that passed.
failed_only() {
	grep -vE '^ *(=== (RUN|PAUSE|CONT|NAME)|--- (PASS|SKIP))' "$1" | cut -c1-2000 | head -150
	note "(all of it: $1)"
}

unformatted() { local f; f=$(gofmt -l $(git ls-files --cached --others --exclude-standard '*.go')); [ -z "$f" ] || { echo "gofmt -w these:"; echo "$f"; return 1; }; }
vet() { go vet ./...; }
shells() { local s; for s in scripts/*.sh examples/*.sh examples/*/*.sh .ci/run; do bash -n "$s" || return 1; done; }

part_format() {
	check gofmt unformatted
	check vet vet
	check shell-syntax shells
}

part_unit() {
	local race=-race
	[ -z "$quick" ] || race=
	# shellcheck disable=SC2046
	gotest unit $race -timeout 20m $(go list ./... | grep -v /tests/)
}

part_layers() {
	[ -z "$quick" ] || export REWINDFS_TEST_CHECKS=${REWINDFS_TEST_CHECKS:-60}
	gotest layers -timeout 20m ./tests/layersdiff
}

part_e2e() {
	local pkgs
	[ -z "$quick" ] || export REWINDFS_TEST_MOUNT_CHECKS=${REWINDFS_TEST_MOUNT_CHECKS:-5} REWINDFS_TEST_KILLS=${REWINDFS_TEST_KILLS:-3}
	mapfile -t pkgs < <(go list ./tests/... | grep -v layersdiff)
	REWINDFS_BIN=$bin gotest e2e -timeout 30m "${pkgs[@]}"
}

part_docker() {
	local engine why
	if [ "$(id -u)" != 0 ]; then note "skip  docker: only root can start containers"; return; fi
	need_packages dockerd:docker.io podman:podman busybox:busybox-static
	for engine in docker podman; do
		why=$logs/$engine-set-up.log
		if ! scripts/with-containers.sh "$engine" true >"$why" 2>&1; then
			note "skip  $engine:"; cat "$why"
			grep -q 'no containers can be started here' "$why" || fail "$engine-set-up"
			continue
		fi
		under=(scripts/with-containers.sh "$engine")
		gotest "$engine" -timeout 20m -run Docker ./sandbox ./cmd/rewindfs ./tests/sandbox
		under=()
	done
}

part_race() {
	local racy=$logs/rewindfs-race
	check build-race go build -race -o "$racy" ./cmd/rewindfs
	# Else each command sleeps for a second at its end.
	GORACE=atexit_sleep_ms=0 REWINDFS_TEST_MOUNT_CHECKS=10 REWINDFS_BIN=$racy gotest race -timeout 20m ./tests/mountdiff
}

part_real() {
	local log=$logs/real.log
	check examples timeout 900 examples/run-all.sh "$bin"
	REWINDFS_BIN=$bin check sqlite-checkpoints timeout 600 scripts/sqlite-checkpoints.sh 300
	{ REWINDFS_BIN=$bin scripts/real-programs.sh --short; CHECKPOINTS=5 REWINDFS_BIN=$bin timeout 600 scripts/databases.sh; } 2>&1 | tee "$log" | grep -E '^(ok|FAIL|skip) |^   '
	passed=$((passed + $(grep -c '^ok ' "$log"))) failed=$((failed + $(grep -c '^FAIL ' "$log")))
	while read -r _ t; do failures+=("real: $t"); done < <(grep '^FAIL ' "$log")
}

# In a function, so that an edit of this file does not disturb a run.
main() {
	say "Set-up"
	need_go
	need_packages fusermount3:fuse3 git:git gcc:gcc make:make rsync:rsync sqlite3:sqlite3 setfattr:attr setfacl:acl setcap:libcap2-bin python3:python3 mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs psql:postgresql
	[ -e /usr/include/lmdb.h ] || need_packages no-such-command:liblmdb-dev
	open_dev_fuse
	case " ${parts[*]} " in *" e2e "* | *" real "*)
		bin=$logs/rewindfs
		check build build_rewindfs "$bin"
		chmod 0755 "$logs" # other users run the binary too
		;;
	esac
	note "logs in $logs"

	for part in "${parts[@]}"; do
		say "$part"
		SECONDS=0
		"part_$part"
		note "($part took $SECONDS s)"
	done

	if [ $failed != 0 ]; then
		say "Failed"
		for f in "${failures[@]}"; do note "$f"; done
	fi
	printf '\n%d passed, %d failed\n' $passed $failed
	[ $failed = 0 ]
}

main; exit
