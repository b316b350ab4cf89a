# shellcheck shell=bash
# Sourced by the accidents: a pretend home with a project in it, the accident, and the proof that one command takes it back. Never run.
#
#   set_up ['COMMANDS']     make the project (COMMANDS add to it, in its directory) and begin a session on it
#   accident 'COMMANDS'     run them in the project through `rewindfs run`; what goes wrong in them is no matter
#                           (both take - for COMMANDS on standard input)
#   small_disk              before set_up: keep what rewindfs stores on a disk of 64 MiB
#   taken_back              the accident did harm, and `rewindfs rollback latest` makes every byte, mode, time and link as it was
#   refused                 it did no harm outside of the project: there everything is as before
#   skip 'WHY'              this cannot be tried here
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

BIN=$(realpath -e -- "${REWINDFS_BIN:?names the rewindfs to use}") || exit 64
# Not in /tmp: a sandboxed command has one of its own.
TOP=$(mktemp -d "${ACCIDENTS_DIR:-$HOME}/.rewindfs-accident.XXXXXX") || exit 1
REAL_HOME=$HOME
HOME=$TOP/home P=$TOP/home/project
export HOME XDG_STATE_HOME=$TOP/state XDG_CONFIG_HOME=$TOP/home/.config XDG_CACHE_HOME=$TOP/home/.cache
export GIT_CONFIG_GLOBAL=$TOP/home/.gitconfig GIT_CONFIG_SYSTEM=/dev/null
unset REWINDFS_SESSION REWINDFS_GENERATION
read -ra RUN <<<"${ACCIDENTS_RUN-}" # arguments of run

finish() {
	cd /
	timeout 60 "$BIN" -s "$P" unmount >/dev/null 2>&1 || end_mount "$P.rewind"
	[ -z "${TMPFS-}" ] || umount -l "$TMPFS"
	chmod -R u+rwx "$TOP" 2>/dev/null
	rm -rf --one-file-system "$TOP"
}
trap finish EXIT
trap 'exit 130' INT TERM

skip() { printf 'skip: %s\n' "$*"; exit 77; }

small_disk() {
	[ "$(id -u)" = 0 ] || skip 'only root can mount a small disk'
	mkdir "$XDG_STATE_HOME" && mount -t tmpfs -o size=64m,mode=0700 tmpfs "$XDG_STATE_HOME" && TMPFS=$XDG_STATE_HOME || die "no tmpfs can be mounted"
}

make_home() {
	mkdir -p "$HOME/.ssh" "$HOME/Documents" "$P"
	echo "a key" >"$HOME/.ssh/id_ed25519"
	echo "alias ll='ls -l'" >"$HOME/.bashrc"
	echo "the only copy" >"$HOME/Documents/thesis.txt"
	git config --global user.name agent
	git config --global user.email agent@example.invalid
	git config --global init.defaultBranch main
}

make_project() {
	git init -q .
	mkdir -p src docs config logs node_modules/left-pad data empty "docs/Ünïcödé"
	for i in 1 2 3 4 5; do printf 'package main\n\nfunc f%d() int { return %d }\n' $i $i >"src/f$i.go"; done
	echo '# Project' >README.md
	echo 'Grüße' >"docs/Ünïcödé/straße.md"
	printf '{"name":"project","lockfileVersion":3,"packages":{"node_modules/left-pad":{"version":"1.3.0"}}}\n' >package-lock.json
	printf '{"dependencies":{"left-pad":"1.3.0"}}\n' >package.json
	printf '.env\nnode_modules/\nlogs/\ndata/\n' >.gitignore
	git add . && git commit -qm 'first' && echo '## More' >>README.md && git commit -qam 'second'
	# What no repository has:
	echo 'SECRET=only here' >.env
	chmod 600 .env
	echo 'SECRET=' >.env.example
	echo 'module.exports = (s, n) => s.padStart(n)' >node_modules/left-pad/index.js
	echo 'started' >logs/app.log
	head -c 300000 /dev/urandom >data/measurements.bin
	ln data/measurements.bin data/same.bin
	ln -s ../src/f1.go docs/f1.link
	printf '#!/bin/sh\necho deploy\n' >deploy.sh
	chmod 4750 deploy.sh
	setfattr -n user.owner -v me README.md 2>/dev/null
	echo 'two days of work' >src/uncommitted.go
	echo '// edited' >>src/f2.go
	git add src/f2.go
	touch -d '2001-02-03 04:05:06.789' docs empty src/f3.go
}

set_up() {
	make_home
	local more=${1-}
	[ "$more" != - ] || more=$(cat)
	cd "$P" && make_project && eval "$more" || die "the set-up failed"
	# The session begins with the first run, as a user's does.
	in_project true || die "the first run failed"
	outside=$(everything "$HOME" -path ./project.rewind -prune -o)
	before=$(everything "$P.rewind")
}

# everything DIR [PREDICATES]: all that stat(2) and read(2) tell of what is below, atime aside; what cannot be read is told by its absence.
everything() {
	local dir=$1; shift
	(
		cd "$dir" || exit
		find . "$@" ! -path ./.cache ! -path './.cache/*' -printf '%p|%y|%i|%m|%U|%G|%n|%T@|%l|' \( -type d -printf '\n' -o -printf '%s|%C@\n' \)
		find . "$@" -type f ! -path './.cache/*' -print0 | sort -z | xargs -0r sha256sum
		find . "$@" -type f ! -path './.cache/*' -print0 | sort -z | xargs -0r getfattr -d 2>/dev/null
	) 2>/dev/null | LC_ALL=C sort
}

# in_project CMD...: run it in the project, through rewindfs.
in_project() { (cd "$P" && timeout 120 "$BIN" run -q "${RUN[@]}" -- "$@"); }

accident() {
	local commands=$1
	[ "$commands" != - ] || commands=$(cat)
	in_project bash -c "$commands" </dev/null >"$TOP/accident.log" 2>&1
	code=$?
	after=$(everything "$P.rewind")
}

differ() { diff <(printf '%s\n' "$1") <(printf '%s\n' "$2") | head -20; }

taken_back() {
	if [ "$after" = "$before" ]; then
		cat "$TOP/accident.log"
		die "the accident (exit code $code) did no harm: this proves nothing"
	fi
	cd "$P" && timeout 120 "$BIN" rollback -q latest >"$TOP/rollback.log" || die "the rollback failed: $(cat "$TOP/rollback.log")"
	local now; now=$(everything "$P.rewind")
	[ "$now" = "$before" ] || { differ "$before" "$now"; die "not everything is as it was"; }
	untouched
	echo "taken back"
}

# untouched: outside of the session, the host is as it was.
untouched() {
	local now; now=$(everything "$HOME" -path ./project.rewind -prune -o)
	[ "$now" = "$outside" ] || { differ "$outside" "$now"; die "something outside of the session has changed"; }
}

refused() {
	[ "$code" != 0 ] || die "the accident was not refused: its exit code is 0"
	untouched
	echo "refused"
}
