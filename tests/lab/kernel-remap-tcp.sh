# What: namespaces that change their disks and ANA groups quickly, under a kernel host with six paths
# Kernels: stable backports
# Cell: kernel `nvme-tcp`, multipath → ours, six ports | TCP, namespaces
# Seconds: 300
. "$LAB/lib.sh"

HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a7
HOSTID=2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a7
PORTS='4420 4421 4422 4423 4424 4425'

uuid_of() { echo "6e766d66-0000-4000-8000-00000000005$1"; }

# Three disks. The first bytes of each are its number.
disks() {
    for number in 1 2 3; do
        truncate -s 64M /root/disk$number.img
        printf 'disk %s' $number | dd of=/root/disk$number.img conv=notrunc status=none
    done
}

# `configure DISK DISK DISK`: what is behind namespaces 1, 2 and 3 (0: there is none), in the ANA group of the disk's
# number. Behind each port, another group is optimized; one of the others is inaccessible.
configure() {
    {
        printf '[target]\nworkers = 1\nbuffer_memory = "16MiB"\n'
        for port in $PORTS; do
            printf '[[listener]]\naddress = "%s:%s"\ntransport = "tcp"\n' "$GUEST" "$port"
            printf '[[listener.ana_group]]\nid = %s\nstate = "non-optimized"\n' $(((port + 1) % 3 + 1))
            printf '[[listener.ana_group]]\nid = %s\nstate = "inaccessible"\n' $(((port + 2) % 3 + 1))
        done
        printf '[[subsystem]]\nnqn = "%s"\nserial = "REMAP"\nallow_any_host = true\n' "$NQN"
        nsid=0
        for number in "$@"; do
            nsid=$((nsid + 1))
            [ "$number" != 0 ] || continue
            printf '[[subsystem.namespace]]\nnsid = %s\npath = "/root/disk%s.img"\nana_group = %s\nuuid = "%s"\n' \
                $nsid "$number" "$number" "$(uuid_of "$number")"
        done
    } >/run/target.new
    mv /run/target.new /run/target.toml
}

reload() { kill -HUP "$(cat /run/target.pid)"; }

# `settle DISK DISK DISK`: has the target and the host come to this.
settle() {
    reloads=$(grep -c ' reloaded ' /run/target.log || true)
    configure "$@"
    reload
    wait_for 100 more_reloads_than "$reloads"
    wait_for 100 host_has "$@"
}
more_reloads_than() { [ "$(grep -c ' reloaded ' /run/target.log)" -gt "$1" ]; }

# Each namespace has its disk's UUID and contents on the host, and four paths that can be used: six, of which two are
# inaccessible.
host_has() {
    nsid=0
    for number in "$@"; do
        nsid=$((nsid + 1))
        node=$(disk_of $nsid) || node=
        case $number in
        0) [ -z "$node" ] || return 1 ;;
        *)
            [ "$(cat "/sys/block/$(basename "$node")/uuid")" = "$(uuid_of "$number")" ] || return 1
            [ "$(dd if="$node" bs=4k count=1 iflag=direct status=none | head -c 6)" = "disk $number" ] || return 1
            paths=$(basename "$node" | sed 's/n\([0-9]*\)$/c*n\1/')
            states=$(cat /sys/class/nvme/nvme*/$paths/ana_state)
            [ "$(echo "$states" | grep -c optimized)" = 4 ] && [ "$(echo "$states" | grep -c inaccessible)" = 2 ] || return 1
            ;;
        esac
    done
}

# The disk of a namespace that reads and writes go to. (Its paths are listed, too, and have no node.)
disk_of() {
    for disk in /sys/class/nvme-subsystem/nvme-subsys*/nvme*n*; do
        node=/dev/$(basename "$disk")
        [ "$(cat "/sys/block/$(basename "$disk")/nsid" 2>/dev/null)" = "$1" ] && [ -b "$node" ] || continue
        echo "$node"
        return
    done
    return 1
}

connected() {
    for port in $PORTS; do
        nvme connect -t tcp -a "$GUEST" -s "$port" -n "$NQN" -i 1 --hostnqn=$HOSTNQN --hostid=$HOSTID --reconnect-delay=1
    done
    wait_for 50 host_has 1 2 3
}

changed_slowly() {
    settle 0 2 3
    settle 1 0 3
    settle 1 2 0
    settle 0 0 0
    settle 3 1 2
    settle 1 2 3
}

# As fast as the target reloads; then all is as the last file has it.
changed_quickly() {
    for round in 1 2 3 4 5; do
        for way in '0 2 3' '2 0 1' '3 1 0' '0 3 2' '2 3 1' '1 0 0'; do
            configure $way
            reload
            sleep 0.1
        done
    done
    settle 1 2 3
    fails grep -e ' refused' -e ' failed' /run/target.log
}

modprobe nvme-tcp
must disks disks
configure 1 2 3
must 'target starts' our_target_start
must 'six paths' connected
step 'changed one by one' changed_slowly
step 'changed quickly (058)' changed_quickly
dmesg | grep -i nvme | tail -20
nvme disconnect-all
finish
