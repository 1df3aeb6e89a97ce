#!/bin/sh
# Builds the root disk of a Debian system with systemd, for scenarios that install packages and reboot.
#
#   build.sh FOLDER LAB      needs root (debootstrap makes device nodes and changes root) and a network
#
# LAB is the folder of the lab's image (../build.sh), whose kernels, initramfs and modules it uses. Leaves root.img in
# FOLDER, and removes everything else that it made. Installs nothing on this machine. Takes about two minutes.
set -eu

folder=$1
lab=$2
suite=trixie
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
packages=systemd-sysv,udev,kmod,iproute2,nvme-cli,fio,e2fsprogs,busybox-static,init-system-helpers,procps

work=$folder/build
rm -rf "$work"
mkdir -p "$work"
root=$work/root

say() { printf '%s  %s\n' "$(date +%T)" "$*"; }

say "Debian ($suite)"
debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" >"$work/log" 2>&1 ||
    { tail -20 "$work/log"; exit 1; }
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*

say "modules"
debugfs -R "rdump /usr/lib/modules $root/usr/lib" "$lab/root.img" >"$work/log" 2>&1
for release in "$root"/usr/lib/modules/*; do
    [ -e "$release/modules.dep" ] || { cat "$work/log"; say "no modules in $release"; exit 1; }
done

say "root disk"
printf '#!/bin/sh\nexec /lib/systemd/systemd\n' >"$root/lab-init"
chmod +x "$root/lab-init"
mkdir -p "$root/share" "$root/var/log/journal"
echo 'share /share 9p trans=virtio,version=9p2000.L,msize=262144 0 0' >"$root/etc/fstab"
printf '%s\n' '127.0.0.1 localhost' '10.0.2.2 host' '10.0.2.15 lab' >"$root/etc/hosts"
echo lab >"$root/etc/hostname"
printf '[Match]\nMACAddress=52:54:00:12:34:56\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n' \
    >"$root/etc/systemd/network/lab.network"
# The network of two machines, of which this one is the first.
printf '[Match]\nMACAddress=52:54:00:12:35:01\n[Network]\nAddress=10.0.3.1/24\n' \
    >"$root/etc/systemd/network/lan.network"
# Each boot is of the same machine.
echo 6f3c3c1e5a1b4d0f9a2b64d0c5b1f0a7 >"$root/etc/machine-id"
cat >"$root/etc/systemd/system/lab.service" <<'UNIT'
[Unit]
Description=The lab's scenario
Wants=network-online.target
After=network-online.target local-fs.target
RequiresMountsFor=/share
[Service]
Type=oneshot
ExecStart=/bin/sh /share/begin
StandardInput=null
StandardOutput=tty
StandardError=inherit
TTYPath=/dev/ttyS1
TimeoutStartSec=infinity
Environment=HOME=/root TERM=dumb
[Install]
WantedBy=multi-user.target
UNIT
chroot "$root" systemctl -q enable lab.service systemd-networkd.service
for unneeded in getty@tty1.service serial-getty@ttyS0.service apt-daily.timer apt-daily-upgrade.timer \
    e2scrub_all.timer fstrim.timer dpkg-db-backup.timer; do
    chroot "$root" systemctl -q mask "$unneeded" || true
done
mke2fs -q -t ext4 -d "$root" "$folder/root.img.new" 2000M
mv "$folder/root.img.new" "$folder/root.img"
rm -rf "$work"
say done
