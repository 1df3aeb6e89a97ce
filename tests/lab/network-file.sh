# A file on the file system of a network as a disk of the target, beside a memory disk and a local file, under the
# kernel's initiator. The server is in the network namespace "far" (far.sh), at $link_1, and serves $store; a scenario sets
#
#   at_server   the file at the server
#   server      starts the server
#   mounted     mounts what it has at /run/net
#   ends        checks what happens when it ends in other ways
#
# and calls `served_from_the_network`.

. "$LAB/lib.sh"
. "$LAB/far.sh"
store=/run/store

target() {
    truncate -s 512M /run/net/disk.img
    truncate -s 64M /root/local.img
    cat >/run/target.toml <<CONFIG
[target]
workers = 1
control_socket = "/run/control"

[[listener]]
address = "$GUEST"
transport = "tcp"

[[subsystem]]
nqn = "$NQN"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
path = "/run/net/disk.img"

[[subsystem.namespace]]
nsid = 2
memory = "64MiB"

[[subsystem.namespace]]
nsid = 3
path = "/root/local.img"
CONFIG
    our_target_start
    ctl status
}

ctl() { timeout 20 nvmf-target ctl --socket /run/control "$@"; }

connect() {
    nvme connect -t tcp -a "$GUEST" -s 4420 -n "$NQN"
    for number in 1 2 3; do
        wait_for 50 disk $number
        disk $number >/run/device$number
    done
}

# `disk NSID`
disk() {
    for disk in /sys/class/nvme-subsystem/nvme-subsys*/nvme*n*; do
        [ "$(cat "$disk/nsid" 2>/dev/null)" = "$1" ] && [ -b "/dev/${disk##*/}" ] && echo "/dev/${disk##*/}" && return
    done
    return 1
}

verified() {
    DEV=$(cat /run/device1) fio --eta=never --output-format=terse --terse-version=3 --output=/run/verify.fio.log "$LAB/verify.fio" || {
        cat /run/verify.fio.log
        return 1
    }
}

# What was flushed is at the server.
flushed() {
    for round in 1 2 3; do
        head -c 1048576 /dev/urandom >/run/bytes
        dd if=/run/bytes of="$(cat /run/device1)" bs=64k oflag=direct status=none
        nvme flush "$(cat /run/device1)"
        head -c 1048576 "$at_server" | cmp - /run/bytes
    done
}

# Holes are the server's, too, and read as zeroes.
discarded() {
    before=$(du -k "$at_server" | cut -f1)
    blkdiscard -o 0 -l 16777216 "$(cat /run/device1)"
    dd if="$(cat /run/device1)" bs=64k count=16 iflag=direct status=none | cmp -n 1048576 - /dev/zero
    echo "KiB at the server: $before, then $(du -k "$at_server" | cut -f1)"
}

# `beside WHAT`: the other disks do their work, with syncs, while the server does not answer; prints their longest
# operation.
beside() {
    fio --output-format=json --ioengine=libaio --direct=1 --rw=randrw --bs=4k --iodepth=4 --size=32m --time_based \
        --runtime=6 --fsync=8 --name=memory --filename="$(cat /run/device2)" --name=local --filename="$(cat /run/device3)" >/run/beside.json
    jq -e '[.jobs[].error] | all(. == 0)' /run/beside.json >/run/said
    jq -r '.jobs[] | [.jobname, ([.read.lat_ns.max, .write.lat_ns.max, .sync.lat_ns.max] | max / 1000000 | floor)] | @tsv' \
        /run/beside.json |
        while read -r name longest; do
            # Much, because the guest shares its processors with all that runs beside it.
            echo ":: figure $(uname -r), $1: the longest operation of the $name disk beside it took $longest ms"
            [ "$longest" -lt 5000 ] || return 1
        done
}

# `held_to_its_disk WHAT HANG WAKE`: under load, with more than a file system in user space takes at once (64).
held_to_its_disk() {
    fio --name=load --filename="$(cat /run/device1)" --ioengine=libaio --direct=1 --rw=randrw --bs=4k --iodepth=96 --size=64m \
        --time_based --runtime=25 --verify=crc32c --verify_backlog=256 --verify_fatal=1 >/run/load.log 2>&1 &
    load=$!
    sleep 4
    $2
    sleep 2
    # (A shell that runs this for the status would ignore `set -e` in it.)
    (set -eu; beside "$1"; ctl status >/run/status; grep 'its oldest of' /run/status) &
    wait $! && held=0 || held=1
    $3
    wait $load || { cat /run/load.log; return 1; }
    grep -E 'err=|IOPS' /run/load.log
    return $held
}

silent() { held_to_its_disk 'server silent' 'cut_link 1' 'heal_link 1'; }

# A namespace can be removed while its server is silent and nothing is under way there, and the target stops.
removed_while_silent() {
    cut_link 1
    sleep 1
    (set -eu; ctl namespace remove "$NQN" 1; beside 'a disk removed whose server is silent') &
    wait $! && held=0 || held=1
    heal_link 1
    [ $held = 0 ]
    # The mount may be without its server for a while: it is tried again.
    ctl namespace add "$NQN" --nsid 1 /run/net/disk.img || true
    wait_for 300 disk 1
    disk 1 >/run/device1
    verified
}

stopped_while_silent() {
    fio --name=load --filename="$(cat /run/device1)" --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=16 --size=64m \
        --time_based --runtime=60 >/run/load.log 2>&1 &
    load=$!
    sleep 3
    cut_link 1
    sleep 1
    begun=$(now)
    kill -TERM "$(cat /run/target.pid)"
    wait_for 300 sh -c "! kill -0 $(cat /run/target.pid) 2>/dev/null || grep -q '^State:.Z' /proc/$(cat /run/target.pid)/status"
    echo "it took $(awk "BEGIN { print $(now) - $begun }") s"
    tail -5 /run/target.log
    heal_link 1
    nvme disconnect -n "$NQN"
    kill $load 2>/dev/null || true
}

served_from_the_network() {
    modprobe nvme-tcp
    must 'two links' links
    must 'server' server
    must 'mount' mounted
    must 'target starts' target
    must 'connect' connect
    step 'fio verified' verified
    step 'what was flushed is at the server' flushed
    step 'discard' discarded
    step 'server silent under load' silent
    step 'server silent, its disk removed' removed_while_silent
    ends
    step 'server silent, target stopped' stopped_while_silent
    finish
}
