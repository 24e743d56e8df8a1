#!/bin/sh
# What the vectors can't ask of sluice.sh: REDIS_ADDR=127.0.0.1:6379 SLUICE_SCRIPTS=../../scripts sh sluice_test.sh
# shellcheck disable=SC2034 # variables for the loader
set -eu
cd "$(dirname "$0")"
. ./sluice.sh
SLUICE_CLI="redis-cli -h ${REDIS_ADDR%:*} -p ${REDIS_ADDR##*:}"
SLUICE_PREFIX=test$$.$(date +%s) # this run's own
five='sliding_log 5 60000'

# want STATUS REMAINING COMMAND...
want() {
  wanted=$1:$2 status=0
  shift 2
  "$@" || status=$?
  if [ "$status:$SLUICE_REMAINING" = "$wanted" ]; then return; fi
  echo "$*: got $status:$SLUICE_REMAINING ${SLUICE_ERROR-}, want $wanted" >&2
  exit 1
}

# Words are split as usual whatever the caller's IFS is, which stays as it was.
for IFS in ',' '' 0; do
  before=$IFS
  want 0 4 sluice_take a "$five"
  want 0 4 sluice_peek a "$five"
  want 0 4 sluice_settle a "$five" 0 "$SLUICE_TIME_US"
  sluice_reset a "$five"
  [ "$IFS" = "$before" ]
done
unset IFS

# A pattern is no list of files, and is one again for the caller.
want 2 '' sluice_take a "$five *"
[ "$(echo ./sluice_test.s[h])" = ./sluice_test.sh ]
set -f
want 0 4 sluice_take b "$five"
case $- in *f*) ;; *) echo 'set -f is lost' >&2 && exit 1 ;; esac
set +f

# A number is one for a reset, too, which no script looks at.
for number in 6e4 060000 60000.0 -60000 0 x 60000:a 31622400001 99999999999999999999; do
  want 2 '' sluice_reset b "sliding_log 5 $number"
  want 2 '' sluice_reset b "sliding_counter $number 1000 name"
  want 2 '' sluice_peek b "token_bucket 5 $number 60000"
done
want 2 '' sluice_reset b 'sliding_log 1000000001 1000'
want 2 '' sluice_reset b 'token_bucket 5 1000000001 1000'
want 0 '' sluice_reset b 'token_bucket 1000000000 1000000000 31622400000'

# What an earlier call said is not there any more.
want 2 '' sluice_take '' "$five"
[ -z "$SLUICE_RETRY_AFTER_MS$SLUICE_RESET_AFTER_MS$SLUICE_TIME_US" ] && [ "$SLUICE_ERROR" = 'subject must not be empty' ]
want 0 3 sluice_take b "$five"
[ -z "$SLUICE_ERROR" ]
want 2 '' sluice_reset '' "$five"
[ -z "$SLUICE_RETRY_AFTER_MS$SLUICE_RESET_AFTER_MS$SLUICE_TIME_US$SLUICE_REPLY$SLUICE_REDIS_KEY" ]
want 0 '' sluice_redis_key a "$five"
[ -z "$SLUICE_ERROR" ]
want 2 '' sluice_redis_key '' "$five"
[ -z "$SLUICE_REDIS_KEY" ]
want 0 '' sluice_call sliding_log 1 "$SLUICE_PREFIX:k" take 1 5 60000
[ -z "$SLUICE_ERROR" ]

for script in leaky_bucket 'x; echo'; do
  status=0
  sluice_call "$script" 1 k 2>/dev/null || status=$?
  [ $status = 4 ]
done
