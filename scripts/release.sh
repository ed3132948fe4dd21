#!/usr/bin/env bash
# Makes a release up to the upload: archives and packages, install scripts with the address and the key
# in them, hashes, their signature; then installs from that folder as a user would.
#
#     scripts/release.sh --url ADDRESS [--key FILE] [--to FOLDER] [KIND...]
#
# ADDRESS: where the files will be, the same for each release (it always has the last one).
# FILE: a private key for `ssh-keygen -Y sign`, with its .pub beside it; without one, nothing is signed.
# KIND: as for scripts/package.sh; all by default. FOLDER: dist/release by default, and must not exist.
#
# The upload is not made here: the last lines print what it takes.
set -euo pipefail
usage() {
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
}
url='' key='' out=dist/release kinds=()
while [ $# -gt 0 ]; do
    case "$1" in
    --url) url=${2:?--url needs an address}; shift ;;
    --key) key=$(realpath "${2:?--key needs a file}"); shift ;;
    --to) out=${2:?--to needs a folder}; shift ;;
    -*) usage ;;
    *) kinds+=("$1") ;;
    esac
    shift
done
[ -n "$url" ] || usage
[ ${#kinds[@]} -gt 0 ] || kinds=(all)
cd "$(dirname "$0")/.."
out=$(realpath -m "$out")
[ ! -e "$out" ] || { echo "$out is there already; a release begins with an empty folder" >&2; exit 1; }
[ -z "$(git status --porcelain --untracked-files=no)" ] || {
    echo 'files are changed and not committed: the archives would be of no commit' >&2
    exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

scripts/package.sh --to "$out" --url "$url" "${kinds[@]}"
signer=''
[ -z "$key" ] || signer=$(cut -d' ' -f1,2 "$key.pub")
sed -e "s|^default_releases=''|default_releases='$url'|" -e "s|^default_signer=''|default_signer='$signer'|" \
    contrib/install/install.sh >"$out/install.sh"
sed "s|%SINEW_RELEASES%\"==\"\"|%SINEW_RELEASES%\"==\"\" set \"SINEW_RELEASES=$url\"\r\nif \"%SINEW_RELEASES%\"==\"\"|" \
    contrib/install/install.cmd >"$out/install.cmd"
sed "s|^\$releases = .*|&\nif (-not \$releases) { \$releases = '$url' }|" contrib/install/install.ps1 >"$out/install.ps1"
(cd "$out" && find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%P\n' | sort | xargs sha256sum) >"$work/sums"
mv "$work/sums" "$out/SHA256SUMS"
[ -z "$key" ] || ssh-keygen -q -Y sign -n sinew -f "$key" "$out/SHA256SUMS"

# As a user: from the folder itself, into an empty home.
if compgen -G "$out/*-linux-*.tar.gz" >/dev/null; then
    mkdir "$work/home"
    install() { HOME=$work/home SINEW_RELEASES=file://$out sh "$out/install.sh" "$@"; }
    install
    "$work/home/.local/bin/sinew" demo --once
    install --remove
fi
echo
echo "Tried, not uploaded: $out. To publish it, put all of its files at $url,"
echo "SHA256SUMS and its signature last; then: curl -fsSL $url/install.sh | sh"
