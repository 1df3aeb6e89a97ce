# What: a guest boots from a remote namespace that `nvmf serve-vhost` serves, and goes on when the server is killed
# Kernels: stable backports
# Root: vhost
# Seconds: 300
. "$LAB/lib.sh"

# Its only disk, by the beginning of the namespace's UUID and not by the image's name.
only_disk() {
    [ "$(ls /sys/block | grep -c '^vd')" = 1 ]
    [ "$(tr -d '\0' </sys/block/vda/serial | wc -c)" = 20 ]
    findmnt -n -o SOURCE,FSTYPE /
}

copies() {
    for round in 1 2 3 4; do cp -a /usr/share/perl5 /var/tree$round && sync -f /var || return 1; done
}

# What the system reads and writes meanwhile waits for the next server.
through_kills() {
    copies &
    copy=$!
    for round in 1 2; do
        sleep 2
        host vhost_kill
        # A program that is not in the page cache any more comes from the disk.
        echo 3 >/proc/sys/vm/drop_caches
        md5sum /usr/bin/* >/run/sums$round 2>/dev/null
    done
    wait $copy
    cmp /run/sums1 /run/sums2
    for round in 1 2 3 4; do diff -r /usr/share/perl5 /var/tree$round; done
}

# The journal was never aborted, and nothing was an I/O error.
clean() {
    fails grep -E 'I/O error|EXT4-fs error|Remounting filesystem read-only' /run/kernel
    grep -q ' / ext4 rw' /proc/mounts
}

must 'its root disk is the only one' only_disk
must 'server killed twice while it is used' through_kills
dmesg >/run/kernel
must 'no error' clean
finish
