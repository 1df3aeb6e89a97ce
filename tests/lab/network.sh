# A disk over a network that loses, delays, doubles, reorders and corrupts packets, or carries those of one direction only: netem
# on both ends of a link, under verified load. A scenario sets
#
#   carried    what our commands are told of the transport
#   listener   what our target's configuration says of its listener
#
# and calls `bad_network`. The target is in the network namespace "far", or where the scenario has it, with a `links`, `at_far`,
# `corrupted` and addresses of its own.

. "$LAB/attach-disk.sh"
. "$LAB/far.sh"
form=ublk device=/dev/ublkb0
far_address=${far_address:-$link_1} near_link=${near_link:-near1} far_link=${far_link:-far1}
remote="$carried -a $far_address --trsvcid 4420 -n $NQN --keep-alive-tmo=2 --reconnect-delay=1"

# `at_far COMMAND`: runs it where the target is.
at_far() { $in_far sh -c "$*"; }

# On a tmpfs: it is the network that is to be tested.
target() {
    at_far 'mkdir -p /run/store && mount -t tmpfs -o size=1g tmpfs /run/store && truncate -s 512M /run/store/disk.img'
    at_far "cat >/run/target.toml <<CONFIG
[target]
workers = 1
buffer_memory = \"16MiB\"

[[listener]]
address = \"$far_address:4420\"
$listener

[[subsystem]]
nqn = \"$NQN\"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
path = \"/run/store/disk.img\"
CONFIG"
    at_far 'nvmf-target serve --config /run/target.toml >>/run/target.log 2>&1 </dev/null & echo $! >/run/target.pid'
    wait_for 50 nvmf discover $carried -a "$far_address" --trsvcid 4420 || { at_far tail -5 /run/target.log; return 1; }
}

# `netem near|far FAULTS...`: what becomes of what this end sends.
netem() {
    netem_end=$1
    shift
    case $netem_end in
    near) tc qdisc replace dev $near_link root netem limit 10000 "$@" ;;
    far) at_far tc qdisc replace dev $far_link root netem limit 10000 "$@" ;;
    esac
}

both_send() {
    netem near "$@"
    netem far "$@"
}

mended() {
    tc qdisc del dev $near_link root || true
    at_far tc qdisc del dev $far_link root || true
}

# That damaged packets came.
corrupted() { at_far nstat -asz TcpInCsumErrors | grep -E 'TcpInCsumErrors +[1-9]'; }

# Verified load while packets meet these faults; and none is wrong when the network is well again.
through() {
    both_send "$@"
    load 10 || { cat /run/load.log; return 1; }
    case "$*" in *loss*) at_far tc -s qdisc show dev $far_link | grep -E 'dropped [1-9]' ;; esac
    case "$*" in *corrupt*) corrupted ;; esac
    mended
    wait_for 300 list_says live
    grep -E 'err=|IOPS' /run/load.log
}

# `parted near|far|both SECONDS`: nothing that this end sends arrives, for longer than the keep-alive time.
parted() {
    load 14 &
    load=$!
    sleep 2
    case $1 in both) both_send loss 100% ;; *) netem "$1" loss 100% ;; esac
    wait_for 100 list_says reconnecting
    mended
    wait_for 300 list_says live
    wait $load || { cat /run/load.log; return 1; }
    grep -E 'err=|IOPS' /run/load.log
}

# What meets a file system.
at_once=${at_once:-delay 5ms 3ms loss 2% duplicate 2% reorder 10% 50% corrupt 1%}

# It is whole after all of that at once.
file_system_survives() {
    mkfs.ext4 -q -F $device
    mount $device /mnt
    both_send $at_once
    cp -a /usr/share/perl5 /mnt/tree
    sync -f /mnt
    mended
    umount /mnt
    fsck.ext4 -fn $device
    mount $device /mnt
    diff -r /usr/share/perl5 /mnt/tree
    umount /mnt
}

target_is_whole() {
    at_far 'kill -0 "$(cat /run/target.pid)"'
    fails at_far grep -i panic /run/target.log
}

bad_network() {
    at_far modprobe sch_netem
    must 'links' links
    must 'target starts' target
    must attach attach
    must 'loss of 1 %' through loss 1%
    must 'loss of 10 %' through loss 10%
    must 'delay of 20 ms, give or take 10' through delay 20ms 10ms
    must 'duplicates' through duplicate 10%
    must 'reordering' through delay 5ms reorder 25% 50%
    must 'corruption' through corrupt 2%
    must 'all of them' through delay 5ms 3ms loss 2% duplicate 2% reorder 10% 50% corrupt 1%
    must 'nothing arrives at the target' parted near
    must 'nothing arrives from the target' parted far
    must 'nothing arrives anywhere' parted both
    must 'file system' file_system_survives
    step verified verified
    step 'target is whole' target_is_whole
    step detach detach --all
    step 'nothing is left' nothing_is_left
    finish
}
