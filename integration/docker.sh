#!/bin/sh
# Runs a command that needs Docker, the server images and a C compiler, making sure of them first:
#
#   integration/docker.sh go test ./integration/...
#
# A daemon that answers is used as it is. On Debian, as root, where none does, Docker is installed and started for the
# time of the command (SLUICE_NO_INSTALL=1: it is not). Where it can't be had, the command runs all the same: the tests
# leave out what needs Docker, or fail if CI is set.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

say() { echo "docker.sh: $*" >&2; }

# The daemon that this script has started, or nothing.
daemon=
stop() {
  [ -n "$daemon" ] || return 0
  say "stopping the Docker daemon that was started here"
  kill "$daemon" 2>/dev/null || true
  wait "$daemon" || true
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

answers() { docker info >/dev/null 2>&1; }

debian_root() { [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ]; }

install_missing() {
  missing=
  if ! answers; then
    command -v dockerd >/dev/null || missing="$missing docker.io"
  fi
  command -v debootstrap >/dev/null || missing="$missing debootstrap" # for images that can't be pulled
  command -v cc >/dev/null || missing="$missing gcc libc6-dev"
  [ -n "$missing" ] || return 0
  say "installing$missing (SLUICE_NO_INSTALL=1 to leave the machine as it is)"
  apt-get update -qq
  # shellcheck disable=SC2086 # a list of packages
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2
}

start_daemon() {
  log=$(mktemp)
  say "starting the Docker daemon for this run, its log is $log"
  dockerd >"$log" 2>&1 &
  daemon=$!
  for _ in $(seq 60); do
    answers && return 0
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.5
  done
  tail -n 5 "$log" >&2
}

if debian_root && [ -z "${SLUICE_NO_INSTALL:-}" ]; then
  install_missing || say "could not install what is missing"
  # Where there is an init system, installing has started it.
  if ! answers && command -v dockerd >/dev/null; then start_daemon; fi
fi
if answers; then
  "$here/images/build.sh" || say "not every server image could be made"
else
  say "NO DOCKER HERE: the tests on real servers in containers are LEFT OUT"
  [ -z "${SLUICE_LEFT_OUT:-}" ] || echo 'no Docker: the tests on servers in containers, a cluster and sentinels did not run' >>"$SLUICE_LEFT_OUT"
fi
status=0
"$@" || status=$?
exit $status
