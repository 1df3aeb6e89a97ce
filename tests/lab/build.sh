#!/bin/sh
# Builds the kernel lab's guest from Debian packages: two kernels, siw for the older one, a userland, a root disk for
# both kernels, an initramfs for each.
#
#   build.sh FOLDER      needs root (debootstrap makes device nodes and changes root) and a network
#
# Leaves kernel-NAME and initramfs-NAME in FOLDER, for NAME stable (the kernel of Debian's release) and backports (the
# newest of its backports), and root.img; removes everything else that it made. Installs nothing on this machine. Takes
# about five minutes.
set -eu

folder=$1
suite=trixie
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
userland=kmod,iproute2,rdma-core,ibverbs-utils,ibverbs-providers,rdmacm-utils,perftest,nvme-cli,fio,e2fsprogs,xfsprogs
userland=$userland,nbd-client,libnbd-bin,strace,ethtool,tcpdump,jq,util-linux,busybox-static,procps,gdb,ktls-utils,keyutils
userland=$userland,util-linux-extra,dbus,avahi-daemon,avahi-utils,glusterfs-server,nfs-kernel-server

work=$folder/build
rm -rf "$work"
mkdir -p "$work"
root=$work/root
builder=$work/builder

say() { printf '%s  %s\n' "$(date +%T)" "$*"; }

# `quietly LOG COMMAND...`: prints the end of the log if the command fails.
quietly() {
    log=$work/$1.log
    shift
    "$@" >"$log" 2>&1 || { tail -20 "$log"; exit 1; }
}

in_builder() { DEBIAN_FRONTEND=noninteractive LC_ALL=C chroot "$builder" "$@"; }

# `release_of ARCHIVE`: the release of the kernel in this archive.
release_of() {
    in_builder apt-cache -o APT::Default-Release="$1" depends linux-image-amd64 |
        sed -n 's/.*Depends: linux-image-\([0-9][^ ]*\).*/\1/p' | grep -m 1 . || { say "no kernel in $1" >&2; exit 1; }
}

# `kernel NAME RELEASE`: a kernel, and its modules in the guest's root.
kernel() {
    say "kernel $2"
    unpacked=$work/$1
    mkdir "$unpacked" "$builder/root/$1"
    # Its image and modules are in one package, or in several that the first one depends on.
    packages=$(in_builder apt-cache depends --recurse --important "linux-image-$2" | grep -o "linux-[a-z]*-$2\$" | sort -u)
    quietly download in_builder sh -c 'cd "/root/$1" && shift && apt-get download "$@"' sh "$1" $packages
    for package in "$builder/root/$1"/*.deb; do dpkg -x "$package" "$unpacked"; done
    modules=usr/lib/modules/$2
    for file in "$unpacked/boot/vmlinuz-$2" "$unpacked/$modules/vmlinuz"; do
        if [ -e "$file" ]; then mv "$file" "$folder/kernel-$1.new"; fi
    done
    # Leaves out drivers for hardware that the guest does not have: they take most of the space.
    for unused in gpu net/wireless net/ethernet media scsi iio input hid usb staging power mtd mmc platform leds video sound; do
        rm -rf "$unpacked/$modules/kernel/drivers/$unused"
    done
    rm -rf "$unpacked/$modules/kernel/sound"
    mkdir -p "$root/usr/lib/modules"
    mv "$unpacked/$modules" "$root/$modules"
    rm -rf "$unpacked"
}

# `siw RELEASE`: builds this module, which Debian does not, from Debian's source of the kernel.
siw() {
    say "siw for $1"
    source=linux-source-$(echo "$1" | cut -d. -f1,2)
    quietly apt in_builder apt-get -qq install --yes --no-install-recommends "linux-headers-$1" gcc-14 make
    quietly download in_builder sh -c 'cd /root && apt-get download "$1"' sh "$source"
    dpkg -x "$builder"/root/linux-source-*.deb "$work/source"
    tar -xJf "$work/source/usr/src/$source.tar.xz" -C "$builder/root" --strip-components=4 \
        --wildcards '*/drivers/infiniband/sw/siw/*'
    quietly siw in_builder make -C "/usr/src/linux-headers-$1" M=/root/siw CONFIG_RDMA_SIW=m CC=gcc-14 modules
    mkdir -p "$root/usr/lib/modules/$1/extra"
    cp "$builder/root/siw/siw.ko" "$root/usr/lib/modules/$1/extra/"
}

# `initramfs NAME RELEASE`: loads what the root disk and the shared folder need.
initramfs() {
    say "initramfs for $2"
    depmod -b "$root" "$2" 2>/dev/null || chroot "$root" depmod "$2"
    early=$work/initramfs
    rm -rf "$early"
    mkdir -p "$early/bin" "$early/modules" "$early/proc" "$early/sys" "$early/dev" "$early/root"
    cp "$root/bin/busybox" "$early/bin/busybox"
    order=0
    chroot "$root" modprobe --set-version "$2" --show-depends --all virtio_pci virtio_blk ext4 virtio_net 9p 9pnet_virtio virtio-rng |
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
        gzip -1 >"$folder/initramfs-$1.new"
}

say "userland ($suite)"
quietly debootstrap debootstrap --variant=minbase --include="$userland" "$suite" "$root" "$mirror"
rm -rf "$root"/var/cache/apt/archives/*.deb

say "kernels"
cp -a "$root" "$builder"
cp /etc/resolv.conf "$builder/etc/resolv.conf"
echo "deb $mirror $suite-backports main" >"$builder/etc/apt/sources.list.d/backports.list"
quietly update in_builder apt-get -qq update
stable=$(release_of $suite)
backports=$(release_of $suite-backports)
kernel stable "$stable"
siw "$stable"
kernel backports "$backports"
initramfs stable "$stable"
initramfs backports "$backports"

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
# The network of two machines, on which each has its own address.
lan=$(sed -n 's/.*lan=\([^ ]*\).*/\1/p' /proc/cmdline)
if [ -n "$lan" ]; then ip address add "$lan/24" dev eth1 && ip link set eth1 up; fi
hostname lab
exec setsid sh /share/begin </dev/ttyS1 >/dev/ttyS1 2>&1
INIT
chmod +x "$root/lab-init"
mkdir -p "$root/share" "$root/mnt"
: >"$root/etc/fstab"
# tlshd looks up the name of each peer, which must not wait for a name server.
printf '%s\n' '127.0.0.1 localhost' '10.0.2.2 host' '10.0.2.15 lab' >"$root/etc/hosts"
mke2fs -q -t ext4 -O ^has_journal -d "$root" "$folder/root.img.new" 2500M
for file in root.img kernel-stable initramfs-stable kernel-backports initramfs-backports; do mv "$folder/$file.new" "$folder/$file"; done
rm -rf "$work"
say "done: $stable, $backports"
