# What: fio in a guest: a disk that `nvmf serve-vhost` serves, beside the guest's virtio disk on a file in memory
# Disk: vhost
# Seconds: 600
# Alone: yes
. "$LAB/figures.sh"
over=virtio
works='randread 4k 32
randread 4k 1'

# `disk_of MIB`: the virtio disk of this size.
disk_of() {
    for disk in /sys/block/vd*; do
        [ "$(cat "$disk/size")" = $(($1 * 2048)) ] && echo "/dev/${disk##*/}" && return
    done
    return 1
}

disks() {
    disk_of 512 >/run/device.vhost
    disk_of 256 >/run/device.virtio
    # A block that nobody has written might be read from nowhere.
    for kind in vhost virtio; do
        dd if=/dev/urandom of="$(cat /run/device.$kind)" bs=1M count=256 oflag=direct status=none
    done
}

round() { in_turn memory virtio vhost; }

modprobe virtio_blk
must 'both disks are there' disks
rounds
report virtio/memory vhost/memory
finish
