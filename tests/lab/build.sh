#!/bin/sh
# Builds the kernel lab's guest from Debian packages: a kernel, siw, a userland, a root disk, an initramfs.
#
#   build.sh FOLDER      needs root (debootstrap makes device nodes and changes root) and a network
#
# Leaves kernel, initramfs and root.img in FOLDER, and removes everything else that it made. Installs nothing on this
# machine. Takes about five minutes.
set -eu

folder=$1
suite=trixie
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
userland=kmod,iproute2,rdma-core,ibverbs-utils,ibverbs-providers,rdmacm-utils,perftest,nvme-cli,fio,e2fsprogs,xfsprogs
userland=$userland,nbd-client,libnbd-bin,strace,ethtool,tcpdump,jq,util-linux,busybox-static,procps,gdb,ktls-utils,keyutils

work=$folder/build
rm -rf "$work"
mkdir -p "$work"
root=$work/root
builder=$work/builder

say() { printf '%s  %s\n' "$(date +%T)" "$*"; }

say "userland ($suite)"
debootstrap --variant=minbase --include="$userland" "$suite" "$root" "$mirror" >"$work/debootstrap.log" 2>&1 ||
    { tail -20 "$work/debootstrap.log"; exit 1; }
rm -rf "$root"/var/cache/apt/archives/*.deb

say "kernel, and what builds a module for it"
cp -a "$root" "$builder"
cp /etc/resolv.conf "$builder/etc/resolv.conf"
in_builder() { DEBIAN_FRONTEND=noninteractive LC_ALL=C chroot "$builder" "$@"; }
in_builder apt-get -qq update
image=$(in_builder apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-6[^ ]*\).*/\1/p' | head -1)
release=${image#linux-image-}
(cd "$builder/root" && in_builder sh -c "cd /root && apt-get -qq download $image linux-source-6.12 >/dev/null 2>&1")
mkdir "$work/image" "$work/source"
dpkg -x "$builder"/root/linux-image-*.deb "$work/image"
in_builder apt-get -qq install --yes --no-install-recommends "linux-headers-$release" gcc-14 make >"$work/apt.log" 2>&1 ||
    { tail -20 "$work/apt.log"; exit 1; }

say "siw for $release, from Debian's kernel source"
dpkg -x "$builder"/root/linux-source-*.deb "$work/source"
tar -xJf "$work"/source/usr/src/linux-source-6.12.tar.xz -C "$builder/root" --strip-components=4 \
    --wildcards '*/drivers/infiniband/sw/siw/*'
in_builder make -C "/usr/src/linux-headers-$release" M=/root/siw CONFIG_RDMA_SIW=m CC=gcc-14 modules >"$work/siw.log" 2>&1 ||
    { tail -20 "$work/siw.log"; exit 1; }

say "modules"
modules=usr/lib/modules/$release
mkdir -p "$root/$modules"
cp -a "$work/image/$modules/." "$root/$modules/"
# Removes drivers for hardware that the guest does not have: they take most of the space.
for unused in gpu net/wireless net/ethernet media scsi iio input hid usb staging power mtd mmc platform leds video sound; do
    rm -rf "$root/$modules/kernel/drivers/$unused"
done
rm -rf "$root/$modules/kernel/sound"
mkdir -p "$root/$modules/extra"
cp "$builder/root/siw/siw.ko" "$root/$modules/extra/"
depmod -b "$root" "$release" 2>/dev/null || chroot "$root" depmod "$release"

say "initramfs"
early=$work/initramfs
mkdir -p "$early/bin" "$early/modules" "$early/proc" "$early/sys" "$early/dev" "$early/root"
cp "$root/bin/busybox" "$early/bin/busybox"
order=0
chroot "$root" modprobe --set-version "$release" --show-depends --all virtio_pci virtio_blk ext4 virtio_net 9p 9pnet_virtio virtio-rng |
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
    order=$((order + 1))
    name=$(printf '%03d' "$order")
    case $module in
    *.xz) xz -dc "$root$module" >"$early/modules/$name.ko" ;;
    *) cp "$root$module" "$early/modules/$name.ko" ;;
    esac
done
cat >"$early/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in /modules/*.ko; do /bin/busybox insmod "$module"; done
/bin/busybox mount -t ext4 -o noatime /dev/vda /root
/bin/busybox umount /proc /sys
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /lab-init
INIT
chmod +x "$early/init"
(cd "$early" && find . | cpio --quiet -o -H newc 2>/dev/null || find . | "$root/bin/busybox" cpio -o -H newc 2>/dev/null) |
    gzip -1 >"$folder/initramfs.new"

say "root disk"
cat >"$root/lab-init" <<'INIT'
#!/bin/sh
# The first process: mounts the usual file systems and the folder shared with the host, then runs what lies in it.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mkdir -p /share
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /share
ip link set lo up
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.2.2
hostname lab
exec setsid sh /share/begin </dev/ttyS1 >/dev/ttyS1 2>&1
INIT
chmod +x "$root/lab-init"
mkdir -p "$root/share" "$root/mnt"
: >"$root/etc/fstab"
mke2fs -q -t ext4 -O ^has_journal -d "$root" "$folder/root.img.new" 2500M
cp "$work/image/boot/vmlinuz-$release" "$folder/kernel.new"
for file in initramfs root.img kernel; do mv "$folder/$file.new" "$folder/$file"; done
rm -rf "$work"
say "done: $release"
