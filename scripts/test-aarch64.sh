#!/usr/bin/env bash
# Runs tests as an Arm machine would, emulated where this is none: the kernels must give the bits
# there that they give on every other instruction set. Takes cargo's arguments; without any, it
# runs the kernels' tests. About 3 minutes on 2 cores, most of it compiling.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
[ $# -gt 0 ] || set -- -p kernels --lib
case "$(uname -m)" in aarch64 | arm64) exec cargo test --locked "$@" ;; esac

emulator() { command -v qemu-aarch64-static || command -v qemu-aarch64; }
if ! command -v aarch64-linux-gnu-gcc >/dev/null || ! emulator >/dev/null; then
    [ "$(id -u)" = 0 ] && sudo='' || sudo='sudo '
    packages='gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static'
    setup_install 'A compiler for Arm or its emulator' \
        "${sudo}apt-get update && ${sudo}apt-get install -y --no-install-recommends $packages"
fi
target=aarch64-unknown-linux-gnu
libdir=$(rustc --print target-libdir --target "$target")
[ -d "$libdir" ] || setup_install "Rust's library for $target" "rustup target add $target"
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# Of the emulated processors, "max" has every extension.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$(emulator) -cpu max -L /usr/aarch64-linux-gnu"
cargo test --locked --target "$target" "$@"
