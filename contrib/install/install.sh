#!/bin/sh
# Installs Sinew for one user, without root: from an archive of scripts/package.sh, for this machine.
#
#     sh install.sh              installs, or upgrades what it installed before
#     sh install.sh --remove     removes it; models, keys and settings stay
#
# SINEW_RELEASES    where the archives and SHA256SUMS lie: https://..., or file://...
# SINEW_PREFIX      where to install to, ~/.local by default
# SINEW_SIGNER      the public key that SHA256SUMS.sig must be signed with: ssh-ed25519 AAAA...
#
# The archive's SHA-256 is always checked. The list of hashes comes from the same place, so only the
# signature says who made it: the last lines say whether that was checked, too.
set -eu
releases=${SINEW_RELEASES:-}
prefix=${SINEW_PREFIX:-$HOME/.local}
# scripts/release.sh writes the address and the key here.
default_releases=''
signer=${SINEW_SIGNER:-}
default_signer=''

say() { printf '%s\n' "$*"; }
fail() {
    printf 'not installed: %s\n' "$*" >&2
    exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

# Files of the version that is installed, one a line, below the prefix.
list=$prefix/share/sinew/installed-files

remove() {
    [ -f "$list" ] || fail "$list is missing: nothing was installed here by this script."
    if "$prefix/bin/sinew" service uninstall >/dev/null 2>&1; then
        say 'The node was stopped, and is no longer started by itself.'
    fi
    while read -r file; do rm -f "$prefix/$file"; done <"$list"
    rm -f "$list"
    rmdir "$prefix/share/sinew" "$prefix/share/doc/sinew" 2>/dev/null || :
    say "Sinew was removed from $prefix. Its data stay: models, keys, settings."
}

fetch() { # name, file
    case $releases in
    https://* | file://*) ;;
    http://127.0.0.1[:/]* | http://localhost[:/]*) ;;
    *) fail "SINEW_RELEASES is \"$releases\"; it must begin with https:// or file://." ;;
    esac
    if has curl; then
        curl -fsSL --retry 2 -o "$2" "$releases/$1"
    elif has wget; then
        wget -q -O "$2" "$releases/$1"
    else
        fail 'neither curl nor wget is here. Install one of them.'
    fi
}

sha256() { # file
    if has sha256sum; then
        sha256sum "$1" | cut -d' ' -f1
    elif has shasum; then
        shasum -a 256 "$1" | cut -d' ' -f1
    else
        fail 'neither sha256sum nor shasum is here, so the archive cannot be checked.'
    fi
}

# The archives that run here, the best first.
kinds() {
    machine=$(uname -m)
    [ "$machine" != arm64 ] || machine=aarch64
    case $(uname -s)-$machine in
    Linux-x86_64 | Linux-aarch64) say "$machine-linux-gnu $machine-linux-musl" ;;
    Darwin-aarch64) say aarch64-macos ;;
    MINGW* | MSYS* | CYGWIN*) fail 'this is Windows: use install.cmd.' ;;
    *) fail "there is no archive for $(uname -s) on $machine. Build it: README.md says how." ;;
    esac
}

# Fails if the list of hashes has a wrong signature, or none where a key is known.
check_signature() {
    if [ -z "$signer" ]; then
        checked='Only the SHA-256 was checked: no key is known that the list of hashes is signed with.'
        return
    fi
    # An ssh-keygen before 8.0 has no -Y.
    if ! has ssh-keygen || ssh-keygen -Y 2>&1 | grep -q 'unknown option'; then
        checked='Only the SHA-256 was checked: this machine has no ssh-keygen that verifies signatures.'
        return
    fi
    fetch SHA256SUMS.sig "$work/SHA256SUMS.sig" 2>/dev/null ||
        fail "$releases has no SHA256SUMS.sig, though its hashes should be signed."
    printf 'releases %s\n' "$signer" >"$work/signers"
    ssh-keygen -Y verify -f "$work/signers" -I releases -n sinew -s "$work/SHA256SUMS.sig" \
        <"$work/SHA256SUMS" >/dev/null 2>&1 ||
        fail 'the signature of SHA256SUMS is not by the expected key. Do not use these files.'
    checked='The SHA-256 was checked, and the signature of the list of hashes.'
}

unpack() { # archive's name; the folder is $work/NAME
    wanted=$(awk -v name="$1" '$2 == name { print $1 }' "$work/SHA256SUMS")
    fetch "$1" "$work/$1" || fail "$releases/$1 cannot be fetched."
    found=$(sha256 "$work/$1")
    [ "$found" = "$wanted" ] ||
        fail "the SHA-256 of $1 is $found, and should be $wanted. Nothing was changed."
    tar -xzf "$work/$1" -C "$work"
}

install_from() { # unpacked folder
    (cd "$1" && find . -type f | sed 's|^\./||' | sort) >"$work/files"
    while read -r file; do
        mkdir -p "$prefix/$(dirname "$file")"
        # A rename: a running program keeps its own file.
        cp "$1/$file" "$prefix/$file.new"
        mv -f "$prefix/$file.new" "$prefix/$file"
    done <"$work/files"
    mkdir -p "$(dirname "$list")"
    if [ -f "$list" ]; then
        # What the version before had and this one has not.
        while read -r file; do
            grep -Fqx "$file" "$work/files" || rm -f "$prefix/$file"
        done <"$list"
    fi
    cp "$work/files" "$list"
}

main() {
    releases=${releases:-$default_releases}
    releases=${releases%/}
    signer=${signer:-$default_signer}
    case ${1:-} in
    '') ;;
    --remove) remove && return ;;
    *) fail "unknown argument $1; there is --remove." ;;
    esac
    [ -n "$releases" ] || fail 'SINEW_RELEASES is not set: no release has been published yet.'
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    fetch SHA256SUMS "$work/SHA256SUMS" || fail "$releases/SHA256SUMS cannot be fetched."
    check_signature
    # The shell stops here if there is no kind.
    all=$(kinds)
    archive=''
    for kind in $all; do
        name=$(awk -v end="-$kind.tar.gz" '
            substr($2, length($2) - length(end) + 1) == end { print $2 }' "$work/SHA256SUMS" | tail -1)
        [ -n "$name" ] || continue
        unpack "$name"
        # One that is linked to a newer C library does not start here.
        new=$("$work/${name%.tar.gz}/bin/sinew" --version 2>/dev/null) || continue
        archive=$name
        break
    done
    [ -n "$archive" ] || fail "$releases has no archive that starts here ($all)."
    old=$("$prefix/bin/sinew" --version 2>/dev/null) || old=''
    install_from "$work/${archive%.tar.gz}"
    case $old in
    '') say "$new was installed: $prefix/bin/sinew" ;;
    "$new") say "$new was installed again: $prefix/bin/sinew" ;;
    *) say "$new was installed in place of $old. A node that runs keeps the old one until its restart." ;;
    esac
    say "$checked"
    case $archive in
    *-musl.tar.gz) say 'This static program uses neither GPUs nor RDMA.' ;;
    esac
    case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) say "Add it to the PATH, in ~/.profile: export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
    say 'Next: sinew up. To remove it: this script with --remove.'
}

# Called in the last line, so that a part of this script does nothing.
main "$@"
