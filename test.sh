#!/usr/bin/env bash
# Builds and runs every test, in the profile of demo.sh. Once the crates are downloaded, nothing here
# uses a network.
set -euo pipefail
cd "$(dirname "$0")"
. scripts/setup.sh
cargo test --release --workspace --locked "$@"
