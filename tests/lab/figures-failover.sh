# What: the pause under verified load when one of two targets with one disk dies or falls silent: ublk and the kernel's multipath
# Seconds: 1800
# Alone: yes
. "$LAB/figures.sh"
. "$LAB/pair.sh"
over=tcp unit=ms
ends='killed
silent'

# --- a disk with a path to each target, of the same host, with the same timers and policy

options="--hostnqn=$HOSTNQN --hostid=$HOSTID -i 1 --keep-alive-tmo=2 --reconnect-delay=1 --ctrl-loss-tmo=600"

kernel_connect() {
    for port in 4420 4422; do nvme connect -t tcp -a "$GUEST" -s $port -n "$NQN" $options; done
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
    nvmf attach -t tcp -a "$GUEST" -s 4420 --path "$GUEST:4422/tcp" -n "$NQN" $options --iopolicy round-robin --as ublk -o json >/run/attached.json
    jq -e '[.paths[] | select(.state == "live")] | length == 2' /run/attached.json || wait_for 50 ublk_has_two_paths
    jq -er .device /run/attached.json >/run/device
}
ublk_has_two_paths() { nvmf list -o json | jq -e '[.disks[0].paths[] | select(.state == "live")] | length == 2'; }

ublk_disconnect() { nvmf detach "$(cat /run/device)"; }

# --- how a target ends, and is there again

target_ends() {
    case $1 in
    killed) kill -9 "$(cat /run/target1.pid)" ;;
    silent) kill -STOP "$(cat /run/target1.pid)" ;;
    esac
}

target_is_back() {
    case $1 in
    killed) start 1 ;;
    silent) kill -CONT "$(cat /run/target1.pid)" ;;
    esac
}

# `failover KIND END`: adds the longest time between two completions, and that of the longest operation.
failover() {
    $1_connect
    fio --name=verify --filename="$(cat /run/device)" --rw=randwrite --bs=4k --iodepth=8 --ioengine=libaio --direct=1 --size=32m \
        --verify=crc32c --verify_backlog=64 --verify_fatal=1 --time_based --runtime=20 --rate_iops=400 --write_lat_log=/run/lat \
        >/run/load.log 2>&1 &
    load=$!
    sleep 4
    target_ends "$2"
    wait $load || { cat /run/load.log; return 1; }
    target_is_back "$2"
    $1_disconnect
    # In the order of the completions: milliseconds, nanoseconds of the operation, ...
    awk -F', ' -v of="$1/pair" -v end="target $2" '
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
    for end in $ends; do
        for kind in $kinds; do failover $kind $end; done
    done
}

modprobe -a nvme-tcp ublk_drv
must 'disk' disks
for target in 1 2; do
    configure $target optimized
    must "target $target starts" start $target
done
rounds
works="$(for what in 'gap between completions' 'longest operation'; do for end in $ends; do echo "$what, target $end"; done; done)"
report kernel/pair ublk/pair
finish
