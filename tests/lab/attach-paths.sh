# What: a disk over two paths, RDMA and TCP, which are cut and healed ten times each and both at once, under verified load, ext4 and XFS
# Kernels: stable backports
# Seconds: 900
. "$LAB/attach-survives.sh"
. "$LAB/far.sh"
form=ublk device=/dev/ublkb0
remote="-t rdma -a $link_1 --trsvcid 4420 --path $link_2:4421/tcp -n $NQN --keep-alive-tmo=2 --reconnect-delay=1"

target() {
    mkdir -p /run/store
    mount -t tmpfs -o size=1g tmpfs /run/store
    truncate -s 512M /run/store/disk.img
    cat >/run/target.toml <<CONFIG
[target]
workers = 1
buffer_memory = "16MiB"

[[listener]]
address = "0.0.0.0:4420"

[[listener]]
address = "0.0.0.0:4421"
transport = "tcp"

[[subsystem]]
nqn = "$NQN"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
path = "/run/store/disk.img"
CONFIG
    target_start
}

target_start() {
    $in_far nvmf-target serve --config /run/target.toml >>/run/target.log 2>&1 </dev/null &
    echo $! >/run/target.pid
    wait_for 50 nvmf discover -a $link_1 -s 4420 || { tail -5 /run/target.log; return 1; }
}

# `live_paths COUNT`
live_paths() { nvmf list -o json | jq -e --argjson count "$1" '[.disks[0].paths[] | select(.state == "live")] | length == $count'; }

# One path after the other.
cut=2
path_cut() {
    cut=$((3 - cut))
    cut_link $cut
    wait_for 100 live_paths 1
    heal_link $cut
    wait_for 300 live_paths 2
}

both_cut() {
    load 12 &
    load=$!
    sleep 2
    cut_link 1
    cut_link 2
    wait_for 100 list_says reconnecting
    heal_link 1
    heal_link 2
    wait_for 300 live_paths 2
    wait $load || { cat /run/load.log; return 1; }
    grep -E 'err=|IOPS' /run/load.log
}

# `file_system KIND CHECK...`: a copy of a tree goes on while paths are cut, the target is killed and the server is killed.
file_system() {
    kind=$1
    shift
    case $kind in ext4) mkfs.ext4 -q -F $device ;; xfs) mkfs.xfs -q -f $device ;; esac
    mount $device /mnt
    for end in path_cut path_cut target_restart server_kill; do
        cp -a /usr/share/perl5 /mnt/tree_$end$cut &
        copy=$!
        sleep 0.5
        $end
        wait $copy
        sync -f /mnt
        wait_for 300 live_paths 2
    done
    umount /mnt
    "$@" $device
    mount $device /mnt
    for tree in /mnt/tree_*; do diff -r /usr/share/perl5 "$tree"; done
    [ "$(ls -d /mnt/tree_* | wc -l)" = 4 ]
    umount /mnt
}

must 'two links' links
must 'target starts' target
must attach attach
must 'both paths are live' wait_for 50 live_paths 2
must 'paths cut and healed, twenty times' ten_times eval 'path_cut; path_cut'
must 'both cut at once' both_cut
must 'target killed ten times' ten_times target_restart
must 'ext4' file_system ext4 fsck.ext4 -fn
must 'XFS' file_system xfs xfs_repair -n
step verified verified
step 'detach' detach --all
step 'nothing is left' nothing_is_left
finish
