#!/bin/sh
# Runs in each of two virtual machines (see run.sh): nodes that join, and a model split over both of
# them with RDMA between its ranks.
#
#   two-nodes.sh SINEW MODEL
#
# RANK 0 invites, serves and asks; RANK 1 joins and waits. They pass the code and the end on by TCP.
sinew=$1
model=$2
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

until_ok 60 is_up
if [ "$RANK" = 0 ]; then
  code=$("$sinew" invite --json | grep -o '"code": *"[^"]*"' | cut -d'"' -f4)
  until_ok 60 tell 9999 "$code"
  until_ok 60 are_two
  # By tensors, whose sums are messages enough to count.
  "$sinew" run "$model" "hi" --nodes 2 --strategy tensor --transport rdma --max-tokens 8 || status=$?
  "$sinew" ps
  until_ok 10 tell 9998 "done"
  exit "${status:-0}"
fi
"$sinew" join "$(busybox nc -l -p 9999)" || exit 4
busybox nc -l -p 9998
packets=$(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts)
echo "$packets packets came over RDMA"
[ "$packets" -gt 100 ]
