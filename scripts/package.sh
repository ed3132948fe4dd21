#!/usr/bin/env bash
# Makes what is handed out: for each kind of machine an archive with the binary, its completions and
# manual, a bill of materials (CycloneDX) beside it, packages, and the checksums of all.
#
#     scripts/package.sh [--to FOLDER] [--url ADDRESS] [KIND...]      default: --to dist here
#
# KIND: here             linked to this machine's C library; a Debian package and an RPM too
#       x86_64-linux     static, for any Linux on that processor; a static program opens no
#       aarch64-linux    libraries, so it uses neither GPUs nor RDMA; packages too, for the processor
#                        that is not this machine's
#       aarch64-macos    for macOS 14 on Apple's processors; what it imports is checked; a formula of
#                        Homebrew for the archive
#       x86_64-windows   for Windows 10; what winget takes
#       all              these five
#
# ADDRESS is where the archives will be; formula and winget's manifests name it. Packages are made
# where their tools are (dpkg-deb, rpmbuild). A linker and C libraries for all but the first come from
# PyPI (80 MB) into target/cross.
set -euo pipefail
usage() {
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
}
out=dist
url=https://sinew.invalid
kinds=()
while [ $# -gt 0 ]; do
    case "$1" in
    --to) out=${2:?--to needs a folder}; shift ;;
    --url) url=${2:?--url needs an address}; shift ;;
    here | x86_64-linux | aarch64-linux | aarch64-macos | x86_64-windows) kinds+=("$1") ;;
    all) kinds+=(here x86_64-linux aarch64-linux aarch64-macos x86_64-windows) ;;
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

# The same for Windows, as a zip, without what its shells do not read.
zipped() { # binary
    local name=sinew-$version-x86_64-windows
    install -D -m 755 "$1" "$work/$name/sinew.exe"
    "$here" completions powershell >"$work/$name/completions.ps1"
    install -m 644 README.md SECURITY.md LICENSE docs/guides/windows.md "$work/$name/"
    # The same files give the same archive.
    find "$work/$name" -exec touch -d 1980-01-01T00:00:00Z {} +
    rm -f "$out/$name.zip"
    (cd "$work" && TZ=UTC python3 -m zipfile -c "$out/$name.zip" "$name")
    scripts/sbom.py x86_64-pc-windows-gnu >"$out/$name.cdx.json"
    printf '%s\n' "$out/$name.zip" "$out/$name.cdx.json"
}

# Packages of the archive just made. Those of this machine's processor are linked, for a static program
# opens no libraries of GPUs and RDMA; rpm then asks for the versions of the C library that it names.
packages() { # the machine in the archive's name, processor
    local kind tool
    mv "$work/sinew-$version-$1" "$work/usr"
    for kind in deb rpm; do
        tool=$([ $kind = deb ] && echo dpkg-deb || echo rpmbuild)
        if command -v $tool >/dev/null; then
            scripts/packages.sh $kind "$work" "$version" "$2" "$out"
        else
            echo "no $kind for $2: $tool is missing (Debian: apt-get install dpkg rpm)" >&2
        fi
    done
    rm -r "${work:?}/usr"
}

# For package managers that fetch an archive: where it will be, and its checksum.
winget() { # the zip
    local program file
    program=$(python3 -m zipfile -l "$1" | grep -o '^[^ ]*sinew\.exe' | tr / '\\')
    mkdir -p "$out/winget"
    for file in contrib/winget/*.yaml; do
        sed -e "s|@VERSION@|$version|" -e "s|@PROGRAM@|${program//\\/\\\\}|" \
            -e "s|@URL@|$url/$(basename "$1")|" \
            -e "s|@SHA256@|$(sha256sum "$1" | cut -d' ' -f1 | tr a-f A-F)|" \
            "$file" >"$out/winget/$(basename "$file")"
        echo "$out/winget/$(basename "$file")"
    done
}

homebrew() { # the archive for Macs
    sed -e '1,2d' -e '/^  head do/,/^  end/c\
  url "'"$url/$(basename "$1")"'"\
  version "'"$version"'"\
  sha256 "'"$(sha256sum "$1" | cut -d' ' -f1)"'"\
\
  depends_on arch: :arm64\
  depends_on :macos' contrib/homebrew/sinew.rb >"$out/sinew.rb"
    echo "$out/sinew.rb"
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
        packages "$(uname -m)-linux-gnu" "$(uname -m)"
        ;;
    *-linux)
        build "${kind%-linux}-unknown-linux-musl"
        archive "$built" "$kind-musl" "${kind%-linux}-unknown-linux-musl"
        [ "${kind%-linux}" = "$(uname -m)" ] || packages "$kind-musl" "${kind%-linux}"
        ;;
    aarch64-macos)
        scripts/macos/facts.sh >&2
        build aarch64-apple-darwin
        scripts/macos/imports.py "$built" "$cross_tools/ziglang/lib/libc/darwin/libSystem.tbd" \
            scripts/macos/*.tbd >&2
        archive "$built" aarch64-macos aarch64-apple-darwin
        homebrew "$out/sinew-$version-aarch64-macos.tar.gz"
        ;;
    x86_64-windows)
        build x86_64-pc-windows-gnu
        zipped "$built.exe"
        winget "$out/sinew-$version-x86_64-windows.zip"
        ;;
    esac
done
(
    cd "$out"
    find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs sha256sum
) >"$work/sums"
mv "$work/sums" "$out/SHA256SUMS"
