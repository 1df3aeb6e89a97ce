# An attached disk as the machine sees it, whatever makes it. A scenario sets
#
#   form    ublk | nbd
#   device  the node that is expected
#
# and calls `attached_disk`.

. "$LAB/lib.sh"

remote="-a 127.0.0.1 --trsvcid 4420 -n $NQN"

# Starts our target. Its file is on a tmpfs, which stays when the target is killed; its second namespace is read-only.
target() {
    mkdir -p /run/store
    mountpoint -q /run/store || mount -t tmpfs -o size=1g tmpfs /run/store
    truncate -s 8M /run/store/second.img
    cat >/run/target.toml <<CONFIG
[target]
workers = 1
buffer_memory = "16MiB"
control_socket = "/run/control"

[[listener]]
address = "127.0.0.1:4420"

[[subsystem]]
nqn = "$NQN"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
path = "/run/store/disk.img"
size = "512MiB"
create = true
block_size = 512

[[subsystem.namespace]]
nsid = 2
path = "/run/store/second.img"
read_only = true
CONFIG
    target_start
}

target_start() {
    nvmf-target serve --config /run/target.toml >>/run/target.log 2>&1 </dev/null &
    echo $! >/run/target.pid
    wait_for 50 nvmf discover -a 127.0.0.1 -s 4420 || { tail -5 /run/target.log; return 1; }
}

# `refused TEXT COMMAND...`: the command fails, and its output contains the text.
refused() {
    saying=$1
    shift
    fails "$@" >/run/said 2>&1
    cat /run/said
    grep -q -F "$saying" /run/said
}

target_kill() { kill -9 "$(cat /run/target.pid)"; }

# Attaches with `--as auto`, which must take the expected device.
attach() {
    nvmf attach $remote "$@" -o json >/run/attached.json
    cat /run/attached.json
    [ "$(jq -r .device /run/attached.json)" = "$device" ]
    [ "$(jq -r .state /run/attached.json)" = live ]
    dd if=$device of=/dev/null bs=4k count=1 iflag=direct status=none
}

detach() {
    nvmf detach "$@"
    gone
}

# The node does not exist, or has size 0 (nbd keeps its nodes).
gone() {
    [ ! -b $device ] || [ "$(blockdev --getsize64 $device)" = 0 ]
}

limit() { cat "/sys/block/$(basename $device)/queue/$1"; }

limits() {
    lsblk -o NAME,SIZE,LOG-SEC,PHY-SEC,MIN-IO,OPT-IO,DISC-GRAN,DISC-MAX,WSAME,ROTA,RO $device
    [ "$(blockdev --getsize64 $device)" = 536870912 ]
    [ "$(blockdev --getss $device)" = 512 ]
    [ "$(limit rotational)" = 0 ]
    [ "$(limit write_cache)" = 'write back' ]
    [ "$(limit fua)" = 1 ]
    [ "$(limit discard_max_bytes)" -gt 0 ]
    [ "$(limit write_zeroes_max_bytes)" -gt 0 ]
    [ $form != ublk ] || queues
}

# A queue for each processor (of which the guest has fewer than four), each with a thread that is kept to what it needs, and a
# connection: the target's port has one for its Admin queue and one for I/O.
queues() {
    queues=$(nproc)
    [ "$(ls /sys/block/$(basename $device)/mq | wc -l)" = "$queues" ]
    server=$(jq .pid /run/attached.json)
    [ "$(grep -l -s '^nvmf-ublk-[0-9]' /proc/$server/task/*/comm | wc -l)" = "$queues" ]
    for task in $(grep -l -s '^nvmf-ublk-[0-9]' /proc/$server/task/*/comm); do
        grep -q -x 'Seccomp:.2' "${task%comm}status"
    done
    [ "$(ss -Htn state established '( dport = 4420 )' | wc -l)" = $((2 * queues)) ]
}

listed() {
    nvmf list
    nvmf list | grep -q "^$device  *live "
    nvmf list -o json | jq -e --arg device $device '.disks[0].device == $device'
}

twice_is_refused() {
    refused "attached already, on $device" nvmf attach $remote
}

read_only() {
    nvmf attach $remote --nsid 2 --as $form -o json >/run/second.json
    second=$(jq -r .device /run/second.json)
    [ "$(blockdev --getro $second)" = 1 ]
    dd if=$second of=/dev/null bs=64k count=1 iflag=direct status=none
    fails dd if=/dev/zero of=$second bs=4k count=1 oflag=direct status=none
    nvmf detach $second
}

# The namespace turns read-only while it is attached, and can be written again.
turns_read_only() {
    nvmf-target ctl --socket /run/control namespace set "$NQN" 1 --read-only true
    wait_for 50 kernel_says_read_only 1
    nvmf info $device | grep -x 'access: *read-only'
    list_says live
    fails dd if=/dev/zero of=$device bs=4k count=1 oflag=direct status=none
    dd if=$device of=/dev/null bs=64k count=1 iflag=direct status=none
    nvmf-target ctl --socket /run/control namespace set "$NQN" 1 --read-only false
    wait_for 50 kernel_says_read_only 0
    dd if=/dev/zero of=$device bs=4k count=1 oflag=direct status=none
}

# The file grows while the disk is attached. A kernel whose ublk cannot be told (before 6.16) has the new size at the next attach.
grows() {
    truncate -s 640M /run/store/disk.img
    if can_be_told_of_sizes; then
        wait_for 50 has_bytes 671088640
    else
        wait_for 50 list_says_why 'has grown to 671088640 bytes'
        has_bytes 536870912
        nvmf detach $device
        wait_for 50 gone
        attach
        has_bytes 671088640
    fi
    list_says live
    head -c 1048576 /dev/urandom >/run/random
    dd if=/run/random of=$device bs=64k seek=10224 oflag=direct status=none
    dd if=$device bs=64k skip=10224 iflag=direct status=none | cmp - /run/random
}

can_be_told_of_sizes() {
    [ $form != ublk ] || [ "$(printf '%s\n' 6.16 "$(uname -r)" | sort -V | head -n 1)" = 6.16 ]
}

has_bytes() { [ "$(blockdev --getsize64 $device)" = "$1" ]; }
list_says_why() { nvmf list -o json | jq -e --arg why "$1" '.disks[0].reason | contains($why)'; }

kernel_says_read_only() { [ "$(blockdev --getro $device)" = "$1" ]; }

verified() { DEV=$device fio --output-format=terse --terse-version=3 "$LAB/verify.fio" | cut -d';' -f3,5,8,49; }

file_system() {
    case $1 in
    ext4) mkfs.ext4 -q -F $device ;;
    xfs) modprobe xfs && mkfs.xfs -q -f $device ;;
    esac
    mount -t "$1" $device /mnt
    cp -a /usr/share/perl5 /mnt/tree
    sync
    refused 'is in use: mounted on /mnt' nvmf detach $device
    umount /mnt
    mount -t "$1" $device /mnt
    diff -r /usr/share/perl5 /mnt/tree
    fstrim -v /mnt
    umount /mnt
    case $1 in
    ext4) fsck.ext4 -fn $device ;;
    xfs) xfs_repair -n $device ;;
    esac
}

# Writes an MBR partition table with one partition of 100 MiB.
partitions() {
    wipefs -qa $device
    printf '\000\000\000\000\203\000\000\000\000\010\000\000\000\040\003\000' |
        dd of=$device bs=1 seek=446 conv=notrunc status=none
    printf '\125\252' | dd of=$device bs=1 seek=510 conv=notrunc status=none
    blockdev --rereadpt $device
    partition=${device}p1
    [ "$(blockdev --getsize64 $partition)" = 104857600 ]
    mkfs.ext4 -q -F $partition
    mount $partition /mnt
    refused 'mounted on /mnt' nvmf detach $device
    umount /mnt
    blkdiscard -f -z -o 0 -l 1048576 $device
    blockdev --rereadpt $device
}

pattern() {
    yes 'nvmf lab' | head -c 1048576 >/run/pattern
    dd if=/run/pattern of=$device bs=64k oflag=direct conv=fsync status=none
}

discard() {
    pattern
    blkdiscard -o 524288 -l 524288 $device
    dd if=$device bs=64k count=8 iflag=direct status=none | cmp -n 524288 - /run/pattern
    blkdiscard $device
}

zeroes() {
    pattern
    blkdiscard -z -o 65536 -l 131072 $device
    dd if=$device bs=64k skip=1 count=2 iflag=direct status=none | cmp -n 131072 - /dev/zero
    dd if=$device bs=64k count=1 iflag=direct status=none | cmp -n 65536 - /run/pattern
    blkdiscard -z -l 67108864 $device
    cmp -n 67108864 $device /dev/zero
}

# After a detach, the target has what was written through the page cache.
detach_writes_back() {
    head -c 8388608 /dev/urandom >/run/random
    dd if=/run/random of=$device bs=1M status=none
    detach $device
    nvmf read $remote --nsid 1 --length 8388608 | cmp - /run/random
    attach
}

open_is_refused() {
    sleep 100 <$device &
    sleeper=$!
    refused "is in use: open in sleep (process $sleeper)" nvmf detach $device
    kill $sleeper
    wait $sleeper || true
}

load() {
    fio --name=load --filename=$device --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=16 --size=32m \
        --time_based=1 --runtime="$1" --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_backlog=64 --rate_iops=400 --eta=never --output=/run/load.log
}

# No write is lost or fails; only `nvmf list` shows that the target was away.
target_killed_under_load() {
    load 8 &
    load=$!
    sleep 2
    target_kill
    wait_for 50 list_says reconnecting
    kill -0 $load
    target_start
    wait_for 50 list_says live
    wait $load || { cat /run/load.log; return 1; }
    grep -E 'err=|IOPS' /run/load.log
}

list_says() { nvmf list -o json | jq -e --arg state "$1" '.disks[0].state == $state'; }

server() { nvmf list -o json | jq '.disks[0].pid'; }
served_by_another_than() { list_says live && [ "$(server)" != "$1" ]; }

# Kills the disk's server, and waits until another has taken its place.
server_kill() {
    killed=$(server)
    kill -9 "$killed"
    wait_for 300 served_by_another_than "$killed"
}

# Another server takes its place: no write is lost or fails.
server_killed_under_load() {
    load 8 &
    load=$!
    sleep 2
    server_kill
    wait $load || { cat /run/load.log; return 1; }
    grep -E 'err=|IOPS' /run/load.log
}

# The same with a file system on the disk.
server_killed_mounted() {
    mkfs.ext4 -q -F $device
    mount $device /mnt
    cp -a /usr/share/perl5 /mnt/tree &
    copy=$!
    server_kill
    wait $copy
    sync -f /mnt
    umount /mnt
    fsck.ext4 -fn $device
    mount $device /mnt
    diff -r /usr/share/perl5 /mnt/tree
    umount /mnt
}

# A user's home, which a server that gave up root's capabilities may not enter: its guard is started, and starts another server.
program_in_a_home() {
    detach $device
    mkdir -p /run/home
    cp "$(command -v nvmf)" /run/home
    chown -R nobody /run/home
    chmod 700 /run/home
    /run/home/nvmf attach $remote
    server_kill
    detach $device
    attach
}

# A server whose guard was killed starts another guard. With neither, the disk waits until it is attached again.
server_and_guard_killed() {
    killed=$(server)
    kill -STOP "$killed"
    kill -9 "$(cat /proc/$killed/task/$killed/children)"
    kill -9 "$killed"
    wait_for 50 list_says killed
    dd if=/dev/zero of=$device bs=4k count=1 oflag=direct status=none &
    waiting=$!
    sleep 1
    kill -0 $waiting
    refused 'is in use' nvmf detach $device
    nvmf attach $remote -o json | jq -e --arg device $device '.device == $device'
    wait $waiting
    wait_for 50 list_says live
}

# A server that was killed, and whose disk nobody wants any more.
killed_is_detached() {
    killed=$(server)
    kill -STOP "$killed"
    kill -9 "$(cat /proc/$killed/task/$killed/children)"
    kill -9 "$killed"
    wait_for 50 list_says killed
    refused 'cleared away' nvmf detach $device
    wait_for 50 gone
    attach
}

# Of servers that are killed at some moment of attaching and detaching nothing stays in the way.
killed_at_moments() {
    detach $device
    for moment in 0.02 0.1 0.3 0.6 1 2; do
        nvmf attach $remote >/dev/null 2>&1 &
        front=$!
        wait_for 50 sh -c "cat /proc/$front/task/$front/children | grep -q . || ! kill -0 $front"
        sleep $moment
        kill -9 $(cat /proc/$front/task/$front/children 2>/dev/null) || true
        wait $front || true
        # It may have been attached by then: then it goes on.
        wait_for 100 attached_or_can_be
        wait_for 100 list_says live
        nvmf detach $device >/dev/null 2>&1 &
        front=$!
        sleep $moment
        kill -9 "$(server)" || true
        wait $front || true
        wait_for 50 detached_at_last
        gone
    done
    [ -z "$(ls /run/nvmf)" ]
    [ -z "$(ls /sys/class/ublk-char 2>/dev/null)" ]
    attach
}

attached_or_can_be() { list_says live || nvmf attach $remote; }
detached_at_last() { nvmf detach --all; nothing_is_attached; }

# The program is replaced under load.
upgraded_under_load() {
    load 8 &
    load=$!
    sleep 2
    before=$(server)
    nvmf upgrade $device
    [ "$(server)" != "$before" ]
    wait $load || { cat /run/load.log; return 1; }
}

# Asked to end while a file system is on it, as at shutdown, the server stays until that is unmounted.
ends_when_unmounted() {
    mkfs.ext4 -q -F $device
    mount $device /mnt
    kill "$(jq .pid /run/attached.json)"
    wait_for 50 list_says ending
    cp -a /usr/share/perl5 /mnt/tree
    sync -f /mnt
    umount /mnt
    wait_for 100 nothing_is_attached
    attach
    fsck.ext4 -fn $device
}

# After --ctrl-loss-tmo without the target, the disk is lost and I/O fails at once. It can be had back.
target_lost() {
    detach $device
    attach --ctrl-loss-tmo 2
    target_kill
    wait_for 50 list_says lost
    fails dd if=$device of=/dev/null bs=4k count=1 iflag=direct
    target_start
    list_says lost
    nvmf reconnect $device
    verified
    target_kill
    wait_for 50 list_says lost
    refused 'it is detached, but' nvmf detach $device
    gone
    target_start
    attach
}

# `detach --force` ends a disk whose I/O waits for the target.
forced() {
    target_kill
    dd if=/dev/zero of=$device bs=4k count=1 oflag=direct status=none 2>/run/said &
    wait_for 50 list_says reconnecting
    refused 'is in use: open in dd' nvmf detach $device
    refused 'what it was not sent is lost' nvmf detach --force $device
    wait_for 50 gone
    nvmf list
    target_start
    attach
}

attached_disk() {
    must 'target starts' target
    must attach attach
    step limits limits
    step list listed
    step 'attached twice' twice_is_refused
    step 'read-only' read_only
    step 'turns read-only' turns_read_only
    step grows grows
    step 'fio verified' verified
    step ext4 file_system ext4
    step xfs file_system xfs
    step partitions partitions
    step discard discard
    step 'write zeroes' zeroes
    step 'open elsewhere' open_is_refused
    must 'written back by detach' detach_writes_back
    step 'target killed under load' target_killed_under_load
    step 'fio verified again' verified
    must 'server killed under load' server_killed_under_load
    must 'server killed, mounted' server_killed_mounted
    must 'program in a home' program_in_a_home
    must 'server and guard killed' server_and_guard_killed
    must 'killed and detached' killed_is_detached
    must 'upgraded under load' upgraded_under_load
    must 'killed at some moments' killed_at_moments
    must 'ends when unmounted' ends_when_unmounted
    must 'target lost' target_lost
    must 'detached by force' forced
    step detach detach --all
    step 'nothing is left' nothing_is_left
    finish
}

nothing_is_attached() { nvmf list | grep -x 'no disk is attached'; }

nothing_is_left() {
    nothing_is_attached
    ls /run/nvmf
    [ -z "$(ls /run/nvmf)" ]
}
