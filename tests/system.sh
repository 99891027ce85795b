#!/bin/sh
# What some tests want and pip cannot install: Chromium, a Postgres server, `ip`, and compose's own checker.
# On Debian as root they are installed; elsewhere what is missing is named, and the tests that want it are skipped.
#
#   sh tests/system.sh VENV
set -u
venv=$1
compose=docker-compose_2.26.1-4_amd64.deb
digest=47681197cb2b1ab88206b42a1a92fc75f50d9530a6322d03494a473eed0408ea
pool=http://deb.debian.org/debian/pool/main/d/docker-compose

missing=""
command -v chromium >/dev/null || missing="$missing chromium"
[ -n "$(ls -d /usr/lib/postgresql/*/bin/postgres 2>/dev/null)" ] || missing="$missing postgresql"
command -v ip >/dev/null || missing="$missing iproute2"
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

if [ ! -x "$venv/bin/docker-compose" ]; then
  work=$(mktemp -d)
  if command -v dpkg-deb >/dev/null && [ "$(uname -m)" = x86_64 ] \
    && "$venv/bin/python" -c "import sys, urllib.request as u; u.urlretrieve(*sys.argv[1:])" "$pool/$compose" "$work/$compose" \
    && echo "$digest  $work/$compose" | sha256sum --check --quiet \
    && dpkg-deb -x "$work/$compose" "$work/unpacked"; then
    cp "$work/unpacked/usr/libexec/docker/cli-plugins/docker-compose" "$venv/bin/docker-compose"
  else
    echo "no docker-compose to check the compose file with: that test is skipped"
  fi
  rm -rf "$work"
fi
exit 0
