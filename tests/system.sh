#!/bin/sh
# What some tests want and pip cannot install. On Debian as root it is installed; elsewhere what is missing is named, and
# the tests that want it are skipped.
#
#   sh tests/system.sh VENV [WHAT...]
#
# WHAT, by default all of it: libgomp1 (OpenMP, for LightGBM), docker-compose (compose's own checker), chromium,
# postgresql (a server), iproute2 (`ip`).
set -u
venv=$1
shift
[ $# -gt 0 ] || set -- libgomp1 docker-compose chromium postgresql iproute2

is_there() {
  case $1 in
    libgomp1) ldconfig -p 2>/dev/null | grep -q libgomp.so.1 ;;
    postgresql) ls -d /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 ;;
    iproute2) command -v ip >/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# Compose alone, without an engine: its file is taken out of whichever package of version 2 the package manager has.
take_compose() {
  work=$(mktemp -d)
  for package in docker-compose-v2 docker-compose-plugin docker-compose; do
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || break
    (cd "$work" && apt-get download -qq "$package" && dpkg-deb -x "$package"_*.deb unpacked) >/dev/null 2>&1
    found=$(find "$work" -path "*/cli-plugins/docker-compose" -type f | head -n 1)
    [ -n "$found" ] && cp "$found" "$venv/bin/docker-compose" && break
  done
  rm -rf "$work"
  [ -x "$venv/bin/docker-compose" ] \
    || echo "no docker-compose 2 among this system's packages to check the compose file with: that test is skipped"
}

missing="" compose=""
for what in "$@"; do
  if [ "$what" = docker-compose ]; then
    [ -x "$venv/bin/docker-compose" ] || compose=missing
  elif ! is_there "$what"; then
    missing="$missing $what"
  fi
done
[ -n "$missing$compose" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  log=$(mktemp)
  apt-get update -qq >"$log" 2>&1
  if [ -n "$missing" ]; then
    echo "installing$missing"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >>"$log" 2>&1 \
      || { tail -n 5 "$log"; echo "could not install$missing: the tests that want them are skipped"; }
  fi
  rm -f "$log"
elif [ -n "$missing" ]; then
  echo "tests that want$missing are skipped; on Debian: apt-get install$missing"
fi
[ -z "$compose" ] || take_compose
exit 0
