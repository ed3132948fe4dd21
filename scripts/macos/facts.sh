#!/usr/bin/env bash
# Compares what Sinew's source takes for granted of macOS with Apple's headers, which come with Zig.
# Runs on Linux; a second, once the tools are there.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/setup.sh
. scripts/cross.sh
cross_setup
headers=$cross_tools/ziglang/lib/libc/include/any-macos-any

number() { # name, file: the value of a constant in the source
    local value
    value=$(sed -n "s/^ *const $1: [a-z0-9]* = \([0-9_]*\);.*/\1/p" "$2" | tr -d _)
    [ -n "$value" ] || { echo "no constant $1 in $2, for which this script looks" >&2 && exit 1; }
    printf -- '-DSINEW_%s=%s' "$1" "$value"
}
"$zig" cc -target aarch64-macos.14.0 -c -o "$cross_tools/facts.o" -Werror \
    "$(number OPEN_MAX crates/cli/src/descriptors.rs)" \
    "$(number ENOMEM crates/link/src/rdma/error.rs)" \
    "$(number EBUSY crates/link/src/rdma/error.rs)" \
    "$(number EINVAL crates/link/src/rdma/error.rs)" scripts/macos/facts.c
# The one sysctl of ours that a header names; the kernel has the others without one.
grep -q '"hw.memsize"' crates/cli/src/machine.rs
grep -q 'hw\.memsize ' "$headers/sys/sysctl.h"
echo 'macOS: constants and names are those of its headers'
