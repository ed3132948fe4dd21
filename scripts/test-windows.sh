#!/usr/bin/env bash
# Runs tests as Windows would, under Wine on Linux. Takes cargo's arguments; without any, it runs the
# unit tests of all crates and the tests of the program that need no other system. What Wine does
# not have is in docs/guides/windows.md.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh
. scripts/cross.sh
cross_setup
wine=$(command -v wine64 || ls /usr/lib/wine/wine64 2>/dev/null || :)
if [ -z "$wine" ]; then
    [ "$(id -u)" = 0 ] && sudo='' || sudo='sudo '
    setup_install 'Wine' \
        "${sudo}apt-get update && ${sudo}apt-get install -y --no-install-recommends wine64"
    wine=$(command -v wine64 || echo /usr/lib/wine/wine64)
fi
# A Windows 10 of its own, and none of Wine's offers to install more.
export WINEPREFIX=$cross_tools/wine WINEDEBUG=-all WINEDLLOVERRIDES='mscoree,mshtml=;winemenubuilder.exe=d'
if [ ! -e "$WINEPREFIX/ready" ]; then
    mkdir -p "$WINEPREFIX"
    "$wine" wineboot -i
    "$wine" winecfg -v win10
    # Rust's source of random numbers, which Wine has since version 9.
    system=$WINEPREFIX/drive_c/windows/system32
    [ -e "$system/bcryptprimitives.dll" ] ||
        "$zig" cc -target x86_64-windows-gnu -shared -o "$system/bcryptprimitives.dll" \
            scripts/windows/bcryptprimitives.c -ladvapi32
    touch "$WINEPREFIX/ready"
fi
export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=$wine
if [ $# -gt 0 ]; then
    cross x86_64-pc-windows-gnu test --release "$@"
else
    cross x86_64-pc-windows-gnu test --release --workspace --no-fail-fast --lib --bins
    cross x86_64-pc-windows-gnu test --release --no-fail-fast -p sinew --test it -- \
        windows:: two_nodes:: losses:: messages::
fi
