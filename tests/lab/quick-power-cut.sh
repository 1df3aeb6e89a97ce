# What: what was flushed, or written with FUA, survives a power cut of the target's disk; what was neither is lost
# Quick: yes
# Seconds: 300
# Known: kernel BUG at drivers/infiniband/core/iwcm.c
. "$LAB/lib.sh"

# A disk with a volatile write cache. Powered off, it forgets what is in the cache. It caches only blocks that were
# never written to its medium; other blocks it writes through. Every write below therefore goes to a place of its own,
# which reads as zeroes if the write is lost.
disk=/sys/kernel/config/nullb/powercut
node=/dev/powercut
block=/dev/ublkb0
size=4194304

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
    [ "$(cat "/sys/block/$(basename $node)/queue/write_cache")" = 'write back' ]
}

power_on() {
    echo 1 >"$disk/power"
    wait_for 50 test -b $node
}

# Exports `path`, which is the disk itself, or a file on it.
serve() {
    cat >/run/target.toml <<CONFIG
[target]
workers = 1
buffer_memory = "16MiB"

[[listener]]
address = "$GUEST:4420"
provider = "iwarp"

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
    wait_for 50 nvmf discover -a "$GUEST" --provider iwarp || { tail -5 /run/target.log; return 1; }
}

attach() {
    nvmf attach -a "$GUEST" --provider iwarp -n "$NQN" --as ublk
    [ "$(cat /sys/block/ublkb0/queue/write_cache)" = 'write back' ]
}

# The target's machine loses its power, and it comes back. The target is killed first, so that it flushes nothing. A
# file system is shut down before its disk goes, because the kernel would flush it.
power_cut() {
    kill -9 "$(cat /run/target.pid)"
    wait_for 50 target_is_gone
    mounted=no
    if mountpoint -q /mnt; then mounted=yes; fi
    if [ $mounted = yes ]; then xfs_io -x -c shutdown /mnt; fi
    echo 0 >"$disk/power"
    if [ $mounted = yes ]; then umount /mnt; fi
    power_on
    if [ $mounted = yes ]; then mount_disk; fi
}

target_is_gone() { ! kill -0 "$(cat /run/target.pid)"; }

# `write NAME MIB [dd's options]`: writes NAME over and over, to $size bytes at MIB.
pattern() { yes "$1" | head -c $size; }
write() {
    written=$1 at=$2
    shift 2
    pattern "$written" | dd of=$block bs=64k iflag=fullblock oflag=direct,seek_bytes seek=$((at << 20)) status=none \
        conv=notrunc "$@"
}

# `holds NAME MIB`, `is_lost MIB`: what is there.
read_back() { dd if=$block bs=64k iflag=direct,skip_bytes skip=$(($1 << 20)) count=$((size / 65536)) status=none; }
holds() {
    pattern "$1" >/run/expected
    read_back "$2" | cmp - /run/expected
}
is_lost() { read_back "$1" | cmp -n $size - /dev/zero; }

# Writes as `write` does, by a single command of the kernel's initiator: with FUA if that is said.
write_command() {
    pattern "$1" | head -c 65536 >/run/data
    block_size=$(blockdev --getss /dev/nvme0n1)
    nvme write /dev/nvme0n1 --start-block=$((($2 << 20) / block_size)) --block-count=$((65536 / block_size - 1)) \
        --data-size=65536 --data=/run/data $3
}

flushed() {
    write flushed 0 conv=notrunc,fsync
    write unflushed 8
    holds unflushed 8
    power_cut
    serve "$1"
    holds flushed 0
    is_lost 8
}

# Through the page cache; and with O_DSYNC, which becomes FUA and a flush.
synchronised() {
    pattern cached | dd of=$block bs=64k iflag=fullblock oflag=seek_bytes seek=$((16 << 20)) status=none \
        conv=notrunc,fsync
    power_cut
    serve "$1"
    holds cached 16
    write synchronous 24 oflag=dsync
    power_cut
    serve "$1"
    holds synchronous 24
}

# FUA alone: no flush follows. Connecting is tried again, because siw binds the port that the RDMA CM chose, which a
# TCP socket of this machine may have.
forced() {
    wait_for 10 nvme connect -t rdma -a "$GUEST" -s 4420 -n "$NQN" -i 1
    wait_for 50 test -b /dev/nvme0n1
    write_command forced 32 --force-unit-access
    write_command cached 40 ''
    power_cut
    nvme disconnect -n "$NQN"
    serve "$1"
    size=65536
    holds forced 32
    is_lost 40
}

# Detaching flushes.
detached() {
    write detached 48
    nvmf detach --all
    power_cut
    serve "$1"
    attach
    holds detached 48
}

through() {
    step "$1: starts" started "$2"
    step "$1: flushed" flushed "$2"
    step "$1: synchronised" synchronised "$2"
    step "$1: FUA" forced "$2"
    step "$1: detached" detached "$2"
    step "$1: ends" ended
}

started() {
    serve "$1"
    attach
}

ended() {
    nvmf detach --all
    kill "$(cat /run/target.pid)"
    wait_for 50 target_is_gone
}

# With a file whose blocks are allocated but not written. The file system's journal is committed by nobody but a flush.
file_on_the_disk() {
    blkdiscard $node
    mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 $node
    mount_disk
    fallocate -l 64M /mnt/disk.img
    sync -f /mnt
}
mount_disk() { mount -o commit=300,noatime $node /mnt; }

must 'a disk with a volatile cache' make_disk
must 'modules' modprobe -a ublk_drv nvme-rdma
must 'siw' rdma_device siw
through 'block device' $node
must 'a file on the disk' file_on_the_disk
through file /mnt/disk.img
umount /mnt
finish
