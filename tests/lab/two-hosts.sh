# Two hosts in the guest's kernel, which connect to our target over NVMe/TCP. A scenario loads nvme-core with multipath=N
# first: each controller then has disks of its own.
. "$LAB/lib.sh"

host_nqn() { echo "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-00000000000$1"; }

host_connect() {
    nvme connect -t tcp -a "$GUEST" -s 4420 -n "$NQN" -i 2 --hostnqn="$(host_nqn "$1")" \
        --hostid="00000000-0000-4000-8000-00000000000$1" --reconnect-delay=1 --keep-alive-tmo=2 --ctrl-loss-tmo=120
    wait_for 50 host_disk "$1"
}

# `host_controller NUMBER`, `host_disk NUMBER`: of this host; the disk is namespace 1. (The kernel numbers disks in the
# order in which it finds them.)
host_controller() {
    for controller in /sys/class/nvme/nvme*; do
        [ "$(cat "$controller/hostnqn")" = "$(host_nqn "$1")" ] || continue
        echo "/dev/$(basename "$controller")"
        return
    done
    return 1
}

host_disk() {
    for disk in "/sys/class/nvme/$(basename "$(host_controller "$1")")"/nvme*n*; do
        [ "$(cat "$disk/nsid")" = 1 ] && [ -b "/dev/$(basename "$disk")" ] && echo "/dev/$(basename "$disk")" && return
    done
    return 1
}

writes() { dd if=/dev/zero of="$1" bs=4k count=1 oflag=direct conv=notrunc status=none; }
reads() { dd if="$1" of=/dev/null bs=4k count=1 iflag=direct status=none; }

# `conflict COMMAND...`: it fails because of a reservation. (EBADE; what nvme-cli says; what the kernel's own calls say.)
conflict() {
    if "$@" >/run/said 2>&1; then echo "should have failed: $*" && return 1; fi
    grep -i -e 'invalid exchange' -e 'reservation conflict' -e 'error code 0x18' /run/said || { cat /run/said; return 1; }
}
