#!/bin/sh
# What some tests want and pip cannot install: Chromium, a Postgres server, `ip`, OpenMP for LightGBM, and compose's own
# checker.
# On Debian as root they are installed; elsewhere what is missing is named, and the tests that want it are skipped.
#
#   sh tests/system.sh VENV
set -u
venv=$1

missing=""
command -v chromium >/dev/null || missing="$missing chromium"
[ -n "$(ls -d /usr/lib/postgresql/*/bin/postgres 2>/dev/null)" ] || missing="$missing postgresql"
command -v ip >/dev/null || missing="$missing iproute2"
[ -n "$(ldconfig -p 2>/dev/null | grep libgomp.so.1)" ] || missing="$missing libgomp1"
if [ -n "$missing" ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing$missing"
    log=$(mktemp)
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } \
      >"$log" 2>&1 || { tail -n 5 "$log"; echo "could not install$missing: the tests that want them are skipped"; }
    rm -f "$log"
  else
    echo "tests that want$missing are skipped; on Debian: apt-get install$missing"
  fi
fi

# Compose alone, without an engine: its file is taken out of whichever package of version 2 the package manager has.
if [ ! -x "$venv/bin/docker-compose" ]; then
  work=$(mktemp -d)
  for package in docker-compose-v2 docker-compose-plugin docker-compose; do
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || break
    (cd "$work" && apt-get download -qq "$package" && dpkg-deb -x "$package"_*.deb unpacked) >/dev/null 2>&1
    found=$(find "$work" -path "*/cli-plugins/docker-compose" -type f | head -n 1)
    [ -n "$found" ] && cp "$found" "$venv/bin/docker-compose" && break
  done
  [ -x "$venv/bin/docker-compose" ] \
    || echo "no docker-compose 2 among this system's packages to check the compose file with: that test is skipped"
  rm -rf "$work"
fi
exit 0
