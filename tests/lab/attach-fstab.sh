#!/bin/sh
# What: an ext4 in fstab on a disk of `nvmf attach --persist`: its server killed and upgraded, three reboots, unmounted in order
# Kernels: stable backports
# System: systemd
# Seconds: 900
. "$LAB/lib.sh"

# Outlives the reboots: how many there were, and failures.
STAGE=/var/lib/lab-stage
UNIT=nvmf-attach@disk1

installed() {
    dpkg --install /share/packages/nvmf-target_*.deb /share/packages/nvmf_*.deb
    nvmf show-hostnqn
    cat >/etc/nvmf/target.toml <<TOML
[target]
workers = 1
[[listener]]
address = "$GUEST:4420"
transport = "tcp"
[[subsystem]]
nqn = "$NQN"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
path = "/srv/nvmf/disk1.img"
size = "128MiB"
create = true
TOML
    # Here the target is on this machine: it comes first, and goes last.
    mkdir -p /etc/systemd/system/nvmf-attach@.service.d
    printf '[Unit]\nWants=nvmf-target.service\nAfter=nvmf-target.service\n' \
        >/etc/systemd/system/nvmf-attach@.service.d/lab.conf
    systemctl daemon-reload
    systemctl enable --now nvmf-target
}

attached() {
    nvmf attach --persist disk1 -t tcp -a $GUEST -n $NQN --keep-alive-tmo 5
    cat /etc/nvmf/attach.d/disk1.toml
    device=$(nvmf list -o json | sed -n 's/.*"device": *"\([^"]*\)".*/\1/p')
    uuid=$(nvmf list -o json | sed -n 's/.*"uuid": *"\([^"]*\)".*/\1/p')
    wait_for 50 test -b "/dev/disk/by-id/nvme-uuid.$uuid"
    [ "$(readlink -f "/dev/disk/by-id/nvme-uuid.$uuid")" = "$device" ]
    mkfs.ext4 -q -F "$device"
    mkdir -p /data
    echo "/dev/disk/by-id/nvme-uuid.$uuid /data ext4 _netdev,nofail,x-systemd.requires=$UNIT.service 0 2" >>/etc/fstab
    systemctl daemon-reload
    systemctl start data.mount
    mountpoint /data
    cp -a /usr/share/perl5 /data/tree 2>/dev/null || cp -a /usr/share/doc /data/tree
    cp /bin/busybox /data/busybox
    sync
}

pid() { systemctl show $UNIT -P MainPID; }
served_by_another_than() { [ "$(pid)" != "$1" ] && nvmf list | grep -q ' live '; }

# systemd starts another server, and the file system stays mounted.
server_killed() {
    before=$(pid)
    kill -9 "$before"
    dd if=/dev/urandom of=/data/random bs=1M count=8 conv=fsync
    wait_for 100 served_by_another_than "$before"
    [ "$(systemctl is-active $UNIT)" = active ]
    nvmf list
}

upgraded() {
    before=$(pid)
    nvmf upgrade "$(nvmf list -o json | sed -n 's/.*"device": *"\([^"]*\)".*/\1/p')" || {
        journalctl --no-pager -o cat -u $UNIT | tail -40
        return 1
    }
    [ "$(pid)" != "$before" ]
    sha256sum /data/random >/data/sum
    sync
}

# Of the boot before: what was done before what.
line_of() { journalctl --boot -1 --no-pager | grep -n "$1" | tail -1 | cut -d: -f1; }

unmounted_in_order() {
    journalctl --boot -1 --no-pager | grep -i 'data\|nvmf\|network' | tail -30 | cut -c1-150
    [ "$(line_of 'Unmounted data.mount')" -lt "$(line_of "Stopped $UNIT.service")" ]
    [ "$(line_of "Stopped $UNIT.service")" -lt "$(line_of 'Stopped systemd-networkd.service')" ]
    fails journalctl --boot -1 --no-pager --grep 'I/O error|Buffer I/O|aborting journal'
}

mounted_again() {
    wait_for 300 mountpoint -q /data
    cmp /bin/busybox /data/busybox
    sha256sum --check --quiet /data/sum
    # It was clean: no journal was replayed.
    fails journalctl --boot --dmesg --no-pager --grep 'recovery complete|recovering journal'
    date >>/data/dates
}

reboot_now() {
    echo "$1 $failures" >$STAGE
    # As `systemctl reboot`, which asks logind.
    systemctl start --no-block --job-mode=replace-irreversibly reboot.target
    sleep 600
}

[ -e $STAGE ] || echo "0 0" >$STAGE
read -r boots failures <$STAGE
if [ "$boots" = 0 ]; then
    must 'packages are installed, and the target runs' installed
    must 'the disk is attached, now and at boot, and mounted' attached
    step 'the server is killed, and the file system goes on' server_killed
    must 'it is upgraded while it is mounted' upgraded
else
    step "reboot $boots: unmounted before the disk and the network went" unmounted_in_order
    must "reboot $boots: mounted again, clean" mounted_again
fi
[ "$boots" = 3 ] || reboot_now $((boots + 1))
finish
