# What: a guest's disk is a remote namespace that `nvmf serve-vhost` serves; the server is killed twice
# Kernels: stable backports
# Disk: vhost
# Seconds: 300
. "$LAB/lib.sh"

modprobe virtio_blk

# The one that is not the root disk: its serial is the beginning of the namespace's UUID.
for disk in /sys/block/vd*; do
    [ "$(cat "$disk/size")" = $((512 * 2048)) ] && device=/dev/${disk##*/}
done

serial() {
    [ "$(tr -d '\0' <"/sys/block/${device#/dev/}/serial" | wc -c)" = 20 ]
}

load() {
    fio --name=verify --filename=/mnt/verify --size=64M --rw=randwrite --bs=4k --direct=1 --ioengine=libaio \
        --iodepth=16 --verify=crc32c --verify_fatal=1 --do_verify=1 --numjobs=1 >/run/load.log 2>&1
}

through_kills() {
    load &
    load=$!
    for round in 1 2; do
        sleep 2
        host vhost_kill
        sleep 2
        kill -0 $load 2>/dev/null || break
    done
    wait $load || { cat /run/load.log; return 1; }
    grep -E 'err=' /run/load.log
}

tree() {
    cp -a /usr/share/perl5 /mnt/tree
    sync -f /mnt
    umount /mnt
    fsck.ext4 -fn "$device"
    mount "$device" /mnt
    diff -r /usr/share/perl5 /mnt/tree
}

must 'disk is there' test -b "$device"
must 'disk has a serial' serial
must 'file system is made' mkfs.ext4 -q -F "$device"
must 'file system is mounted' mount "$device" /mnt
must 'server killed twice under verified load' through_kills
must 'files are what was written' tree
must 'trim' fstrim -v /mnt
must unmounted umount /mnt
finish
