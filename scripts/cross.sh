# Sourced after setup.sh by scripts that build for other machines than this one. `cross_setup`
# fetches a linker into target/cross; `cross TARGET COMMAND` then runs cargo for a Rust target.

cross_tools=${CARGO_TARGET_DIR:-$PWD/target}/cross
zig=$cross_tools/ziglang/zig

cross_setup() {
    local listed=$PWD/scripts/cross-tools.txt stub name
    if ! cmp -s "$listed" "$cross_tools/installed"; then
        python3 -m pip --version >/dev/null 2>&1 ||
            setup_fail 'pip, which fetches the linker for other machines, is missing.' \
                'apt-get install python3-pip'
        rm -rf "$cross_tools"
        setup_install 'The linker for other machines' "python3 -m pip install --quiet --no-deps \
            --require-hashes --only-binary :all: --target '$cross_tools' -r '$listed'"
        cp "$listed" "$cross_tools/installed"
    fi
    export CARGO_ZIGBUILD_ZIG_PATH=$zig MACOSX_DEPLOYMENT_TARGET=14.0
    # Stubs of Apple's frameworks, laid out as a linker looks for them.
    for stub in scripts/macos/*.tbd; do
        name=$(basename "$stub" .tbd)
        install -D -m 644 "$stub" "$cross_tools/frameworks/$name.framework/$name.tbd"
    done
}

cross() { # Rust target, a command of cargo-zigbuild, its arguments
    local target=$1
    shift
    [ -d "$(rustc --print target-libdir --target "$target")" ] ||
        setup_install "Rust's library for $target" "rustup target add $target"
    "$cross_tools/bin/cargo-zigbuild" "$@" --locked --target "$target" \
        --config "target.aarch64-apple-darwin.rustflags = ['-Lframework=$cross_tools/frameworks']"
    # Zig leaves it where it links for a Mac.
    rm -f .intentionally-empty-file.o
}
