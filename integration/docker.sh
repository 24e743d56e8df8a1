#!/usr/bin/env bash
# Runs a command that needs Docker, the server images and a C compiler, making sure of them first:
#
#   integration/docker.sh go test ./integration/...
#
# A daemon that answers is used as it is. On Debian as root, where none does, Docker is installed (SLUICE_NO_INSTALL=1: it is not).
# With an init system that starts its service, which stays; without one a daemon is started here, and stopped when the command has ended.
# Where Docker can't be had, the command runs all the same: the tests leave out what needs it, or fail if CI is set.
#
# On SIGINT, SIGTERM and SIGHUP the command ends at once. In any case its containers, its temporary files and our daemon are removed.
#
#   SLUICE_LEFT_OUT   a file that gets a line if the tests are left out
set -euo pipefail
set -m # each command in the background is a group of its own, which can be ended as a whole
here=$(cd "$(dirname "$0")" && pwd)
export HOME=${HOME:-~} # of the user, if the environment has none

say() { echo "docker.sh: $*" >&2; }

# A daemon that can run the tests.
answers() { [[ $OSTYPE == linux* ]] && docker info >/dev/null 2>&1; }

# may_install: on Debian, as root, and not forbidden.
may_install() { [[ ${SLUICE_NO_INSTALL:-} != 1 && $(id -u) == 0 && -e /etc/debian_version ]]; }

TMPDIR=$(mktemp -d)
export TMPDIR
command=  # the process group under way
daemon=   # the daemon that was started here

# run <command>: in the background, so that a signal need not wait for its end.
run() {
	local status=0
	"$@" &
	command=$!
	wait "$command" || status=$?
	command=
	return "$status"
}

# stop <process group>: by SIGTERM, since what a shell has in the background ignores SIGINT; and if that does not help, kill it.
stop() {
	kill -TERM -- "-$1" || return 0
	for _ in {1..30}; do
		kill -0 -- "-$1" || return 0
		sleep 0.1
	done
	kill -KILL -- "-$1"
} 2>/dev/null

# Containers of test processes that have ended. A test removes its own unless it was killed.
remove_containers() {
	docker ps --all --filter label=sluice.test --format '{{.ID}} {{.Label "sluice.test"}}' | while read -r id pid; do
		[[ -e /proc/$pid ]] || docker rm --force --volumes "$id"
	done
} >/dev/null

clean_up() {
	trap '' INT TERM HUP
	[[ -z $command ]] || stop "$command"
	if answers; then remove_containers || say "not every container could be removed"; fi
	if [[ -n $daemon ]]; then
		say "stopping the Docker daemon that was started here"
		kill "$daemon" 2>/dev/null || true
		wait "$daemon" 2>/dev/null || true
	fi
	rm -rf "$TMPDIR"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

install_missing() {
	local missing=()
	answers || command -v dockerd >/dev/null || missing+=(docker.io)
	command -v mmdebstrap >/dev/null || missing+=(mmdebstrap) # for images that can't be pulled
	command -v cc >/dev/null || missing+=(gcc libc6-dev)
	((${#missing[@]})) || return 0
	say "installing ${missing[*]} (SLUICE_NO_INSTALL=1 to leave the machine as it is)"
	export DEBIAN_FRONTEND=noninteractive
	run apt-get update -qq && run apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

start_daemon() {
	say "starting a Docker daemon for this run"
	dockerd >"$TMPDIR/dockerd.log" 2>&1 &
	daemon=$!
	for _ in {1..300}; do
		answers && return
		kill -0 "$daemon" 2>/dev/null || break
		sleep 0.1
	done
	tail -n 5 "$TMPDIR/dockerd.log" >&2
}

if may_install; then
	install_missing || say "could not install what is missing"
	if ! answers && command -v dockerd >/dev/null; then start_daemon; fi
fi
leave_out() {
	if [[ -n ${SLUICE_LEFT_OUT:-} ]] && ! grep -qxF "$1" "$SLUICE_LEFT_OUT" 2>/dev/null; then echo "$1" >>"$SLUICE_LEFT_OUT"; fi
}
if answers; then
	if ! run "$here/images/build.sh"; then
		say "not every server image could be made"
		leave_out 'not every server image could be made: the tests did not run on all servers'
	fi
else
	say "NO DOCKER ON LINUX HERE: the tests on real servers in containers are LEFT OUT"
	leave_out 'no Docker on Linux: the tests on servers in containers, a cluster and sentinels did not run'
fi
run "$@"
