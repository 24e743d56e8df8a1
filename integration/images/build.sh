#!/bin/sh
# Makes the server images that the integration tests run, as sluice-test/<name>:<version>.
#
#   build.sh [name:version ...]      all that SLUICE_TEST_IMAGES lists when none is named
#
# The official image is pulled where a registry answers. Where none does, the image is built from the Debian packages
# (root, debootstrap and a Debian mirror are needed then; about 35 s each). What is there already is left
# alone, so a second run costs nothing.
#
#   SLUICE_TEST_IMAGES   name:version=reference, separated by commas: what to test, and the image to pull for it.
#                        The images must use glibc (not alpine), since the tests preload a clock into them.
#   SLUICE_IMAGE_CACHE   where built root file systems are kept, so that they outlive the daemon's store
#   SLUICE_DEBIAN_MIRROR where packages come from; default: the mirror that apt uses
set -eu

: "${SLUICE_TEST_IMAGES:=$(cat "$(dirname "$0")/default")}"
: "${SLUICE_IMAGE_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/images}"
export SLUICE_TEST_IMAGES SLUICE_IMAGE_CACHE

say() { echo "images: $*" >&2; }

# The Debian suite that has a server in the wanted version.
suite_of() {
  case $1 in
    redis:6.0) echo bullseye ;;
    redis:7.0) echo bookworm ;;
    redis:8.0 | valkey:8.1) echo trixie ;;
    redict:7.3 | valkey:9.1) echo sid ;;
    *) return 1 ;;
  esac
}

mirrors() {
  if [ -n "${SLUICE_DEBIAN_MIRROR:-}" ]; then
    echo "$SLUICE_DEBIAN_MIRROR"
    return
  fi
  {
    sed -n 's/^URIs: *\([^ ]*\/debian\)\/\{0,1\} *$/\1/p' /etc/apt/sources.list.d/*.sources
    sed -n 's/^deb *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\/debian\)\/\{0,1\} .*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/*.list
  } 2>/dev/null | head -n 1
}

# bootstrap <name:version> <file>: the root file system as a tar file.
bootstrap() {
  suite=$(suite_of "$1") || { say "no Debian suite is known for $1, and its image can't be pulled"; return 1; }
  if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    say "$1 can't be pulled, and building it takes root and debootstrap"
    return 1
  fi
  name=${1%:*}
  work=$(mktemp -d "$SLUICE_IMAGE_CACHE/work.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  trap 'exit 1' INT TERM
  for mirror in $(mirrors) ""; do # last, debootstrap's own default
    rm -rf "$work/root"
    # shellcheck disable=SC2086 # no argument at all where there is no mirror
    debootstrap --variant=minbase --include="$name-server,$name-tools" "$suite" "$work/root" $mirror \
      >>"$work/log" 2>&1 && break
  done
  version=$("chroot" "$work/root" "$name-server" --version) || { grep "^E:" "$work/log" >&2; return 1; }
  case $version in
    *"v=${1#*:}."*) ;;
    *) say "Debian $suite has another version than $1: $version"; return 1 ;;
  esac
  rm -rf "$work/root/var/cache/apt" "$work/root/var/lib/apt/lists" "$work/root/usr/share/doc" "$work/root/usr/share/locale"
  tar -C "$work/root" -c . >"$work/tar"
  mv "$work/tar" "$2"
}

# one <name:version>: makes that image.
one() {
  image=sluice-test/$1
  docker image inspect "$image" >/dev/null 2>&1 && return
  reference=$(echo "$SLUICE_TEST_IMAGES" | tr ',' '\n' | sed -n "s|^ *$1=||p" | head -n 1)
  rootfs=$SLUICE_IMAGE_CACHE/$(echo "$1" | tr : -).tar
  mkdir -p "$SLUICE_IMAGE_CACHE"
  if [ ! -e "$rootfs" ]; then
    # Asking for the manifest first keeps a dead network from costing more than the timeout.
    if [ -n "$reference" ] && timeout 15 docker manifest inspect "$reference" >/dev/null 2>&1 &&
      docker pull --quiet "$reference" >&2; then
      docker tag "$reference" "$image"
      say "$image is $reference"
      return
    fi
    say "building $image from Debian packages"
    (bootstrap "$1" "$rootfs")
  fi
  docker import - "$image" <"$rootfs" >/dev/null
  say "$image is built from Debian packages"
}

if [ "${1:-}" = --one ]; then
  one "$2"
else
  [ $# -gt 0 ] || set -- $(echo "$SLUICE_TEST_IMAGES" | tr ',' '\n' | sed 's/=.*//; s/ //g' | sort -u)
  printf '%s\n' "$@" | xargs -P 2 -n 1 "$0" --one
fi
