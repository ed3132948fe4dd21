#!/usr/bin/env bash
# Links the program for Arm and for Macs and compiles it, with all tests, for Windows: none is run.
# The fastest build will do, for what is missing is missing in each.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
. scripts/cross.sh
cross_setup
fast=(--config 'profile.dev.package."*".opt-level=0' --config 'profile.dev.package.kernels.opt-level=0'
    --config 'profile.dev.opt-level=0' --config 'profile.dev.debug=false')
cross aarch64-unknown-linux-musl zigbuild "${fast[@]}" -p sinew
cross aarch64-apple-darwin zigbuild "${fast[@]}" -p sinew
target=${CARGO_TARGET_DIR:-$PWD/target}
scripts/macos/imports.py "$target/aarch64-apple-darwin/debug/sinew" \
    "$cross_tools/ziglang/lib/libc/darwin/libSystem.tbd" scripts/macos/*.tbd
cross x86_64-pc-windows-gnu check "${fast[@]}" --workspace --all-targets
