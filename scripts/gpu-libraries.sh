#!/usr/bin/env bash
# Fetches ggml's libraries, in the version that Sinew knows, into a folder where it finds them:
#
#     scripts/gpu-libraries.sh [--to DIR] [cpu|vulkan|cuda|build]
#
# cpu: ggml's own engine alone. vulkan (the default): also GPUs of any maker with a Vulkan driver.
# cuda: NVIDIA's, with their driver (590 or later on T4, A100, H100, H200); CUDA 13's runtime comes with
# them (400 MB, from PyPI) where it is not installed. build: what ggml's sources in $GGML_SOURCE make here (CMake
# and a C++ compiler; options of theirs in $GGML_OPTIONS, such as -DGGML_METAL=ON).
#
# The first three are built by node-llama-cpp. npm fetches them and pip CUDA's runtime, each from the
# registry that it is configured for; the hashes here decide what is installed.
# DIR: by default `gpu` in the node's data directory.
set -euo pipefail

version=3.22.1 # of node-llama-cpp; its ggml is 0.25.1
known=0.25

data="${XDG_DATA_HOME:-$HOME/.local/share}/sinew"
[ "$(uname)" = Darwin ] && data="$HOME/Library/Application Support/Sinew"
to="${SINEW_GPU_LIBRARIES:-${SINEW_DATA_DIR:-$data}/gpu}"
kind=vulkan
while [ $# -gt 0 ]; do
    case "$1" in
        --to) to="${2:?--to needs a folder}"; shift 2 ;;
        cpu | vulkan | cuda | build) kind="$1"; shift ;;
        *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
    esac
done

hash_of() {
    case "$1" in
        linux-x64) echo 5uCCDNqWCNfaAm8aR/Uzxbo4HBpKgNF91kCHPepKhgMgV2OAmatoefbOlMihsqCiH2Od35E/eUHQCFbfRBJuOg== ;;
        linux-x64-vulkan) echo bBxqU+JOcBu1nb5Qj2zcMci+JByT1E8EajHvYodyNfVIPkEhXh+/HMwR1/BT7xP08YK0hks+kM8fglER0P8JEg== ;;
        linux-x64-cuda) echo 8rQCjyNNLZJUFit+YpjwlC4hwkKgOMIkB2wuycKBf8NU2O3ySKbiWZQ8aw9ku2nUTXjSnUIrE6KB88itduTBuA== ;;
        linux-arm64) echo W+7naKCXX9/eEjjFmRS8vvx91QyLXDbeFxexZc3bh/PtQABZgmRL3C0AtYYXn4YGTj/3Qor4lWZn2tpjZFPLdQ== ;;
        *) echo "there are no libraries built for $1; try: $0 build" >&2; exit 1 ;;
    esac
}

need() {
    local tool lacking=()
    for tool in "$@"; do
        command -v "$tool" >/dev/null || lacking+=("$tool")
    done
    [ ${#lacking[@]} = 0 ] && return
    echo "this needs ${lacking[*]}; on Debian and Ubuntu: apt-get install ca-certificates ${lacking[*]/pip3/python3-pip}" >&2
    exit 1
}

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

fetch() {
    local name="$1" hash
    need npm openssl tar
    hash="$(hash_of "$name")"
    echo "fetching $name $version"
    local packed found
    packed="$(npm pack --silent --pack-destination "$work" "@node-llama-cpp/$name@$version")"
    packed="$work/${packed##*/}"
    found="$(openssl dgst -sha512 -binary "$packed" | openssl base64 -A)"
    if [ "$found" != "$hash" ]; then
        echo "$name: the hash is $found, not $hash; nothing was installed" >&2
        exit 1
    fi
    mkdir -p "$work/$name"
    tar -xzf "$packed" -C "$work/$name"
    mkdir -p "$to"
    find "$work/$name" -name 'libggml-*.so' -exec cp {} "$to/" \;
}

# CUDA's runtime, as NVIDIA packs it for Python, where the system has none.
fetch_runtime() {
    local known
    known="$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null || true)"
    case "$known" in *libcublas.so.13*) case "$known" in *libcudart.so.13*) return ;; esac ;; esac
    need pip3 unzip
    echo "fetching CUDA 13's runtime (400 MB)"
    unpack nvidia-cuda-runtime==13.0.96 \
        7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548 libcudart.so.13
    unpack nvidia-cublas==13.0.2.14 \
        0cf238ffdbe46c00cb9aa98e7bca745c223a5ca5a53e686ac8b3e5a08fe80d6c libcublas.so.13 libcublasLt.so.13
}

# Libraries out of a wheel; pip refuses one with another hash.
unpack() {
    local package="$1" hash="$2" wheels="$work/wheels-$1"
    shift 2
    echo "$package --hash=sha256:$hash" >"$work/wanted.txt"
    pip3 download -q --no-deps --only-binary :all: --require-hashes -r "$work/wanted.txt" \
        --platform manylinux2014_x86_64 --platform manylinux_2_27_x86_64 -d "$wheels"
    unzip -qjo "$wheels/*.whl" "${@/#/*/lib/}" -d "$to"
}

build() {
    need cmake g++ make
    local source="${GGML_SOURCE:?GGML_SOURCE names the folder of the sources of ggml $known}"
    if ! grep -q "GGML_VERSION_MINOR ${known#*.})" "$source/CMakeLists.txt"; then
        echo "$source is not ggml $known" >&2
        exit 1
    fi
    # Options are several words.
    # shellcheck disable=SC2086
    cmake -S "$source" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
        -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF -DGGML_CPU_ALL_VARIANTS=ON -DGGML_OPENMP=OFF \
        -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF ${GGML_OPTIONS:-}
    cmake --build "$work/build" -j "$(getconf _NPROCESSORS_ONLN)"
    mkdir -p "$to"
    find "$work/build" \( -name 'libggml-*.so*' -o -name 'libggml-*.dylib' \) -exec cp -P {} "$to/" \;
}

machine="$(uname | tr '[:upper:]' '[:lower:]')-$(uname -m | sed 's/x86_64/x64/;s/aarch64/arm64/')"
case "$kind" in
    cpu) fetch "$machine" ;;
    build) build ;;
    cuda) fetch "$machine-$kind"; fetch_runtime ;;
    *) fetch "$machine-$kind" ;;
esac
echo "ggml's libraries are in $to; look at them with: sinew doctor gpu"
