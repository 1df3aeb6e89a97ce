# What: the kernel's native multipath over two of our targets with one disk: ANA states change, a target dies, under fio
# Kernels: stable backports
# Cell: kernel `nvme-tcp`, multipath → ours, two targets | TCP, ANA
# Seconds: 400
. "$LAB/lib.sh"
. "$LAB/pair.sh"

ctl() {
    ctl_target=$1
    shift
    nvmf-target ctl --socket "/run/control$ctl_target" "$@"
}

# `set_state PORT STATE`: returns when the target says that it is done.
set_state() { ctl "$(target_of "$1")" ana set "$GUEST:$1" 1 "$2" >/run/said || { cat /run/said; return 1; }; }

# --- the host: one disk with four paths

connect() {
    nvme connect -t tcp -a "$GUEST" -s "$1" -n "$NQN" -i 1 --hostnqn=$HOSTNQN --hostid=$HOSTID \
        --reconnect-delay=1 --keep-alive-tmo=2 --ctrl-loss-tmo=600
}

disk() {
    for disk in /sys/class/nvme-subsystem/nvme-subsys*/nvme*n1; do
        [ -b "/dev/$(basename "$disk")" ] && echo "/dev/$(basename "$disk")" && return
    done
    return 1
}

# `path_is PORT STATE`: as the host has read it.
path_is() {
    for controller in /sys/class/nvme/nvme*; do
        grep -q "trsvcid=$1" "$controller/address" || continue
        [ "$(cat "$controller"/nvme*c*n*/ana_state)" = "$2" ]
        return
    done
    return 1
}

paths_are() {
    for port in 4420 4421 4422 4423; do
        wait_for 50 path_is $port "$1" || return 1
        shift
    done
}

load_start() {
    fio --name=verify --filename="$(disk)" --rw=randwrite --bs=4k --iodepth=8 --ioengine=libaio --direct=1 --size=32m \
        --verify=crc32c --verify_backlog=64 --verify_fatal=1 --time_based --runtime="$1" --rate_iops=500 >/run/load.fio.log 2>&1 &
    load=$!
}

load_ends_well() {
    wait $load || { tail -30 /run/load.fio.log; return 1; }
    grep -E 'err=|IOPS' /run/load.fio.log
}

# What takes something away comes first: the other target serves when nothing is under way here.
moves_to() {
    case $1 in
    1) from='4422 4423' to='4420 4421' ;;
    2) from='4420 4421' to='4422 4423' ;;
    esac
    for port in $from; do set_state $port inaccessible; done
    for port in $to; do set_state $port optimized; done
}

# The purpose of blktests 057.
states_change() {
    load_start 40
    for round in 1 2 3; do
        moves_to 2
        paths_are inaccessible inaccessible optimized optimized
        sleep 1
        moves_to 1
        paths_are optimized optimized inaccessible inaccessible
        sleep 1
    done
    set_state 4422 non-optimized
    set_state 4423 non-optimized
    paths_are optimized optimized non-optimized non-optimized
    # One port after the other is in transition, lost, and back.
    for port in 4420 4421 4422 4423; do
        set_state $port change
        set_state $port persistent-loss
        wait_for 50 path_is $port persistent-loss
        set_state $port optimized
    done
    paths_are optimized optimized optimized optimized
    load_ends_well
}

# No path can be used for a while: what the host has waits, and goes on.
nowhere() {
    load_start 15
    sleep 2
    for port in 4420 4421 4422 4423; do set_state $port inaccessible; done
    sleep 4
    kill -0 $load
    for port in 4420 4421 4422 4423; do set_state $port optimized; done
    load_ends_well
}

# The states of the file are those of the start; a reload brings them back.
reloaded() {
    configure 1 non-optimized
    kill -HUP "$(cat /run/target1.pid)"
    paths_are non-optimized non-optimized optimized optimized
    configure 1 optimized
    kill -HUP "$(cat /run/target1.pid)"
    paths_are optimized optimized optimized optimized
}

dies() {
    load_start 40
    for target in 1 2; do
        sleep 3
        kill -9 "$(cat "/run/target$target.pid")"
        sleep 4
        kill -0 $load
        start $target
        for port in $(ports_of $target); do wait_for 100 path_is_live $port; done
    done
    load_ends_well
}
path_is_live() {
    for controller in /sys/class/nvme/nvme*; do
        grep -q "trsvcid=$1" "$controller/address" || continue
        [ "$(cat "$controller/state")" = live ]
        return
    done
    return 1
}

# What was written through one target is read through the other.
nothing_stale() {
    for round in 1 2 3; do
        for target in 1 2; do
            moves_to $target
            dd if=/dev/urandom of=/run/bytes bs=1M count=8 status=none
            dd if=/run/bytes of="$(disk)" bs=1M oflag=direct status=none
            case $target in 1) moves_to 2 ;; 2) moves_to 1 ;; esac
            dd if="$(disk)" bs=1M count=8 iflag=direct status=none | cmp - /run/bytes
        done
    done
}

modprobe nvme-tcp
must 'disk' disks
for target in 1 2; do
    configure $target optimized
    must "target $target starts" start $target
done
for port in 4420 4421 4422 4423; do must "path over port $port" connect $port; done
must 'one disk' wait_for 50 disk
must 'paths' paths_are optimized optimized optimized optimized
step 'states change under load (057)' states_change
step 'no path for a while' nowhere
step 'nothing stale' nothing_stale
moves_to 1
for port in 4422 4423; do set_state $port optimized; done
step 'reloaded' reloaded
step 'each target dies under load' dies
step 'no error' fails sh -c "dmesg | grep -i 'I/O error'"
nvme disconnect-all
finish
