#!/bin/sh
# Puts sluice.sh under the tests: sh agent.sh. The protocol is told in docs/porting.md.
# shellcheck disable=SC2034 # variables for the loader
set -eu
loader=$(dirname "$0")/sluice.sh
# shellcheck source=sluice.sh
. "$loader"

SLUICE_CLI="redis-cli -h ${REDIS_ADDR%:*} -p ${REDIS_ADDR##*:} -n $SLUICE_DB"

# The tests of calls are thousands, and a process takes milliseconds, so that these go through one redis-cli that is held
# open. Its input is lines of quoted words, in which even a NUL can stand.
fifos=$(mktemp -d)
trap 'rm -r "$fifos"' EXIT
mkfifo "$fifos/in" "$fifos/out"
$SLUICE_CLI <"$fifos/in" >"$fifos/out" &
exec 3>"$fifos/in" 4<"$fifos/out"
held=''
hold() {
  held=yes
  sluice_send() {
    SLUICE_REPLY=''
    printf '%s\n' "$*" 'ECHO .' >&3
    while read -r line <&4 && [ "$line" != . ]; do # there is an empty line after an error
      SLUICE_REPLY=$SLUICE_REPLY${SLUICE_REPLY:+${line:+ }}$line
    done
  }
}
release() {
  held=''
  # shellcheck source=sluice.sh
  . "$loader"
}
# A script's text does not fit such a line, so that none may have to be sent.
for file in "$SLUICE_SCRIPTS"/*.lua; do $SLUICE_CLI -x SCRIPT LOAD <"$file" >/dev/null; done
set -f # an error has any characters

# unhex WORD: the bytes, without a NUL, in $bytes.
unhex() {
  bytes=''
  [ "$1" != x ] || return 0
  bytes=$(sluice_xor "${1#x}" 0 && echo .)
  bytes=${bytes%.}
}

# hex WORD: the bytes in hex, in $hex.
hex() {
  hex=x
  for byte in $(printf %s "$1" | od -An -v -tx1); do hex=$hex$byte; done
}

# quoted WORD: the bytes as redis-cli reads them from a line, in $quoted.
quoted() {
  quoted='' rest=${1#x}
  while [ -n "$rest" ]; do
    tail=${rest#??}
    quoted=$quoted\\x${rest%"$tail"}
    rest=$tail
  done
  quoted=\"$quoted\"
}

# told STATUS: the answer to a call that ended with it.
told() {
  case $1 in
    0 | 1) echo "reply $((1 - $1)) $SLUICE_REMAINING $SLUICE_RETRY_AFTER_MS $SLUICE_RESET_AFTER_MS $SLUICE_TIME_US" ;;
    *) failed "$1" ;;
  esac
}

failed() {
  case $1 in
    2) kind=argument ;;
    3) kind=state ;;
    *) kind=other ;;
  esac
  # shellcheck disable=SC2086 # one line
  set -- $SLUICE_ERROR
  printf '%s\n' "error $kind $*" # where echo may make other characters of \a
}

# The words of a policy are those of the shell's policies.
while read -r verb words; do
  # shellcheck disable=SC2086 # words
  set -- $words
  status=0
  if [ "$verb" = call ]; then [ -n "$held" ] || hold; elif [ -n "$held" ]; then release; fi
  case $verb in
    limiter)
      unhex "$1"
      SLUICE_PREFIX=$bytes
      if [ "$2" = - ]; then unset SLUICE_SECRET_HEX; else SLUICE_SECRET_HEX=${2#x}; fi
      echo ok
      ;;
    join)
      for word in "$@"; do
        unhex "$word"
        shift
        set -- "$@" "$bytes"
      done
      sluice_key "$@"
      hex "$SLUICE_KEY"
      echo "bytes $hex"
      ;;
    key)
      unhex "$1"
      subject=$bytes
      unhex "$2"
      shift 2
      sluice_redis_key "$subject" "$*" "$bytes" || status=$?
      if [ $status = 0 ]; then printf '%s\n' "text $SLUICE_REDIS_KEY"; else failed $status; fi
      ;;
    call)
      script=$1 count=$2
      shift 2
      for word in "$@"; do
        quoted "$word"
        shift
        set -- "$@" "$quoted"
      done
      sluice_call "$script" "$count" "$@" || status=$?
      # shellcheck disable=SC2086 # one line
      if [ $status = 0 ]; then echo reply $SLUICE_REPLY; else failed $status; fi
      ;;
    take)
      unhex "$1"
      subject=$bytes charged=$2
      shift 2
      policy=$*
      sluice_take "$subject" "$policy" "$charged" || status=$?
      receipt=${SLUICE_TIME_US-}
      told $status
      ;;
    peek)
      unhex "$1"
      cost=$2
      shift 2
      sluice_peek "$bytes" "$*" "$cost" || status=$?
      told $status
      ;;
    settle)
      sluice_settle "$subject" "$policy" $(($1 - charged)) "$receipt" || status=$?
      told $status
      ;;
    reset)
      unhex "$1"
      shift
      sluice_reset "$bytes" "$*" || status=$?
      if [ $status = 0 ]; then echo ok; else failed $status; fi
      ;;
  esac
done
