#!/usr/bin/env bash
# Builds and runs every test. Once the crates are downloaded, nothing here uses a network.
set -euo pipefail
cd "$(dirname "$0")"
. scripts/setup.sh
cargo test --workspace --locked "$@"
