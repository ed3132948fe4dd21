#!/bin/bash
# Runs a Linux program in a throw-away virtual machine that has real RDMA verbs: Soft-RoCE
# (rdma_rxe) over virtual Ethernet. Needs neither RDMA hardware nor root nor hardware
# virtualisation; emulated as it is, it says whether something works, never how fast.
#
#   vm.sh build                         download Debian packages, make kernel and initramfs (1 min)
#   vm.sh exec [options] -- CMD ARGS    one machine; CMD's exit status becomes ours
#   vm.sh pair [options] -- CMD ARGS    two machines and a cable; CMD runs in both, with RANK (0 or
#                                       1), MY_IP and PEER_IP set; the worse status becomes ours
#
#   --share DIR    a directory of the host, at the same path in the machine [default: here]
#   --env K=V      set in the environment of CMD
#   --net MODE     exec only: what rxe sits on [default: veth]
#                    lo    rxe0 on the loopback device
#                    veth  rxe0 on veth0 (10.0.0.1), rxe1 on veth1 (10.0.0.2)
#                    none  no device: rdma_rxe is there, nothing uses it
#   --delay T      every packet comes this much later (50us, 1ms), --loss P: or not at all (2%)
#   --cpus N       [default: 4] spinning threads + 2, or the kernel's own work waits for them
#   --mem MB       [default: 1024]   --mtu N  [default: 4200, so that RoCE can use 4096]
#   --timeout S    end the machine after so long [default: 300], with status 124
#   --verbose      show the kernel's log on standard error
#
# Needs qemu-system-x86, cpio, python3 and Debian's apt-get and dpkg-deb. A dynamically linked
# program just runs: the machine has Debian's libraries, and others that `ldd` names are copied in.
# Status 125: the machine died before CMD ended.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
# The packages, the kernel and the initramfs.
CACHE=${RDMA_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sinew-rdma-vm}
QEMU=${QEMU:-qemu-system-x86_64}
# Emulation. ACCEL=kvm CPU=host should be faster where the host allows it; the one that was tried,
# a virtual machine itself, did not.
ACCEL=${ACCEL:-tcg,thread=multi}
CPU=${CPU:-max}

# User-space packages put into the initramfs.  busybox is the shell; iproute2 gives ip/tc/rdma.
PKGS="busybox-static dash kmod iproute2 rdma-core ibverbs-providers ibverbs-utils libibverbs1 librdmacm1
      rdmacm-utils libibumad3 perftest libnl-3-200 libnl-route-3-200 libpci3 libbpf1 libbsd0 libcap2
      libelf1 libmd0 libmnl0 libxtables12 zlib1g libc6 libgcc-s1 libdb5.3 libselinux1 libpcre2-8-0
      libkmod2 liblzma5 libzstd1 libssl3 libudev1"
# Kernel modules; modprobe adds what they depend on. The cloud kernel has neither rdma_rxe nor 9p, so
# it is the generic one.
MODS="virtio_pci virtio_net 9p 9pnet_virtio ib_uverbs rdma_ucm ib_umad rdma_rxe
      crc32_generic veth dummy sch_netem sch_ingress cls_u32 act_gact"

die() { echo "vm.sh: $*" >&2; exit 2; }

build() {
  mkdir -p "$CACHE/debs" "$CACHE/kernel" "$CACHE/root"
  local kpkg
  kpkg=$(apt-cache depends linux-image-amd64 | awk '/Depends:/{print $2; exit}')
  [ -n "$kpkg" ] || die "run apt-get update first"
  ( cd "$CACHE/debs"
    for p in $kpkg $PKGS; do ls "${p}"_*.deb >/dev/null 2>&1 || apt-get -q download "$p" 2>&1 | grep -v '^W:' || true; done )
  echo "download: $(du -sh "$CACHE/debs" | cut -f1)"
  # kernel
  dpkg-deb -x "$CACHE"/debs/"$kpkg"_*.deb "$CACHE/kernel"
  local kver; kver=$(ls "$CACHE/kernel/lib/modules"); echo "$kver" > "$CACHE/kver"
  # An uncompressed ELF kernel boots by PVH: saves about 4 s of xz decompression under TCG.
  python3 "$HERE/extract-vmlinux.py" "$CACHE/kernel/boot/vmlinuz-$kver" "$CACHE/vmlinux"
  # root tree
  rm -rf "$CACHE/root"; mkdir -p "$CACHE/root"
  local d; for d in bin sbin lib lib64; do mkdir -p "$CACHE/root/usr/$d"; ln -s "usr/$d" "$CACHE/root/$d"; done
  for p in $PKGS; do
    rm -rf "$CACHE/x"; mkdir "$CACHE/x"; dpkg-deb -x "$CACHE"/debs/"$p"_*.deb "$CACHE/x"
    # keep programs, libraries and rdma configuration only (merged-/usr layout)
    for d in bin sbin lib lib64; do
      [ -d "$CACHE/x/$d" ] && cp -a "$CACHE/x/$d/." "$CACHE/root/usr/$d/"
      [ -d "$CACHE/x/usr/$d" ] && cp -a "$CACHE/x/usr/$d/." "$CACHE/root/usr/$d/"
    done
    [ -d "$CACHE/x/etc/libibverbs.d" ] && mkdir -p "$CACHE/root/etc" && cp -a "$CACHE/x/etc/libibverbs.d" "$CACHE/root/etc/"
  done
  rm -rf "$CACHE/x"; local R="$CACHE/root"
  # Only the providers of software devices; no gconv, no locale, no udev rules.
  find "$R/usr/lib" -path '*libibverbs/*' -name '*.so' ! -name 'librxe*' ! -name 'libsiw*' -delete
  find "$R/etc/libibverbs.d" -type f ! -name 'rxe*' ! -name 'siw*' -delete
  rm -rf "$R"/usr/lib/x86_64-linux-gnu/{gconv,perl*,audit} "$R"/usr/lib/{udev,systemd,modprobe.d,locale} \
         "$R"/usr/lib/x86_64-linux-gnu/{libmlx,libefa,libmana}* 2>/dev/null || true
  # perftest links libmlx5/libefa: keep those two
  for p in ibverbs-providers; do
    rm -rf "$CACHE/x"; mkdir "$CACHE/x"; dpkg-deb -x "$CACHE"/debs/"$p"_*.deb "$CACHE/x"
    cp -a "$CACHE"/x/usr/lib/x86_64-linux-gnu/{libmlx5,libefa}.so* "$R/usr/lib/x86_64-linux-gnu/"; rm -rf "$CACHE/x"
  done
  mkdir -p "$R"/{proc,sys,dev,run,tmp,root,etc,var/run}
  # modules
  local m f dir="$CACHE/kernel"
  # the host may have no kmod package: use the one just unpacked (a multi-call binary)
  km() { local n=$1; shift; ( export LD_LIBRARY_PATH="$R/usr/lib/x86_64-linux-gnu"; exec -a "$n" "$R/usr/bin/kmod" "$@" ); }
  km depmod -b "$dir" "$kver"
  : > "$CACHE/modlist"
  for m in $MODS; do
    km modprobe -d "$dir" -S "$kver" --show-depends "$m" | awk '/^insmod/{print $2}'
  done | awk '!s[$0]++' > "$CACHE/modlist"
  mkdir -p "$R/mods"; : > "$R/mods/order"
  while read -r f; do cp "$f" "$R/mods/"; basename "$f" >> "$R/mods/order"; done < "$CACHE/modlist"
  install -m 755 "$HERE/guest-init" "$R/init"; ln -sf dash "$R/usr/bin/sh"
  rm -rf "$CACHE/kernel"   # 400 MB; the .deb stays
  ( cd "$R" && find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0 ) > "$CACHE/initramfs.cpio"
  echo "initramfs: $(du -h "$CACHE/initramfs.cpio" | cut -f1), kernel: $(du -h "$CACHE/vmlinux" | cut -f1), $(wc -l < "$CACHE/modlist") modules"
}

# copy_libs CMD DEST: the loader and the libraries CMD needs, kept at their host paths under DEST;
# guest-init copies those that the guest does not have.
copy_libs() {
  local bin=$1 dest=$2 l
  { ldd "$bin" 2>/dev/null || true; } | { grep -oE '/[^ ]+' || true; } | sort -u | while read -r l; do
    mkdir -p "$dest/$(dirname "$l")"; cp -L "$l" "$dest/$l"
  done
}

launch() {  # launch CTLDIR EXTRA_QEMU_ARGS...   (uses globals); exit status = the guest command's
  local ctl=$1; shift
  local args=() i=0 s
  args+=(-fsdev "local,id=ctl,path=$ctl,security_model=none" -device virtio-9p-pci,fsdev=ctl,mount_tag=ctl)
  for s in "${SHARES[@]}"; do
    args+=(-fsdev "local,id=s$i,path=$s,security_model=none,multidevs=remap" -device "virtio-9p-pci,fsdev=s$i,mount_tag=s$i")
    i=$((i + 1))
  done
  local append="console=ttyS0 panic=-1 nokaslr mitigations=off tsc=reliable random.trust_cpu=on net.ifnames=0"
  [ -n "${VERBOSE:-}" ] && append+=" ignore_loglevel" || append+=" quiet loglevel=4"
  local rc=0
  timeout -k 5 "$TIMEOUT" $QEMU -M pc -accel "$ACCEL" -cpu "$CPU" -m "$MEM" -smp "$CPUS" \
    -nographic -no-reboot -nodefaults -monitor none \
    -serial "file:$ctl/console.log" \
    -device isa-debug-exit,iobase=0x501,iosize=1 \
    -kernel "$CACHE/vmlinux" -initrd "$CACHE/initramfs.cpio" -append "$append" \
    "${args[@]}" "$@" </dev/null || rc=$?
  # isa-debug-exit makes qemu exit with (v<<1)|1; the exact status is in ctl/rc.
  if [ -s "$ctl/rc" ]; then return "$(cat "$ctl/rc")"; fi
  echo "vm.sh: guest died (qemu status $rc); console:" >&2; tail -20 "$ctl/console.log" >&2
  [ "$rc" = 124 ] && return 124 || return 125
}

# console CTLDIR STATUS: the kernel's log if it was asked for, its errors if something failed.
console() {
  if [ -n "$VERBOSE" ]; then cat "$1/console.log" >&2; elif [ "$2" != 0 ]; then tail -20 "$1/console.log" >&2; fi
}

# quoted WORD: as a POSIX shell reads it back. (bash's %q writes what dash does not know.)
quoted() { local q="'\\''"; printf "'%s' " "${1//\'/$q}"; }

prepare() { # prepare CTLDIR : writes what the guest's init reads
  local ctl=$1 i=0 s
  mkdir -p "$ctl/lib"
  local b; b=$(command -v "${CMD[0]}" 2>/dev/null || echo "${CMD[0]}"); [ -e "$b" ] && copy_libs "$b" "$ctl/lib"
  for b in "${EXTRA_BINS[@]}"; do copy_libs "$b" "$ctl/lib"; done
  { for s in "${SHARES[@]}"; do echo "s$i $s"; i=$((i + 1)); done; } > "$ctl/shares"
  { echo "NET=$NET"; echo "MTU=$MTU"; echo "DELAY=$DELAY"; echo "LOSS=$LOSS"; } > "$ctl/conf"
  { echo '#!/bin/sh'; echo "cd $(quoted "$PWD")"
    for e in "${ENVIRONMENT[@]}"; do echo "export $(quoted "$e")"; done
    for e in "${CMD[@]}"; do quoted "$e"; done; echo; } > "$ctl/cmd.sh"
  : > "$ctl/rc"; : > "$ctl/console.log"; : > "$ctl/stdout"
}

[ $# -ge 1 ] || { sed -n 2,30p "$0"; exit 2; }
MODE=$1; shift
SHARES=(); EXTRA_BINS=(); ENVIRONMENT=(); NET=veth; DELAY=; LOSS=; CPUS=4; MEM=1024; MTU=4200; TIMEOUT=300; VERBOSE=; CMD=()
while [ $# -gt 0 ]; do case $1 in
  --share) SHARES+=("$(realpath "$2")"); shift 2;;
  --env) ENVIRONMENT+=("$2"); shift 2;;
  --lib-of) EXTRA_BINS+=("$2"); shift 2;;   # also carry the libraries of this program
  --net) NET=$2; shift 2;;  --delay) DELAY=$2; shift 2;;  --loss) LOSS=$2; shift 2;;
  --cpus) CPUS=$2; shift 2;; --mem) MEM=$2; shift 2;; --mtu) MTU=$2; shift 2;;
  --timeout) TIMEOUT=$2; shift 2;; --verbose) VERBOSE=1; shift;;
  --) shift; CMD=("$@"); break;;
  *) die "unknown option $1";;
esac; done
[ ${#SHARES[@]} -gt 0 ] || SHARES=("$PWD")

case $MODE in
build) build;;
exec)
  [ "$CACHE/initramfs.cpio" -nt "$HERE/vm.sh" ] || build >&2
  [ ${#CMD[@]} -gt 0 ] || die "no command"
  W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
  prepare "$W"
  rc=0; launch "$W" || rc=$?
  cat "$W/stdout"; console "$W" $rc
  exit $rc;;
pair)
  [ "$CACHE/initramfs.cpio" -nt "$HERE/vm.sh" ] || build >&2
  [ ${#CMD[@]} -gt 0 ] || die "no command"
  W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
  NET=eth
  for r in 0 1; do
    mkdir "$W/$r"; prepare "$W/$r"; echo "RANK=$r" >> "$W/$r/conf"
  done
  # datagram Unix sockets: no listen/connect order to respect, frame boundaries kept
  dg() { echo "-netdev dgram,id=n0,local.type=unix,local.path=$W/net$1,remote.type=unix,remote.path=$W/net$2 -device virtio-net-pci,netdev=n0,mac=52:54:00:00:00:0$1,host_mtu=$MTU"; }
  launch "$W/0" $(dg 0 1) & P0=$!
  launch "$W/1" $(dg 1 0) & P1=$!
  rc0=0; rc1=0; wait $P0 || rc0=$?; wait $P1 || rc1=$?
  rc=$(( rc0 > rc1 ? rc0 : rc1 ))
  for r in 0 1; do echo "--- vm$r"; cat "$W/$r/stdout"; console "$W/$r" $rc; done
  exit $rc;;
*) die "unknown mode $MODE";;
esac
