#!/usr/bin/env bash
# docker volume rm of the database's volume
. "$(dirname "$0")/lib.sh"

docker=${ACCIDENTS_DOCKER:-docker}
timeout 20 "$docker" version >/dev/null 2>&1 || skip "there is no $docker to talk to"
image=$("$docker" images --format '{{.Repository}}:{{.Tag}}' | grep -m 1 busybox) || skip "$docker has no image with busybox in its name"
volume=rewindfs-accident-$$
in_volume() { "$docker" run --rm --network none -v "$volume:/data" "$image" sh -c "$1"; }
gone() { "$docker" volume rm -f "$volume" >/dev/null; finish; }
trap gone EXIT
"$docker" volume create "$volume" >/dev/null && in_volume 'echo ann >/data/users; mkdir /data/d; chmod 700 /data/d' || die 'the volume cannot be made'

RUN+=(--sandbox none) # else nothing gets to the socket of Docker
set_up "printf '[[target]]\nvolume = \"$volume\"\nimage = \"$image\"\ndocker = \"$docker\"\n' >rewindfs.toml"
accident "'$docker' volume rm $volume"
! "$docker" volume inspect "$volume" >/dev/null 2>&1 || die 'the volume is still there'
cd "$P" && timeout 60 "$BIN" rollback -q latest >"$TOP/rollback.log" || die "the rollback failed: $(cat "$TOP/rollback.log")"
[ "$(in_volume 'cat /data/users; stat -c %a /data/d')" = "$(printf 'ann\n700')" ] || die 'what was in the volume is not back'
echo 'taken back'
