#!/usr/bin/env bash
# Makes what is handed out: an archive with the binary, its completions and manual, and a Debian package
# of the same.
#
#     scripts/package.sh [FOLDER]        default: dist
#
# Where rustup has the target for musl, the binary in the archive needs nothing of the system; otherwise
# it is linked to the C library of this machine, and the name of the archive says so.
set -euo pipefail
out=$(realpath -m "${1:-dist}")
cd "$(dirname "$0")/.."
. scripts/setup.sh
target=${CARGO_TARGET_DIR:-$PWD/target}
machine=$(uname -m)
libc=gnu
place=$target/release
musl=$machine-unknown-linux-musl
if rustup target list --installed 2>/dev/null | grep -qx "$musl" && command -v musl-gcc >/dev/null; then
    cargo build --release --quiet --locked -p sinew --target "$musl"
    libc=musl
    place=$target/$musl/release
else
    cargo build --release --quiet --locked -p sinew
fi
sinew=$place/sinew
version=$("$sinew" --version | cut -d' ' -f2)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Lays everything out below a folder, as it lies below /usr.
lay_out() { # folder
    install -D -m 755 "$sinew" "$1/bin/sinew"
    mkdir -p "$1/share/man/man1" "$1/share/doc/sinew"
    "$sinew" man "$1/share/man/man1"
    gzip -9n "$1"/share/man/man1/*.1
    mkdir -p "$1/share/bash-completion/completions" "$1/share/zsh/site-functions" \
        "$1/share/fish/vendor_completions.d"
    "$sinew" completions bash >"$1/share/bash-completion/completions/sinew"
    "$sinew" completions zsh >"$1/share/zsh/site-functions/_sinew"
    "$sinew" completions fish >"$1/share/fish/vendor_completions.d/sinew.fish"
    install -m 644 README.md SECURITY.md LICENSE "$1/share/doc/sinew/"
}

mkdir -p "$out"
name=sinew-$version-$machine-linux-$libc
lay_out "$work/$name"
# The same files give the same archive.
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$work" -c "$name" |
    gzip -9n >"$out/$name.tar.gz"
echo "$out/$name.tar.gz"

if command -v dpkg-deb >/dev/null; then
    deb=$work/deb
    lay_out "$deb/usr"
    mv "$deb/usr/share/doc/sinew/LICENSE" "$deb/usr/share/doc/sinew/copyright"
    architecture=$(dpkg --print-architecture)
    mkdir -p "$deb/DEBIAN"
    depends=
    [ $libc = musl ] || depends="Depends: libc6 (>= $(ldd --version | sed -n '1s/.* //p')), libgcc-s1"
    cat >"$deb/DEBIAN/control" <<CONTROL
Package: sinew
Version: $version
Architecture: $architecture
Maintainer: The maintainers of Sinew <maintainers@sinew.invalid>
${depends:+$depends
}Recommends: libibverbs1
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
fi
(cd "$out" && sha256sum -- * >SHA256SUMS.new && grep -v SHA256SUMS SHA256SUMS.new >SHA256SUMS; rm -f SHA256SUMS.new)
