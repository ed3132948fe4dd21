#!/usr/bin/env bash
# Builds and runs every test, in the profile of demo.sh. Once the crates are downloaded, nothing here
# uses a network.
set -euo pipefail
cd "$(dirname "$0")"
. scripts/setup.sh
# Many tests wait for processes, links and clocks: twice as many as there are processors run at once.
processors=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * processors))}
cargo test --release --workspace --locked "$@"
