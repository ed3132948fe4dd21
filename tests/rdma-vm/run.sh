#!/bin/bash
# Tests RDMA with the real verbs library over Soft-RoCE, in virtual machines (see vm.sh).
#
#   tests/rdma-vm/run.sh            build the tests, then all cases (about 5 minutes)
#   tests/rdma-vm/run.sh CASE...    some of them: doctor suite engine pair pair-lossy pair-tcp
#                                   pair-killed pair-frozen nodes fallback blocked
#
# Needs Linux on x86-64 and: apt-get install qemu-system-x86 cpio python3
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
REPOSITORY=$(cd "$HERE/../.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$REPOSITORY/target}
CASES=("$@")
[ $# -gt 0 ] || CASES=(doctor suite engine pair pair-lossy pair-tcp pair-killed pair-frozen nodes fallback blocked)

cd "$REPOSITORY"
# The path of the last executable that a cargo command names.
built() { cargo "$@" --message-format=json 2>/dev/null |
  python3 -c 'import json, sys
print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable")][-1])'; }
for tool in qemu-system-x86_64 cpio python3; do
  command -v "$tool" >/dev/null || { echo "run.sh: $tool is missing (see the head of this file)" >&2; exit 2; }
done
SUITE=$(built test --release -p link --test it --no-run)
PAIR=$(built build --release -p collective --example pair)
SINEW=$(built build --release -p sinew)
MODEL=$(cargo run -q -p fixtures -- models/qwen3.gguf)
vm() { "$HERE/vm.sh" "$@"; }
share=(--share "$REPOSITORY" --share "$TARGET")

# The suite of every transport, over one device: a message goes out of a port and into it again.
suite() {
  vm exec "${share[@]}" --env SINEW_TEST_RDMA_DEVICE=1 -- "$SUITE" suite:: --test-threads=1
}

# One model on two ranks gives the tokens of one rank, over RDMA as over anything else.
engine() {
  local generate="$SINEW dev generate -m $MODEL --tokens 1,5,9,42 -n 12" script
  script="set -e; a=\$($generate); b=\$($generate --local-nodes 2 --transport rdma); "
  script+='echo "$a"; echo "$b"; [ -n "$a" ] && [ "$a" = "$b" ]'
  vm exec "${share[@]}" --lib-of "$SINEW" -- /bin/sh -c "$script"
}

# Two machines; the transport is the expected one, and each sum is right to the bit.
pair() { # pair TRANSPORT EXPECTED VM-OPTIONS...
  local transport=$1 expected=$2 out status=0
  shift 2
  local script="$PAIR $transport 20 && tc -s qdisc show dev eth0 | grep -o 'dropped [0-9]*'"
  out=$(vm pair "${share[@]}" --lib-of "$PAIR" "$@" -- /bin/sh -c "$script") || status=$?
  echo "$out"
  [ "$status" = 0 ] && [ "$(grep -c "20 rounds over $expected, 0 wrong" <<<"$out")" = 2 ]
}

# As `pair`, and packets were really lost on the way.
lossy() { local out; out=$(pair "$@") && echo "$out" && grep -q 'dropped [1-9]' <<<"$out"; }

# Rank 1 gets SIGNAL in the middle of it all; rank 0 must end with a text that has EXPECTED.
ended() { # ended SIGNAL EXPECTED
  local script out status=0
  script="[ \$RANK = 0 ] && { $PAIR rdma 1000000; exit; }
          $PAIR rdma 1000000 & pid=\$!; sleep 5; kill -s $1 \$pid; sleep 12; exit 0"
  out=$(vm pair "${share[@]}" --lib-of "$PAIR" --timeout 120 -- /bin/sh -c "$script") || status=$?
  echo "$out"
  [ "$status" = 1 ] && grep -q "rank 0 over rdma: .*$2" <<<"$out"
}

# Two nodes on two machines, a model split over them, an answer; see two-nodes.sh.
nodes() { # nodes CASE
  vm pair "${share[@]}" --lib-of "$SINEW" -- "$HERE/two-nodes.sh" \
    "$SINEW" "$REPOSITORY/demo-model/sinew-demo.gguf" "$1"
}

# Without a device: the reason in words, a status, and TCP in its place.
fallback() {
  local doctor="$SINEW doctor rdma" generate="$SINEW dev generate -m $MODEL --tokens 1,5 -n 4"
  vm exec --net none "${share[@]}" --lib-of "$SINEW" -- /bin/sh -c \
    "$doctor && exit 1; $generate --local-nodes 2 --transport rdma && exit 1
     $generate --local-nodes 2"
}

for name in "${CASES[@]}"; do
  echo "== $name"
  started=$SECONDS
  case $name in
    doctor) vm exec "${share[@]}" -- "$SINEW" doctor rdma ;;
    suite) suite ;;
    engine) engine ;;
    pair) pair auto rdma ;;
    pair-lossy) lossy rdma rdma --delay 1ms --loss 2% ;;
    pair-tcp) pair tcp tcp ;;
    pair-killed) ended KILL "rank 1 is lost" ;;
    pair-frozen) ended STOP "rank 1" ;;
    nodes) nodes answer ;;
    blocked) nodes blocked ;;
    fallback) fallback ;;
    *) echo "run.sh: there is no case $name" >&2; exit 2 ;;
  esac
  echo "== $name passed in $((SECONDS - started)) s"
done
