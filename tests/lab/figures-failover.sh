# What: the pause under verified load when one of two paths is cut, or one of two targets with one disk dies or falls silent: ublk and the kernel's multipath
# Seconds: 1800
# Alone: yes
. "$LAB/figures.sh"
. "$LAB/pair.sh"
. "$LAB/far.sh"
over=tcp unit=ms
# Where the targets listen.
GUEST=0.0.0.0
ends='path cut
target killed
target silent'

# --- a disk with two paths, one over each link: to the same target, or to each of them. The same host, timers and policy

options="--hostnqn=$HOSTNQN --hostid=$HOSTID -i 1 --keep-alive-tmo=2 --reconnect-delay=1 --ctrl-loss-tmo=600"

# Of the second path. (The first one's is target 1's first.)
port_for() { case $1 in path*) echo 4421 ;; target*) echo 4422 ;; esac; }

kernel_connect() {
    nvme connect -t tcp -a $link_1 -s 4420 -n "$NQN" $options
    nvme connect -t tcp -a $link_2 -s "$1" -n "$NQN" $options
    wait_for 50 kernel_disk
    echo round-robin | tee /sys/class/nvme-subsystem/nvme-subsys*/iopolicy >/dev/null
    kernel_disk >/run/device
}

kernel_disk() {
    [ "$(cat /sys/class/nvme/nvme*/state | grep -c live)" = 2 ] || return 1
    for disk in /sys/class/nvme-subsystem/nvme-subsys*/nvme*n1; do
        [ -b "/dev/${disk##*/}" ] && echo "/dev/${disk##*/}" && return
    done
    return 1
}

kernel_disconnect() {
    nvme disconnect -n "$NQN"
    wait_for 50 no_controller
}

ublk_connect() {
    nvmf attach -t tcp -a $link_1 -s 4420 --path "$link_2:$1/tcp" -n "$NQN" $options --iopolicy round-robin --as ublk -o json >/run/attached.json
    jq -e '[.paths[] | select(.state == "live")] | length == 2' /run/attached.json || wait_for 50 ublk_has_two_paths
    jq -er .device /run/attached.json >/run/device
}
ublk_has_two_paths() { nvmf list -o json | jq -e '[.disks[0].paths[] | select(.state == "live")] | length == 2'; }

ublk_disconnect() { nvmf detach "$(cat /run/device)"; }

# --- how a path ends, and is there again

breaks() {
    case $1 in
    'path cut') cut_link 1 ;;
    'target killed') kill -9 "$(cat /run/target1.pid)" ;;
    'target silent') kill -STOP "$(cat /run/target1.pid)" ;;
    esac
}

mends() {
    case $1 in
    'path cut') heal_link 1 ;;
    'target killed') start 1 ;;
    'target silent') kill -CONT "$(cat /run/target1.pid)" ;;
    esac
}

# `failover KIND END`: adds the longest time between two completions, and that of the longest operation.
failover() {
    $1_connect "$(port_for "$2")"
    fio --name=verify --filename="$(cat /run/device)" --rw=randwrite --bs=4k --iodepth=8 --ioengine=libaio --direct=1 --size=32m \
        --verify=crc32c --verify_backlog=64 --verify_fatal=1 --time_based --runtime=20 --rate_iops=400 --write_lat_log=/run/lat \
        >/run/load.log 2>&1 &
    load=$!
    sleep 4
    breaks "$2"
    wait $load || { cat /run/load.log; return 1; }
    mends "$2"
    $1_disconnect
    # In the order of the completions: milliseconds, nanoseconds of the operation, ...
    awk -F', ' -v of="$1/pair" -v end="$2" '
        NR > 1 && $1 - last > gap { gap = $1 - last }
        $2 > longest { longest = $2 }
        { last = $1 }
        END { printf "%s|gap between completions, %s|%d\n%s|longest operation, %s|%d\n", of, end, gap, of, end, longest / 1e6 }
    ' /run/lat_lat.1.log >>/run/figures
}

round() {
    case $((number % 2)) in
    1) kinds='kernel ublk' ;;
    0) kinds='ublk kernel' ;;
    esac
    echo "$ends" | while read -r end; do
        for kind in $(in_order $kinds); do failover $kind "$end" </dev/null || return 1; done
    done
}

modprobe -a nvme-tcp ublk_drv
must 'two links' links
must 'disk' disks
for target in 1 2; do
    configure $target optimized
    must "target $target starts" start $target
done
rounds
works=$(for what in 'gap between completions' 'longest operation'; do echo "$ends" | sed "s/^/$what, /"; done)
report kernel/pair ublk/pair
finish
