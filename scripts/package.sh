#!/usr/bin/env bash
# Makes what is handed out: for each kind of machine an archive with the binary, its completions and
# manual, a bill of materials (CycloneDX) beside it, and the checksums of all.
#
#     scripts/package.sh [--to FOLDER] [KIND...]      default: --to dist here
#
# KIND: here             linked to this machine's C library; where dpkg is, a Debian package too
#       x86_64-linux     static, for any Linux on that processor; a static program opens no
#       aarch64-linux    libraries, so it uses neither GPUs nor RDMA
#       aarch64-macos    for macOS 14 on Apple's processors; what it imports is checked
#       all              these four
#
# A linker and C libraries for the last three come from PyPI (80 MB) into target/cross.
set -euo pipefail
usage() {
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
}
out=dist
kinds=()
while [ $# -gt 0 ]; do
    case "$1" in
    --to) out=${2:?--to needs a folder}; shift ;;
    here | x86_64-linux | aarch64-linux | aarch64-macos) kinds+=("$1") ;;
    all) kinds+=(here x86_64-linux aarch64-linux aarch64-macos) ;;
    *) usage ;;
    esac
    shift
done
[ ${#kinds[@]} -gt 0 ] || kinds=(here)
out=$(realpath -m "$out")
cd "$(dirname "$0")/.."
. scripts/setup.sh
. scripts/cross.sh
command -v python3 >/dev/null ||
    setup_fail 'Python, which writes the bill of materials, is missing.' 'apt-get install python3'
target=${CARGO_TARGET_DIR:-$PWD/target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Every kind needs a binary that runs here: it prints the manual and the completions.
cargo build --release --quiet --locked -p sinew
here=$target/release/sinew
version=$("$here" --version | cut -d' ' -f2)

# Lays everything out below a folder, as it lies below /usr.
lay_out() { # binary, folder
    install -D -m 755 "$1" "$2/bin/sinew"
    mkdir -p "$2/share/man/man1" "$2/share/doc/sinew"
    "$here" man "$2/share/man/man1"
    gzip -9n "$2"/share/man/man1/*.1
    mkdir -p "$2/share/bash-completion/completions" "$2/share/zsh/site-functions" \
        "$2/share/fish/vendor_completions.d"
    "$here" completions bash >"$2/share/bash-completion/completions/sinew"
    "$here" completions zsh >"$2/share/zsh/site-functions/_sinew"
    "$here" completions fish >"$2/share/fish/vendor_completions.d/sinew.fish"
    install -m 644 README.md SECURITY.md LICENSE "$2/share/doc/sinew/"
}

archive() { # binary, the machine in the archive's name, Rust target
    local name=sinew-$version-$2
    lay_out "$1" "$work/$name"
    # The same files give the same archive.
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$work" -c "$name" |
        gzip -9n >"$out/$name.tar.gz"
    scripts/sbom.py "$3" >"$out/$name.cdx.json"
    printf '%s\n' "$out/$name.tar.gz" "$out/$name.cdx.json"
}

debian() {
    local deb=$work/deb architecture depends
    lay_out "$here" "$deb/usr"
    mv "$deb/usr/share/doc/sinew/LICENSE" "$deb/usr/share/doc/sinew/copyright"
    architecture=$(dpkg --print-architecture)
    mkdir -p "$deb/DEBIAN"
    depends="libc6 (>= $(ldd --version | sed -n '1s/.* //p')), libgcc-s1"
    cat >"$deb/DEBIAN/control" <<CONTROL
Package: sinew
Version: $version
Architecture: $architecture
Maintainer: The maintainers of Sinew <maintainers@sinew.invalid>
Depends: $depends
Recommends: libibverbs1
Section: net
Priority: optional
Installed-Size: $(du -sk "$deb/usr" | cut -f1)
Description: One AI computer out of the machines you already own
 Sinew pools the memory of several machines and runs one language model on
 all of them. Start a node on each with "sinew up", or keep it up with
 "sinew service install".
CONTROL
    # A running service goes on with the old binary until it is started again.
    cat >"$deb/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
if [ -d /run/systemd/system ] && systemctl is-active --quiet sinew.service; then
    systemctl restart sinew.service
fi
POSTINST
    chmod 755 "$deb/DEBIAN/postinst"
    dpkg-deb --root-owner-group --build "$deb" "$out/sinew_${version}_$architecture.deb" >/dev/null
    echo "$out/sinew_${version}_$architecture.deb"
}

# Builds for another kind of machine; the binary lies at $built.
build() { # Rust target
    cross_setup
    cross "$1" zigbuild --release --quiet -p sinew
    built=$target/$1/release/sinew
}

mkdir -p "$out"
for kind in "${kinds[@]}"; do
    case $kind in
    here)
        archive "$here" "$(uname -m)-linux-gnu" "$(rustc -vV | sed -n 's/^host: //p')"
        ! command -v dpkg-deb >/dev/null || debian
        ;;
    *-linux)
        build "${kind%-linux}-unknown-linux-musl"
        archive "$built" "$kind-musl" "${kind%-linux}-unknown-linux-musl"
        ;;
    aarch64-macos)
        scripts/macos/facts.sh >&2
        build aarch64-apple-darwin
        scripts/macos/imports.py "$built" "$cross_tools/ziglang/lib/libc/darwin/libSystem.tbd" \
            scripts/macos/*.tbd >&2
        archive "$built" aarch64-macos aarch64-apple-darwin
        ;;
    esac
done
(
    cd "$out"
    find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum
) >"$work/sums"
mv "$work/sums" "$out/SHA256SUMS"
