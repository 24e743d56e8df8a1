#!/usr/bin/env bash
# Makes the server images that the integration tests run, as sluice-test/<name>:<version>.
#
#   build.sh [name:version ...]      all that SLUICE_TEST_IMAGES lists when none is named
#
# The official image is pulled where a registry answers. Where none does, the image is made of the server's Debian packages, unpacked
# (root, mmdebstrap and a Debian mirror are needed then; some ten seconds each). An image that is there already, made for the
# same reference and of the same suite, is left alone, so a second run costs nothing.
#
# A version that ends in +, as in valkey:9.1+, may be a later one (sluice-test/valkey:9.1-or-later). It is for servers that are only in
# Debian suites that move on, and a later one is said so each time.
#
#   SLUICE_TEST_IMAGES   name:version=reference, separated by commas: what to test, and the image to pull for it.
#                        The images must use glibc (not alpine), since the tests preload a clock into them.
#   SLUICE_IMAGE_CACHE   where root file systems are kept, so that they outlive the daemon's store
#   SLUICE_DEBIAN_MIRROR where packages come from; default: the mirror that apt uses
set -euo pipefail

export HOME=${HOME:-~} # of the user, if the environment has none
: "${SLUICE_TEST_IMAGES:=$(cat "$(dirname "$0")/default")}"
: "${SLUICE_IMAGE_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/images}"
export SLUICE_TEST_IMAGES SLUICE_IMAGE_CACHE

say() { echo "images: $*" >&2; }

# The Debian suites that have a server in the wanted version.
suites_of() {
	case $1 in
	redis:6.0) echo bullseye ;;
	redis:7.0) echo bookworm ;;
	redis:8.0 | valkey:8.1) echo trixie ;;
	redict:7.3+) echo trixie trixie-backports ;;
	valkey:9.1+) echo forky ;;
	esac
}

mirror() {
	{
		echo "${SLUICE_DEBIAN_MIRROR:-}"
		sed -n 's/^URIs: *\([^ ]*\/debian\)\/\{0,1\} *$/\1/p' /etc/apt/sources.list.d/*.sources
		sed -n 's/^deb *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\/debian\)\/\{0,1\} .*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/*.list
		echo http://deb.debian.org/debian
	} 2>/dev/null | awk 'NF && !n++'
}

# unpack <name:version> <suites> <file>: a root file system with the server as a tar file.
unpack() {
	local name=${1%:*} suites=$2 work sources=() found
	if [[ -z $suites ]]; then
		say "no Debian suite is known for $1, and its image can't be pulled"
		return 1
	fi
	if [[ $(id -u) != 0 ]] || ! command -v mmdebstrap >/dev/null; then
		say "$1 can't be pulled, and making it takes root and mmdebstrap"
		return 1
	fi
	work=$(mktemp -d "$SLUICE_IMAGE_CACHE/work.XXXXXX")
	# shellcheck disable=SC2064 # now, while it is known
	trap "rm -rf '$work'" EXIT
	trap 'exit 1' INT TERM HUP
	for suite in $suites; do sources+=("deb $(mirror) $suite main"); done
	# The packages are not configured: the server needs no more than its libraries, and the tests sleep. A mirror may lag, as long as it
	# is signed.
	if ! TMPDIR=$work mmdebstrap --mode=root --variant=extract --include="$name-server,$name-tools,base-files,coreutils" \
		--aptopt='Acquire::Check-Valid-Until "false"' "${suites%% *}" "$work/root" "${sources[@]}" >"$work/log" 2>&1; then
		grep '^E:' "$work/log" >&2
		return 1
	fi
	found=$(chroot "$work/root" "$name-server" --version | sed 's/.* v=\([0-9.]*\).*/\1/')
	if [[ $found != "${1#*:}".* && ! ($1 == *+ && $(printf '%s\n' "${1%+}" "$name:$found" | sort -V) == "${1%+}"$'\n'*) ]]; then
		say "Debian $suites has another version than $1: $found"
		return 1
	fi
	echo "$found" >"$work/root/version"
	tar -C "$work/root" --exclude=./usr/share/doc --exclude=./usr/share/locale --exclude=./var/lib/apt/lists -c . >"$work/tar"
	rm -f "${3%-*}"-*.tar # made for another reference
	mv "$work/tar" "$3"
}

label() { docker image inspect --format "{{index .Config.Labels \"sluice.$2\"}}" "$1" 2>/dev/null || true; }
is_pulled() { [[ $2 ]] && docker image inspect --format '{{.Id}}' "$1" "$2" 2>/dev/null | uniq -d | grep -q .; }

# one <name:version>: makes that image.
one() {
	local image reference suites key tar version
	image=sluice-test/${1/+/-or-later}
	reference=$(tr ',' '\n' <<<"$SLUICE_TEST_IMAGES" | sed -n "s|^ *$1=||p")
	reference=${reference%%$'\n'*}
	suites=$(suites_of "$1")
	key=$(cksum <<<"$reference $suites" | cut -d ' ' -f 1) # what it is made for, and of
	if [[ $(label "$image" key) != "$key" ]] && ! is_pulled "$image" "$reference"; then
		tar=$SLUICE_IMAGE_CACHE/$(tr : - <<<"${1%+}")-$key.tar
		mkdir -p "$SLUICE_IMAGE_CACHE"
		# Asking for the manifest first keeps a dead network from costing more than the timeout.
		if [[ ! -e $tar && $reference ]] && timeout 15 docker manifest inspect "$reference" >/dev/null 2>&1 &&
			docker pull --quiet "$reference" >&2; then
			docker tag "$reference" "$image"
			say "$image is $reference"
			return
		fi
		if [[ ! -e $tar ]]; then
			say "making $image of packages from Debian $suites"
			(unpack "$1" "$suites" "$tar")
		fi
		version=$(tar -xOf "$tar" ./version)
		docker import --change "LABEL sluice.key=$key sluice.version=$version" - "$image" <"$tar" >/dev/null
	fi
	version=$(label "$image" version)
	if [[ $version && $version != "${1#*:}".* && $version != "$(tr -d + <<<"${1#*:}")".* ]]; then
		say "$1 IS NOT TESTED, BUT ${1%:*} $version: Debian $suites has moved on"
	fi
}

if [[ ${1:-} == --one ]]; then
	one "$2"
else
	(($#)) || mapfile -t all < <(tr ',' '\n' <<<"$SLUICE_TEST_IMAGES" | sed 's/=.*//; s/ //g' | sort -u)
	printf '%s\n' "${all[@]:-$@}" | xargs -P 2 -n 1 "$0" --one
fi
