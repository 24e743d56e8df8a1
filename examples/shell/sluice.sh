# shellcheck shell=sh disable=SC2034 # variables for the caller
# Rate limits in Redis or Valkey, decided by the scripts of Sluice. One file to copy, for any POSIX shell; it needs
# redis-cli, sha1sum and sha256sum (tested with dash 0.5.12, bash 5.2 and redis-cli 7.0.15, those of Debian 12):
#
#   apt install redis-tools
#
#   SLUICE_SCRIPTS=scripts          # the folder of the .lua files
#   . ./sluice.sh
#   login='sliding_log 5 60000 login'    # 5 in any 60 000 ms
#
#   if sluice_take 203.0.113.7 "$login"; then
#     echo "$SLUICE_REMAINING left"
#   elif [ $? = 1 ]; then
#     echo "try again in $SLUICE_RETRY_AFTER_MS ms"
#   fi
#
# Policies: sliding_log LIMIT WINDOW_MS [NAME], sliding_counter LIMIT WINDOW_MS [NAME],
# token_bucket CAPACITY REFILL PERIOD_MS [NAME]. What may be given (units, milliseconds) and what comes back is told in the
# .lua files. A Go service with the same prefix and secret shares its limits with this, except sharded policies. A subject's
# bytes count, of which none can be NUL here.
#
# Every call has a connection of its own, so that none finds it closed, or on it the late answer to another.
#
# Status: 0 allowed, 1 denied, 2 an argument is out of its range, 3 the key holds something that is not this policy's,
# 4 anything else. For 2 to 4 SLUICE_ERROR says why, and the numbers are empty. After a 4 nobody knows whether a take or a
# settle was charged, so it is sent once and never again.
#
# Settings: SLUICE_SCRIPTS (.), SLUICE_PREFIX (sluice), SLUICE_SECRET_HEX (at least 16 bytes in hex; unset: none),
# SLUICE_CLI (redis-cli), words such as "timeout 2 redis-cli -h db". Not with -e, which hides from us that the server does not
# know a script: every call fails. And of -n be sure: if there is no such database, redis-cli goes on in database 0. A
# password belongs into REDISCLI_AUTH.

# sluice_take SUBJECT POLICY [COST]: asks for COST units (1) and charges all of them, or none if they are not free.
sluice_take() { sluice_plainly sluice_decide take "$1" "$2" "${3-1}"; }

# sluice_peek SUBJECT POLICY [COST]: tells whether sluice_take would be allowed, and what is free now. Charges nothing.
sluice_peek() { sluice_plainly sluice_decide peek "$1" "$2" "${3-1}"; }

# sluice_settle SUBJECT POLICY DIFFERENCE RECEIPT: corrects a charge, once, by actual - charged now that its true cost is
# known. RECEIPT is the SLUICE_TIME_US of its sluice_take.
sluice_settle() { sluice_plainly sluice_decide settle "$1" "$2" "$3" "$4"; }

# sluice_reset SUBJECT POLICY: forgets what was used.
sluice_reset() { sluice_plainly sluice_forget "$@"; }

# sluice_key PART...: joins the parts of a subject (a route and an address, say) in SLUICE_KEY so that different parts never
# give the same one.
sluice_key() {
  SLUICE_KEY='' sluice_some=''
  for sluice_part in "$@"; do
    SLUICE_KEY=$SLUICE_KEY$(($(printf %s "$sluice_part" | wc -c))):$sluice_part # in bytes, where ${#...} may be characters
    sluice_some=$sluice_some$sluice_part
  done
  [ -n "$sluice_some" ] || SLUICE_KEY=''
}

# sluice_redis_key SUBJECT POLICY [TAG]: the key in SLUICE_REDIS_KEY, prefix:{digest}:policy. A tag puts it into the tag's
# cluster slot.
sluice_redis_key() { sluice_plainly sluice_make_key "$@"; }

# sluice_call SCRIPT NUMKEYS KEY... ARG...: calls a script (token_bucket, multi) by its digest, and by its text if the server
# does not know it. The numbers of the reply are in SLUICE_REPLY.
sluice_call() { sluice_plainly sluice_run "$@"; }

# The rest is private.

sluice_blanks=' 	
'

# sluice_plainly COMMAND...: with words split as usual and no * in them looked up, whatever the caller has set, and nothing
# left of what an earlier call said.
sluice_plainly() {
  SLUICE_REMAINING='' SLUICE_RETRY_AFTER_MS='' SLUICE_RESET_AFTER_MS='' SLUICE_TIME_US=''
  SLUICE_REPLY='' SLUICE_REDIS_KEY='' SLUICE_ERROR=''
  sluice_ifs=${IFS-$sluice_blanks} sluice_flags=$- sluice_status=0
  IFS=$sluice_blanks
  set -f
  "$@" || sluice_status=$?
  IFS=$sluice_ifs
  case $sluice_flags in *f*) ;; *) set +f ;; esac
  return "$sluice_status"
}

sluice_fail() {
  SLUICE_ERROR=$2
  return "$1"
}

# sluice_send COMMAND...: its reply in SLUICE_REPLY, a line for each element.
sluice_send() { SLUICE_REPLY=$(${SLUICE_CLI-redis-cli} --raw "$@") || sluice_fail 4 'redis-cli failed'; }

# sluice_forget SUBJECT POLICY
sluice_forget() {
  sluice_make_key "$1" "$2" && sluice_send UNLINK "$SLUICE_REDIS_KEY" || return
  case $SLUICE_REPLY in 0 | 1) ;; *) sluice_fail 4 "the reply must be an integer: $SLUICE_REPLY" ;; esac
}

# sluice_make_key SUBJECT POLICY [TAG]
sluice_make_key() {
  [ -n "$1" ] || sluice_fail 2 'subject must not be empty' || return
  sluice_policy "$2" && sluice_settings || return
  sluice_own=$(sluice_digest "$1")
  sluice_tag=$sluice_own
  if [ -n "${3-}" ] && [ "$3" != "$1" ]; then sluice_tag=$(sluice_digest "$3"); fi
  sluice_own=${sluice_own%% *} sluice_tag=${sluice_tag%% *}
  case ${#sluice_own}.${#sluice_tag} in 64.64) ;; *) sluice_fail 4 'sha256sum failed' || return ;; esac
  sluice_own=${sluice_own%????????????????????????????????} sluice_tag=${sluice_tag%????????????????????????????????}
  SLUICE_REDIS_KEY="$sluice_prefix:{$sluice_tag}"
  [ "$sluice_tag" = "$sluice_own" ] || SLUICE_REDIS_KEY=$SLUICE_REDIS_KEY:$sluice_own
  SLUICE_REDIS_KEY=$SLUICE_REDIS_KEY:$sluice_part
}

# sluice_run SCRIPT NUMKEYS KEY... ARG...
sluice_run() {
  sluice_script=$1 sluice_count=5
  [ "$1" != multi ] || sluice_count=$((2 + 5 * $2))
  shift
  case $sluice_script in '' | *[!a-z_]*) sluice_fail 4 "no script has the name $sluice_script" || return ;; esac
  eval "sluice_sha1=\${sluice_sha1_$sluice_script-}"
  if [ -z "$sluice_sha1" ]; then
    sluice_sha1=$(sha1sum <"${SLUICE_SCRIPTS-.}/$sluice_script.lua") ||
      sluice_fail 4 "no $sluice_script.lua in ${SLUICE_SCRIPTS-.}" || return
    sluice_sha1=${sluice_sha1%% *}
    eval "sluice_sha1_$sluice_script=\$sluice_sha1"
  fi
  sluice_send EVALSHA "$sluice_sha1" "$@" || return
  case $SLUICE_REPLY in
    NOSCRIPT\ *) # nothing ran; after any other error it might have
      sluice_text=$(cat "${SLUICE_SCRIPTS-.}/$sluice_script.lua" && echo .) # the dot keeps the newline at the end
      sluice_send EVAL "${sluice_text%.}" "$@" || return
      ;;
  esac
  # shellcheck disable=SC2086 # words
  case $SLUICE_REPLY in
    SLUICEARG\ *) sluice_fail 2 "$SLUICE_REPLY" ;;
    SLUICESTATE\ *) sluice_fail 3 "$SLUICE_REPLY" ;;
    *) sluice_integers "$sluice_count" $SLUICE_REPLY || sluice_fail 4 "$SLUICE_REPLY" ;;
  esac
}

# sluice_integers COUNT WORD...: whether these are so many integers.
sluice_integers() {
  [ $# = $(($1 + 1)) ] || return
  shift
  for sluice_word in "$@"; do
    case ${sluice_word#-} in '' | *[!0123456789]*) return 1 ;; esac
  done
}

# sluice_decide OPERATION SUBJECT POLICY COST [RECEIPT]
sluice_decide() {
  sluice_make_key "$2" "$3" || return
  # shellcheck disable=SC2086 # words
  sluice_run "$sluice_algorithm" 1 "$SLUICE_REDIS_KEY" "$1" "$4" $sluice_numbers ${5+"$5"} || return
  # shellcheck disable=SC2086 # words
  set -- $SLUICE_REPLY
  SLUICE_REMAINING=$2 SLUICE_RETRY_AFTER_MS=$3 SLUICE_RESET_AFTER_MS=$4 SLUICE_TIME_US=$5
  [ "$1" = 1 ]
}

# sluice_policy POLICY: its algorithm, its numbers, and its part of a key: the name, or else the kind and the window.
sluice_policy() {
  # shellcheck disable=SC2086 # words
  set -- $1
  sluice_algorithm=${1-} sluice_name=''
  case $#:$sluice_algorithm in
    3:sliding_log | 4:sliding_log) sluice_numbers="$2 $3" sluice_part=log/$3 sluice_name=${4-} ;;
    3:sliding_counter | 4:sliding_counter) sluice_numbers="$2 $3" sluice_part=counter/$3 sluice_name=${4-} ;;
    4:token_bucket | 5:token_bucket) sluice_numbers="$2 $3 $4" sluice_part=bucket/$4 sluice_name=${5-} ;;
    *) sluice_fail 2 'policy must be an algorithm, its numbers and perhaps a name' || return ;;
  esac
  for sluice_word in $sluice_numbers; do # a reset sends them to no script, and the window may go into the key
    case $sluice_word in
      0* | *[!0123456789]* | ????????????*) sluice_fail 2 "policy must have integers, to 31622400000 at most: $sluice_word" || return ;;
    esac
  done
  for sluice_word in ${sluice_numbers% *}; do
    [ "$sluice_word" -le 1000000000 ] || sluice_fail 2 "limit, capacity and refill must be from 1 to 1000000000: $sluice_word" || return
  done
  sluice_word=${sluice_numbers##* }
  [ "$sluice_word" -le 31622400000 ] || sluice_fail 2 "window and period must be from 1 to 31622400000 ms: $sluice_word" || return
  case $sluice_name in
    *[!A-Za-z0-9._-]*) sluice_fail 2 'name must be of the characters A-Z a-z 0-9 . _ -' || return ;;
  esac
  [ ${#sluice_name} -le 64 ] || sluice_fail 2 'name must have at most 64 characters' || return
  sluice_part=${sluice_name:-$sluice_part}
}

sluice_settings() {
  sluice_prefix=${SLUICE_PREFIX-sluice}
  case $sluice_prefix in
    '' | *[!!-z\|~]*) sluice_fail 2 'SLUICE_PREFIX must be printable ASCII characters without space, { and }' || return ;;
  esac
  [ ${#sluice_prefix} -le 64 ] || sluice_fail 2 'SLUICE_PREFIX must have at most 64 characters' || return
  [ -n "${SLUICE_SECRET_HEX+set}" ] || return 0
  case ${#SLUICE_SECRET_HEX}:$SLUICE_SECRET_HEX in
    [0-9]:* | [12]?:* | 3[01]:* | *[13579]:* | *:*[!0-9A-Fa-f]*) sluice_fail 2 'SLUICE_SECRET_HEX must be at least 16 bytes in hex' ;;
  esac
}

# sluice_digest TEXT: what sha256sum says of it, SHA-256 in hex, or the HMAC-SHA-256 made of that here so that the secret is
# no argument of a program, where others could see it.
sluice_digest() {
  if [ -n "${SLUICE_SECRET_HEX+set}" ]; then
    sluice_secret=$SLUICE_SECRET_HEX
    if [ ${#sluice_secret} -gt 128 ]; then sluice_secret=$(sluice_xor "$sluice_secret" 0 | sha256sum | cut -c 1-64); fi
    while [ ${#sluice_secret} -lt 128 ]; do sluice_secret=${sluice_secret}00; done
    sluice_inner=$({ sluice_xor "$sluice_secret" 54 && printf %s "$1"; } | sha256sum)
    { sluice_xor "$sluice_secret" 92 && sluice_xor "${sluice_inner%% *}" 0; } | sha256sum
  else
    printf %s "$1" | sha256sum
  fi
}

# sluice_xor HEX N: writes the bytes that are given in hex, each xor N.
sluice_xor() {
  sluice_rest=$1 sluice_bytes=''
  while [ -n "$sluice_rest" ]; do
    sluice_tail=${sluice_rest#??}
    sluice_byte=$((0x${sluice_rest%"$sluice_tail"} ^ $2))
    sluice_bytes=$sluice_bytes\\$((sluice_byte / 64))$((sluice_byte / 8 % 8))$((sluice_byte % 8))
    sluice_rest=$sluice_tail
  done
  # shellcheck disable=SC2059 # the bytes, as octal escapes
  printf "$sluice_bytes"
}
