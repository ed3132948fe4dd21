#!/bin/sh
# Runs in each of two virtual machines (see run.sh): nodes that join, and a model split over both of
# them with RDMA between its ranks.
#
#   two-nodes.sh SINEW MODEL CASE
#
#   answer    RDMA is insisted on: it carries an answer
#   blocked   in the middle of an answer no packet of RDMA reaches RANK 1 any more, as others do: the
#             answer must go on over TCP as if nothing had been, which is said once
#
# RANK 0 invites, serves and asks; RANK 1 joins and waits. They pass words to each other by TCP.
sinew=$1
model=$2
case=$3
export SINEW_DATA_DIR=/tmp/sinew SINEW_LOG=info
mkdir -p $SINEW_DATA_DIR
"$sinew" up --name "vm$RANK" --threads 1 >/tmp/up.log 2>&1 &

# until_ok SECONDS CMD...: tries once a second.
until_ok() {
  left=$1
  shift
  until "$@"; do
    left=$((left - 1))
    [ $left -gt 0 ] || { echo "gave up: $*"; tail -20 /tmp/up.log; exit 3; }
    sleep 1
  done
}
is_up() { "$sinew" nodes >/dev/null 2>&1; }
are_two() { [ "$("$sinew" nodes --json | grep -c '"name"')" = 2 ]; }
tell() { echo "$2" | busybox nc -w 2 "$PEER_IP" "$1"; }
hear() { busybox nc -l -p "$1"; }
packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts; }
says() { "$sinew" ps --json | grep -c "over TCP, because RDMA"; }

answer() {
  "$sinew" run "$model" "hi" --nodes 2 --strategy tensor --transport rdma --max-tokens 8
  status=$?
  "$sinew" ps
  return $status
}

# ask FILE: an answer of many tokens, at a temperature, with all that is said beside it.
ask() {
  "$sinew" run demo "Tell me a story." --temperature 1 --seed 7 --max-tokens 200 >"$1" 2>"$1.err"
}

blocked() {
  # By tensors, whose sums are messages enough to count.
  "$sinew" serve "$model" --name demo --nodes 2 --strategy tensor || return 5
  "$sinew" ps
  [ "$(says)" = 0 ] || return 6
  ask /tmp/whole || return 7
  ask /tmp/lost &
  asking=$!
  until_ok 60 test -s /tmp/lost
  sleep 1
  until_ok 10 tell 9997 "now"
  wait $asking || { cat /tmp/lost.err; return 8; }
  grep -h "tokens/s\|waiting\|TCP" /tmp/whole.err /tmp/lost.err
  "$sinew" ps
  wc -c /tmp/whole /tmp/lost
  cmp /tmp/whole /tmp/lost || return 9
  [ "$(says)" = 1 ] || { "$sinew" ps --json; return 10; }
  ask /tmp/after && cmp /tmp/whole /tmp/after || return 11
  grep "RDMA" /tmp/up.log
  [ "$(grep -c "over TCP, because RDMA" /tmp/up.log)" -le 1 ]
}

until_ok 60 is_up
if [ "$RANK" = 0 ]; then
  code=$("$sinew" invite --json | grep -o '"code": *"[^"]*"' | cut -d'"' -f4)
  until_ok 60 tell 9999 "$code"
  until_ok 60 are_two
  if [ "$case" = answer ]; then answer; else blocked; fi
  status=$?
  until_ok 10 tell 9998 "done"
  [ $status = 0 ] || tail -40 /tmp/up.log
  exit $status
fi
"$sinew" join "$(hear 9999)" || exit 4
if [ "$case" = answer ]; then
  hear 9998
else
  hear 9997
  echo "$(packets) packets came over RDMA"
  [ "$(packets)" -gt 100 ] || exit 12
  tc qdisc add dev eth0 ingress || exit 13
  tc filter add dev eth0 parent ffff: protocol ip u32 match ip protocol 17 0xff \
    match ip dport 4791 0xffff action drop || exit 14
  hear 9998
  cat /tmp/up.log
  [ "$(grep -c "over TCP, because RDMA" /tmp/up.log)" = 1 ]
  exit
fi
echo "$(packets) packets came over RDMA"
[ "$(packets)" -gt 100 ]
