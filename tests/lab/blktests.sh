# blktests' nvme group, step by step, through the control program that the suite calls. A scenario sets
#
#   transport   rdma (over verbs on rxe) | tcp
#
# before this file, calls `group`, and ends with `finish`. Each step has the number of the test with the same purpose.
# docs/COMPLIANCE.md lists the tests that are not here.
. "$LAB/lib.sh"

export BLKTESTS_ADDRESS=$GUEST BLKTESTS_TRANSPORT=$transport BLKTESTS_FOLDER=/run/blktests NVME_IMG_SIZE=384M
case $transport in rdma) export BLKTESTS_PROVIDER=verbs ;; esac
control() { blktests-control "$@"; }
ask() { control config "--show-$1"; }
HOSTNQN=$(ask hostnqn) HOSTID=$(ask hostid) NQN=$(ask subsysnqn) UUID=$(ask subsys-uuid)
DISCOVERY=nqn.2014-08.org.nvmexpress.discovery

setup() { control setup --subsysnqn "${1:-$NQN}" --subsys-uuid "$UUID" --hostnqn "$HOSTNQN"; }
cleanup() { control cleanup --subsysnqn "${1:-$NQN}"; }

# `connect NQN OPTION...`
connect() {
    nqn=$1
    shift
    nvme connect -t "$(ask trtype)" -a "$(ask traddr)" -s "$(ask trsvid)" -n "$nqn" --hostnqn="$HOSTNQN" --hostid="$HOSTID" "$@"
}

# The disk with the UUID from the target's configuration. (Multipath's paths have the same UUID, but no device.)
namespace() {
    for uuid in /sys/block/nvme*n*/uuid; do
        [ "$(cat "$uuid" 2>/dev/null)" = "$UUID" ] || continue
        name=$(basename "$(dirname "$uuid")")
        [ -b "/dev/$name" ] || continue
        echo "$name"
        return
    done
    return 1
}

disk() { echo "/dev/$(namespace)"; }

# Sets a target up, connects, runs the command, disconnects and cleans up, as most of the suite's tests do.
with_disk() {
    setup
    connect "$NQN"
    wait_for 50 namespace
    "$@"
    disconnect
    cleanup
}

# Runs a step and cleans up if it failed, so that the next one starts clean. (Not `step || ...`, which ignores `set -e`.)
trial() {
    step "$@"
    [ $? -eq 0 ] || tidy
}

tidy() {
    nvme disconnect-all
    cleanup
}

discovery_controller_lives() {
    setup
    dmesg --clear
    connect "$DISCOVERY" --keep-alive-tmo=2
    sleep 6
    [ "$(cat "/sys/class/nvme/$(controller "$DISCOVERY")/state")" = live ]
    fails sh -c 'dmesg | grep -i -e "keep.alive" -e reconnect -e "failed"'
    disconnect "$DISCOVERY"
    cleanup
}

identified() {
    [ "$(cat "/sys/block/$(namespace)/wwid")" = "uuid.$UUID" ]
}

reset_and_gone() {
    setup
    connect "$NQN"
    wait_for 50 namespace
    echo 1 >"/sys/class/nvme/$(controller)/reset_controller"
    disconnect
    cleanup
}

created() {
    setup
    cleanup
    fails connect "$NQN"
}

fio_verified() {
    fio --name=verify --filename="$(disk)" --rw=randwrite --direct=1 --ioengine=libaio --bs=4k --iodepth=16 --size=16m \
        --verify=crc32c --verify_state_save=0 --output-format=terse --terse-version=3 | cut -d';' -f3,5,8,49
}

file_system_verified() {
    mkfs.xfs -q -f "$(disk)"
    mount "$(disk)" /mnt
    fio --name=verify --directory=/mnt --rw=randwrite --direct=1 --ioengine=libaio --bs=4k --iodepth=16 --size=16m \
        --verify=crc32c --verify_state_save=0 --output-format=terse --terse-version=3 | cut -d';' -f3,5,8,49
    umount /mnt
}

flushed() {
    dd if=/dev/urandom of="$(disk)" bs=1M count=64 status=none
    nvme flush "$(disk)"
}

out_of_range() {
    size=$(blockdev --getss "$(disk)")
    blocks=$(($(blockdev --getsize64 "$(disk)") / size))
    nvme read "$(disk)" --start-block=$((blocks - 1)) --block-count=0 --data-size="$size" >/dev/null
    fails nvme read "$(disk)" --start-block=$blocks --block-count=0 --data-size="$size" >/run/said 2>&1
    cat /run/said
    grep -i 'out of range' /run/said
}

deallocated() {
    nvme dsm "$(disk)" --ad --slbs=100,200,300,400,500,600,700,800,900,1000 --blocks=10,10,10,10,10,10,10,10,10,10
}

listed() { nvme list | grep -F "$(disk)"; }

was_reset() {
    nvme reset "/dev/$(controller)"
    wait_for 50 state_is live
    identified
}

smart() { nvme smart-log "$(disk)"; }
effects() { nvme effects-log "/dev/$(controller)"; }
descriptors() { nvme ns-descs "$(disk)" | grep -F "$UUID"; }
rescanned() { nvme ns-rescan "/dev/$(controller)" && identified; }
path_listed() { nvme list-subsys | grep "$transport.*$GUEST.*live"; }

# Writes and reads with single `nvme write` and `nvme read` commands, with lengths around powers of two.
by_command() {
    size=$(blockdev --getss "$(disk)")
    for range in 1,512 1,511 1,513 511,1024 511,1023 511,1025; do
        start=${range%,*} count=${range#*,}
        head -c $((count * size)) /dev/urandom >/run/written
        nvme write "$(disk)" --start-block="$start" --block-count=$((count - 1)) --data-size=$((count * size)) --data=/run/written
        rm -f /run/read
        nvme read "$(disk)" --start-block="$start" --block-count=$((count - 1)) --data-size=$((count * size)) --data=/run/read
        cmp /run/written /run/read
    done
}

random_reads() {
    fio --name=reads --filename="$(disk)" --rw=randread --norandommap --direct=1 --bs=4k --numjobs=2 --group_reporting "$@"
}

reset_and_deleted_under_load() {
    setup
    connect "$NQN"
    wait_for 50 namespace
    random_reads --time_based --runtime=1d >/run/load.log 2>&1 &
    load=$!
    sleep 2
    echo 1 >"/sys/class/nvme/$(controller)/reset_controller"
    sleep 1
    kill -0 $load
    echo 1 >"/sys/class/nvme/$(controller)/delete_controller"
    wait_for 50 no_controller
    kill $load 2>/dev/null || true
    wait $load || true
    cleanup
}

queue_types() {
    expected=$1
    shift
    setup
    connect "$NQN" "$@"
    wait_for 50 namespace
    [ "$(cat "/sys/class/nvme/$(controller)/queue_count")" = "$expected" ]
    random_reads --size=2m --output-format=terse --terse-version=3 | cut -d';' -f3,5,8
    disconnect
    cleanup
}

by_uring_command() {
    generic=/dev/$(namespace | sed 's/nvme/ng/')
    for option in --fixedbufs=0 --fixedbufs=1; do
        fio --name=reads --filename="$generic" --rw=randread --bs=4k --size=1m --iodepth=16 --ioengine=io_uring_cmd --cmd_type=nvme \
            --time_based --runtime=2 $option --output-format=terse --terse-version=3 | cut -d';' -f3,5,8
    done
}

rescanned_under_load() {
    fio_verified &
    load=$!
    while kill -0 $load 2>/dev/null; do
        echo 1 >"/sys/class/nvme/$(controller)/rescan_controller"
        sleep 0.3
    done
    wait $load
}

# The target is removed and set up again several times; the host's I/O waits and continues.
target_gone_under_load() {
    setup
    connect "$NQN" --keep-alive-tmo=1 --reconnect-delay=1
    wait_for 50 namespace
    random_reads --time_based --runtime=1d >/run/load.log 2>&1 &
    load=$!
    sleep 1
    for round in 1 2 3 4 5; do
        cleanup
        wait_for 100 state_is connecting
        setup
        wait_for 100 state_is live
    done
    kill -0 $load
    kill $load
    wait $load || true
    disconnect
    cleanup
}

# The control program refuses to export a disk without the authentication that was asked for.
secret_is_refused() {
    fails control setup --subsysnqn "$NQN" --subsys-uuid "$UUID" --hostnqn "$HOSTNQN" --hostkey DHHC-1:00:x: >/run/said 2>&1
    grep 'no authentication' /run/said
    fails connect "$NQN"
}

# Plain and encrypted connections to a port that allows TLS, then to one that requires it.
encrypted() {
    mkdir -p /etc/nvme
    echo "$HOSTNQN" >/etc/nvme/hostnqn
    modprobe tls
    tlshd_start
    (umask 077 && tls_key 01 >/run/key)
    tls_keys_insert 1
    export BLKTESTS_TLS_KEY_FILE=/run/key BLKTESTS_TLS=allowed
    setup
    connect "$NQN"
    fails is_encrypted
    disconnect
    connect "$NQN" --tls
    is_encrypted
    disconnect
    cleanup
    export BLKTESTS_TLS=required
    setup
    fails connect "$NQN"
    grep 'no TLS on a port that requires it' /run/blktests/target.log
    connect "$NQN" --tls
    is_encrypted
    wait_for 50 namespace
    fio_verified
    disconnect
    cleanup
}

is_encrypted() { [ -n "$(cat "/sys/class/nvme/$(controller)/tls_key")" ]; }

common() {
    trial "006 target created, $1" created
    trial "008 host created, $1" with_disk identified
    trial "010 fio verified, $1" with_disk fio_verified
    trial "012 file system verified, $1" with_disk file_system_verified
    trial "014 flush, $1" with_disk flushed
    trial "019 deallocate, $1" with_disk deallocated
    trial "021 list, $1" with_disk listed
    trial "022 reset, $1" with_disk was_reset
    trial "023 SMART log, $1" with_disk smart
    trial "025 effects log, $1" with_disk effects
    trial "026 namespace descriptors, $1" with_disk descriptors
    trial "027 rescan, $1" with_disk rescanned
    trial "028 subsystems listed, $1" with_disk path_listed
}

group() {
    case $transport in rdma) must 'rxe' rdma_device rxe ;; esac
    modprobe "nvme-$transport"
    trial '003 keep-alive of a discovery controller' discovery_controller_lives
    trial '004 UUID' with_disk identified
    trial '005 reset, then gone' reset_and_gone
    common file
    trial '018 out of range' with_disk out_of_range
    trial '029 I/O by command' with_disk by_command
    trial '040 reset and deleted under load' reset_and_deleted_under_load
    trial '041 a secret is refused' secret_is_refused
    trial '047 write queues' queue_types 4 --nr-write-queues=1
    trial '047 write and poll queues' queue_types 5 --nr-write-queues=1 --nr-poll-queues=1
    trial '049 I/O by io_uring commands' with_disk by_uring_command
    trial '053 rescanned under load' with_disk rescanned_under_load
    trial '061 target gone under load' target_gone_under_load
    case $transport in tcp) trial '062 TLS allowed, then required' encrypted ;; esac
    modprobe loop
    truncate -s 384M /run/device.img
    BLKTESTS_DEVICE=$(losetup -f --show /run/device.img)
    export BLKTESTS_DEVICE
    common device
    cp /run/blktests/target.log /run/target.log
}
