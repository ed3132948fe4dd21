#!/usr/bin/env bash
# Makes a Debian package or an RPM of what lies below a folder as it will lie below /.
#
#     scripts/packages.sh deb|rpm TREE VERSION PROCESSOR FOLDER      PROCESSOR: x86_64, aarch64
#
# scripts/package.sh lays the tree out. A program that is linked to a C library needs that version of
# it; a static one needs nothing. Neither tool needs a machine of that kind.
set -euo pipefail
[ $# = 5 ] || { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
tree=$(realpath "$2")
version=$3
processor=$4
out=$(realpath "$5")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

summary='One AI computer out of the machines you already own'
description='Sinew pools the memory of several machines and runs one language model on
all of them. Start a node on each with "sinew up", or keep it up with
"sinew service install".'

# What both kinds do to a service of the machine that runs this program; those of users are theirs.
ours='ours() {
    [ -d /run/systemd/system ] &&
        systemctl show --property=ExecStart sinew.service | grep -q "path=/usr/bin/sinew "
}'
# A running service goes on with the old binary until it is started again.
after_install='if ours && systemctl is-active --quiet sinew.service; then
    systemctl restart sinew.service
fi'
before_removal='if ours; then
    systemctl disable --now sinew.service
    echo "sinew: the service is stopped. Its description stays, for the next installation:"
    echo "    systemctl enable --now sinew.service"
fi'
after_removal='echo "sinew: models, keys and members stay, in the folder .local/share/sinew of each user who"
echo "ran a node, or where SINEW_DATA_DIR said. Delete that folder to be rid of them."'
purge='unit=/etc/systemd/system/sinew.service
if [ -f $unit ] && grep -q "^ExecStart=/usr/bin/sinew " $unit; then
    rm $unit
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
fi'

deb() {
    local architecture package
    case $processor in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    esac
    package=$out/sinew_${version}_$architecture.deb
    mkdir "$work/deb" "$work/deb/DEBIAN"
    cp -r "$tree/usr" "$work/deb/"
    mv "$work/deb/usr/share/doc/sinew/LICENSE" "$work/deb/usr/share/doc/sinew/copyright"
    {
        cat <<CONTROL
Package: sinew
Version: $version
Architecture: $architecture
Maintainer: The maintainers of Sinew <maintainers@sinew.invalid>
Section: net
Priority: optional
Installed-Size: $(du -sk "$tree/usr" | cut -f1)
CONTROL
        if readelf -l "$tree/usr/bin/sinew" | grep -q INTERP; then
            echo "Depends: libc6 (>= $(ldd --version | sed -n '1s/.* //p')), libgcc-s1"
            echo 'Recommends: libibverbs1'
        fi
        echo "Description: $summary"
        sed 's/^/ /' <<<"$description"
    } >"$work/deb/DEBIAN/control"
    printf '#!/bin/sh\nset -e\n%s\n%s\n' "$ours" "$after_install" >"$work/deb/DEBIAN/postinst"
    printf '#!/bin/sh\nset -e\n[ "$1" = remove ] || exit 0\n%s\n%s\n' "$ours" "$before_removal" \
        >"$work/deb/DEBIAN/prerm"
    printf '#!/bin/sh\nset -e\ncase "$1" in\nremove)\n%s\n;;\npurge)\n%s\n;;\nesac\n' \
        "$after_removal" "$purge" >"$work/deb/DEBIAN/postrm"
    chmod 755 "$work"/deb/DEBIAN/{postinst,prerm,postrm}
    dpkg-deb --root-owner-group --build "$work/deb" "$package" >/dev/null
    echo "$package"
}

# rpm itself finds which versions of the C library a linked program needs.
rpm() {
    mkdir "$work/rpm"
    cat >"$work/sinew.spec" <<SPEC
Name: sinew
Version: ${version//-/\~}
Release: 1
Summary: $summary
License: Apache-2.0
%description
$description
%install
cp -r $tree/usr %{buildroot}/
%files
%attr(-, root, root) /usr/bin/sinew
%doc %attr(-, root, root) /usr/share/doc/sinew
%attr(-, root, root) /usr/share/man/man1/*
%attr(-, root, root) /usr/share/bash-completion/completions/sinew
%attr(-, root, root) /usr/share/zsh/site-functions/_sinew
%attr(-, root, root) /usr/share/fish/vendor_completions.d/sinew.fish
%post
$ours
$after_install
%preun
[ "\$1" = 0 ] || exit 0
$ours
$before_removal
%postun
[ "\$1" = 0 ] || exit 0
$after_removal
SPEC
    rpmbuild -bb --quiet --target "$processor" --define "_topdir $work/rpm" --define "_rpmdir $work/rpm" \
        --define '_build_id_links none' --define 'debug_package %{nil}' --define '__os_install_post %{nil}' \
        --define '_buildhost localhost' "$work/sinew.spec" >&2
    find "$work/rpm" -name '*.rpm' -exec cp {} "$out/" \; -exec basename {} \; | sed "s|^|$out/|"
}

$1
