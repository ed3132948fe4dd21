#!/usr/bin/env bash
# Whatever other machines than this one need, as far as it can be tried here: archives and packages
# for all, installed and upgraded; tests on an emulated Arm machine; tests under Wine. Needs root, and
# Debian's cpio, debootstrap, rpm and systemd-container; what it builds with it installs.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
target=${CARGO_TARGET_DIR:-$PWD/target}
[ "$(id -u)" = 0 ] || setup_fail 'Only root may do this.' 'sudo scripts/test-machines.sh'

scripts/package.sh --to "$target/packages" all
for package in "$target"/packages/sinew_*_"$(dpkg --print-architecture)".deb \
    "$target"/packages/sinew-*."$(uname -m)".rpm; do
    tests/bare/package "$package"
done

# Tests start programs of the emulated machine: the kernel must know what runs them.
handlers=/proc/sys/fs/binfmt_misc
[ -e $handlers/register ] || mount -t binfmt_misc binfmt_misc $handlers
scripts/test-aarch64.sh # Installs the emulator, and tests the kernels.
if [ "$(uname -m)" != aarch64 ] && [ ! -e $handlers/qemu-aarch64 ]; then
    machine='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    printf '%s' ":qemu-aarch64:M::$machine:$mask:$(command -v qemu-aarch64-static):F" >$handlers/register
fi
export QEMU_CPU=max QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
# Left out is what an emulator cannot show: whether a peer's system has acknowledged bytes, and tests
# whose deadlines are too short for a model of 150 million parameters there. A whole simulation takes
# it minutes, and the test of planned bytes (it loads every fixture) more than 23 GiB.
scripts/test-aarch64.sh --release --no-fail-fast --lib \
    -p protocol -p collective -p link -p engine -p cluster -p store -p serve \
    -- --skip messages_that_arrive_are_enough --skip simulation::runs --skip footprint::
scripts/test-aarch64.sh --release --no-fail-fast -p sinew --test it -- \
    two_nodes::the_demo two_nodes::a_split_model two_nodes::run_needs_no_node \
    two_nodes::nodes_and_workers two_nodes::bad_input two_nodes::stop_node \
    two_nodes::a_lost_node_is_named two_nodes::a_stranger two_nodes::a_call_for_no_worker \
    two_nodes::ranks_are_called
"$target/aarch64-unknown-linux-musl/release/sinew" demo --once

scripts/test-windows.sh
echo 'machines: all that can be tried here passed'
