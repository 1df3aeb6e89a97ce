# A disk through ten ends of its server, and ten of its target, at moments that nobody chose. A scenario sets what
# attach-disk.sh wants, and calls `survives`.

. "$LAB/attach-disk.sh"

# Between 0.5 and 2.5 seconds.
moment() { sleep "$(awk "BEGIN { srand($1); print 0.5 + 2 * rand() }")"; }

# Writes and reads back with verification until /run/stop is there.
load_until_stopped() {
    until [ -e /run/stop ]; do load 3 || return 1; done
}

# Does something ten times under load.
ten_times() {
    rm -f /run/stop
    load_until_stopped &
    load=$!
    for round in 1 2 3 4 5 6 7 8 9 10; do
        moment $round
        "$@"
        kill -0 $load || { cat /run/load.log; return 1; }
    done
    touch /run/stop
    wait $load || { cat /run/load.log; return 1; }
    grep -E 'err=|IOPS' /run/load.log
}

target_restart() {
    target_kill
    wait_for 50 list_says reconnecting
    target_start
    wait_for 100 list_says live
}

# A journal that nobody could write is no clean file system.
mounted() {
    mkfs.ext4 -q -F $device
    mount $device /mnt
    for round in 1 2 3; do
        cp -a /usr/share/perl5 /mnt/tree$round &
        copy=$!
        moment $round
        server_kill
        target_restart
        wait $copy
        sync -f /mnt
    done
    umount /mnt
    fsck.ext4 -fn $device
    mount $device /mnt
    for round in 1 2 3; do diff -r /usr/share/perl5 /mnt/tree$round; done
    umount /mnt
}

survives() {
    must 'target starts' target
    must attach attach
    must 'server killed ten times' ten_times server_kill
    must 'target killed ten times' ten_times target_restart
    must 'file system' mounted
    step verified verified
    step 'detach' detach --all
    step 'nothing is left' nothing_is_left
    finish
}
