# What: what was flushed through our target survives a power cut of its disk; what was not flushed was in the disk's volatile cache
# Quick: yes
# Seconds: 240
. "$LAB/lib.sh"

disk=/sys/kernel/config/nullb/powercut
block=/dev/ublkb0

# A disk with a volatile cache of 64 MiB: powered off, it loses what is in the cache and keeps what was flushed.
make_disk() {
    modprobe null_blk nr_devices=0
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    mkdir "$disk"
    echo 256 >"$disk/size"
    echo 512 >"$disk/blocksize"
    echo 1 >"$disk/memory_backed"
    echo 64 >"$disk/cache_size"
    echo 1 >"$disk/discard"
    power_on
    [ "$(cat "/sys/block/$(basename "$node")/queue/write_cache")" = 'write back' ]
}

power_on() {
    echo 1 >"$disk/power"
    wait_for 50 node_is_there
    node=$(node)
}

# Newer kernels call the device as its folder in configfs is called.
node() {
    if [ -b "/dev/$(basename "$disk")" ]; then echo "/dev/$(basename "$disk")"; else echo "/dev/nullb$(cat "$disk/index")"; fi
}
node_is_there() { [ -b "$(node)" ]; }

# Exports `path`, which is the disk itself, or a file on it.
serve() {
    cat >/run/target.toml <<CONFIG
[target]
workers = 1
buffer_memory = "16MiB"

[[listener]]
address = "127.0.0.1:4420"

[[subsystem]]
nqn = "$NQN"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
path = "$1"
uuid = "6e766d66-0000-4000-8000-0000000000aa"
CONFIG
    nvmf-target serve --config /run/target.toml >>/run/target.log 2>&1 </dev/null &
    echo $! >/run/target.pid
    wait_for 50 nvmf discover -a 127.0.0.1 -s 4420 || { tail -5 /run/target.log; return 1; }
}

attach() {
    modprobe ublk_drv
    nvmf attach -a 127.0.0.1 -s 4420 -n "$NQN" --as ublk
    [ "$(cat /sys/block/ublkb0/queue/write_cache)" = 'write back' ]
}

# The target's machine loses its power, and comes back: the process goes first, so that it flushes nothing.
power_cut() {
    kill -9 "$(cat /run/target.pid)"
    wait_for 50 target_is_gone
    mounted=no
    if mountpoint -q /mnt; then mounted=yes; fi
    echo 0 >"$disk/power"
    if [ $mounted = yes ]; then umount -l /mnt; fi
    power_on
    if [ $mounted = yes ]; then mount "$node" /mnt; fi
}

target_is_gone() { ! kill -0 "$(cat /run/target.pid)"; }

# `pattern NAME`: 4 MiB that are this name over and over.
pattern() { yes "$1" | head -c 4194304; }
write() { pattern "$1" | dd of=$block bs=64k iflag=fullblock oflag=direct,seek_bytes seek="$2" status=none "$3"; }
holds() {
    pattern "$1" >/run/expected
    dd if=$block bs=64k iflag=direct,skip_bytes skip="$2" count=64 status=none | cmp - /run/expected
}

# Returns what is on the disk, past every cache.
through() {
    serve "$1"
    attach
    write before 0 conv=notrunc,fsync
    write lost 0 conv=notrunc
    holds lost 0
    power_cut
    serve "$1"
    holds before 0
    echo 'an unflushed write went with the power: the cut is real'

    write flushed 0 conv=notrunc,fsync
    write elsewhere 8388608 conv=notrunc,fsync
    power_cut
    serve "$1"
    holds flushed 0
    holds elsewhere 8388608

    # O_DSYNC becomes FUA.
    pattern forced | dd of=$block bs=64k iflag=fullblock oflag=direct,dsync conv=notrunc status=none
    power_cut
    serve "$1"
    holds forced 0

    fallocate --zero-range --offset 0 --length 4194304 $block
    blockdev --flushbufs $block
    dd if=/dev/null of=$block conv=notrunc,fsync status=none
    power_cut
    serve "$1"
    dd if=$block bs=64k iflag=direct count=64 status=none | cmp -n 4194304 - /dev/zero

    nvmf detach --all
    kill "$(cat /run/target.pid)"
    wait_for 50 target_is_gone
}

file_on_the_disk() {
    mkfs.ext4 -q "$node"
    mount "$node" /mnt
    truncate -s 64M /mnt/disk.img
    # The file's blocks are there: what is tested is the data's way to the disk, and a power cut may take an allocation that nobody flushed.
    dd if=/dev/zero of=/mnt/disk.img bs=1M count=64 conv=notrunc,fsync status=none
    through /mnt/disk.img
    umount /mnt
}

must 'a disk with a volatile cache' make_disk
node=$(node)
step 'a block device through power cuts' through "$node"
step 'a file through power cuts' file_on_the_disk
finish
