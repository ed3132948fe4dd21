#!/usr/bin/env bash
# Builds Sinew and shows it: two nodes on this machine, one model split over both, one answer.
# ONCE=1 ends after the answer; otherwise the nodes stay up until Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")"
. scripts/setup.sh
cargo build --release --quiet --locked -p sinew
exec "${CARGO_TARGET_DIR:-target}/release/sinew" demo ${ONCE:+--once} "$@"
