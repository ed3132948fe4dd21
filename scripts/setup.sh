# Sourced by demo.sh, test.sh and .ci/run: makes sure that a C compiler and a Rust toolchain are
# there, installs what is missing, and says what to type where it cannot.
# SINEW_NO_INSTALL=1 only checks and says.

RUST_MINOR_MIN=89 # rust-version in Cargo.toml is 1.89

setup_fail() {
    printf '\n%s\n\nTo install it by hand, type:\n\n    %s\n\nthen run this command again.\n' "$1" "$2" >&2
    exit 1
}

setup_install() { # what, command to show and run
    [ -z "${SINEW_NO_INSTALL:-}" ] || setup_fail "$1 is missing." "$2"
    printf '%s is missing; installing it with:\n    %s\n' "$1" "$2" >&2
    sh -c "$2" >&2 || setup_fail "$1 could not be installed." "$2"
}

setup_c_compiler() {
    command -v cc >/dev/null 2>&1 && return
    sudo=''
    [ "$(id -u)" = 0 ] || sudo='sudo '
    case "$(uname -s)" in
    Darwin) setup_fail 'A C compiler is missing.' 'xcode-select --install' ;;
    *)
        if command -v apt-get >/dev/null 2>&1; then
            setup_install 'A C compiler' "${sudo}apt-get update && ${sudo}apt-get install -y gcc libc6-dev"
        else
            setup_fail 'A C compiler is missing.' 'your package manager'"'"'s command for gcc and the C library headers'
        fi
        ;;
    esac
}

setup_rust() {
    command -v cargo >/dev/null 2>&1 || { [ -f "$HOME/.cargo/env" ] && . "$HOME/.cargo/env"; } || true
    rustup='curl --proto "=https" --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal'
    if ! command -v cargo >/dev/null 2>&1; then
        command -v curl >/dev/null 2>&1 ||
            setup_fail 'A Rust toolchain is missing, and curl to install it.' "apt-get install -y curl; $rustup"
        setup_install 'A Rust toolchain' "$rustup"
        . "$HOME/.cargo/env"
    fi
    minor=$(rustc --version | sed -n 's/^rustc 1\.\([0-9]*\).*/\1/p')
    [ "${minor:-0}" -ge "$RUST_MINOR_MIN" ] ||
        setup_fail "$(rustc --version) is too old: 1.$RUST_MINOR_MIN is needed." 'rustup update stable'
}

setup_c_compiler
setup_rust
