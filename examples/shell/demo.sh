#!/bin/sh
# Two log-ins a minute, and the third: REDIS_ADDR=127.0.0.1:6379 sh demo.sh (what it needs is told in sluice.sh)
set -eu
cd "$(dirname "$0")"
. ./sluice.sh

SLUICE_SCRIPTS=../../scripts
SLUICE_CLI="redis-cli -h ${REDIS_ADDR%:*} -p ${REDIS_ADDR##*:}"
login='sliding_log 2 60000 login'

for _ in 1 2 3; do
  status=0
  sluice_take 203.0.113.7 "$login" || status=$?
  case $status in
    0) echo "allowed, $SLUICE_REMAINING left" ;;
    1) echo "denied, try again in $SLUICE_RETRY_AFTER_MS ms" ;;
    *) echo "$SLUICE_ERROR" >&2 && exit "$status" ;;
  esac
done
