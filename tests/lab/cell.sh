# A cell of the matrix: the checks for one initiator and one target. A scenario sets
#
#   initiator   kernel | ours
#   transport   rdma | tcp
#   provider    of our initiator over rdma: iwarp | verbs
#   tls         options of TLS, of every command that connects
#   options     further options of the kernel's `nvme connect` and of our `attach`
#   address, port, nqn
#   target_kill, target_restart    commands
#
# and calls `cell`.

. "$LAB/lib.sh"
transport=rdma options= tls=

# --- the initiators: the same operations and queries for each

connect() {
    case $initiator in
    kernel)
        nvme connect -t $transport -a "$address" -s "$port" -n "$nqn" -i 2 --reconnect-delay=1 --ctrl-loss-tmo=120 $tls $options
        wait_for 50 kernel_device
        ;;
    ours)
        nvmf attach $(carried) -a "$address" -s "$port" -n "$nqn" -i 2 -c 1 -l 120 $options -o json >/run/attached.json
        cat /run/attached.json
        jq -er .device /run/attached.json >/run/device
        ;;
    esac
    DEV=$(cat /run/device)
    blockdev --getsize64 "$DEV"
}

# The block device of our subsystem, by its NQN.
kernel_device() {
    for controller in /sys/class/nvme/nvme*; do
        [ "$(cat "$controller/subsysnqn")" = "$nqn" ] || continue
        [ "$(cat "$controller/state")" = live ] || continue
        basename "$controller" >/run/controller
        for disk in /sys/class/nvme-subsystem/nvme-subsys*/nvme*n1; do
            [ "$(cat "$disk/../subsysnqn")" = "$nqn" ] || continue
            echo "/dev/$(basename "$disk")" >/run/device
            blockdev --getsize64 "$(cat /run/device)" && return 0
        done
    done
    return 1
}

disconnect() {
    case $initiator in
    kernel) nvme disconnect -n "$nqn" ;;
    ours) nvmf detach "$(cat /run/device)" ;;
    esac
    [ ! -b "$(cat /run/device)" ]
}

# What our commands are told of the transport.
carried() {
    case $transport in
    rdma) echo -t rdma --provider "$provider" ;;
    tcp) echo -t tcp $tls ;;
    esac
}

remote() { echo $(carried) -a "$address" --trsvcid "$port" -n "$nqn"; }

# Makes what is copied onto file systems: a tree of many small files, and some large ones.
TREE="/usr/share/perl5 /usr/sbin"

discover() {
    case $initiator in
    kernel) nvme discover -t $transport -a "$address" -s "$port" $tls -o json ;;
    ours) nvmf discover $(carried) -a "$address" -s "$port" -o json ;;
    esac >/run/discovered.json
    cat /run/discovered.json
    jq -e --arg nqn "$nqn" '[.records[] | select(.subnqn == $nqn)] | length == 1' /run/discovered.json
}

identify() {
    case $initiator in
    kernel)
        nvme id-ctrl "/dev/$(cat /run/controller)" -o json | jq -e --arg nqn "$nqn" '(.subnqn | startswith($nqn)) and .mdts >= 0'
        nvme id-ns "$(cat /run/device)" -o json | jq -e '.nsze > 0'
        grep . "/sys/class/nvme/$(cat /run/controller)/queue_count"
        [ "$(cat "/sys/class/nvme/$(cat /run/controller)/queue_count")" -ge 3 ]
        ;;
    ours)
        nvmf id-ctrl $(remote) -o json | jq -e --arg nqn "$nqn" '.subnqn == $nqn'
        nvmf id-ns $(remote) -o json | jq -e '.nsze > 0'
        ;;
    esac
}

list() {
    case $initiator in
    kernel) nvme list -o json | jq . && nvme list | grep -F "$(cat /run/device)" ;;
    ours) nvmf list && nvmf list -o json | jq -e --arg device "$(cat /run/device)" 'any(.. | strings; . == $device)' ;;
    esac
}

verify() {
    DEV=$(cat /run/device) fio --eta=never --output-format=terse --terse-version=3 --output=/run/verify.fio.log "$LAB/verify.fio" || {
        cat /run/verify.fio.log
        return 1
    }
    cut -d';' -f3,5,8,49 /run/verify.fio.log
}

file_system() {
    case $1 in
    ext4) mkfs.ext4 -q -F "$(cat /run/device)" ;;
    xfs) modprobe xfs && mkfs.xfs -q -f "$(cat /run/device)" ;;
    esac
    mount -t "$1" "$(cat /run/device)" /mnt
    mkdir /mnt/tree
    cp -a $TREE /mnt/tree/
    sync
    umount /mnt
    mount -t "$1" "$(cat /run/device)" /mnt
    for tree in $TREE; do diff -r --no-dereference "$tree" "/mnt/tree/$(basename "$tree")"; done
    umount /mnt
    case $1 in
    ext4) fsck.ext4 -fn "$(cat /run/device)" ;;
    xfs) xfs_repair -n "$(cat /run/device)" ;;
    esac
}

pattern() { yes 'nvmf lab' | head -c 1048576 >/run/pattern; }

# Flush, discard and write zeroes; each is checked by reading afterwards.
flush() {
    pattern
    dd if=/run/pattern of="$(cat /run/device)" bs=64k oflag=direct conv=fsync status=none
    case $initiator in
    kernel) nvme flush "$(cat /run/device)" ;;
    ours) nvmf flush $(remote) ;;
    esac
    dd if="$(cat /run/device)" bs=64k count=16 iflag=direct status=none | cmp - /run/pattern
}

discard() { blkdiscard -o 0 -l 524288 "$(cat /run/device)"; }

write_zeroes() {
    pattern
    dd if=/run/pattern of="$(cat /run/device)" bs=64k oflag=direct conv=fsync status=none
    blkdiscard -z -o 65536 -l 131072 "$(cat /run/device)"
    dd if="$(cat /run/device)" bs=64k skip=1 count=2 iflag=direct status=none | cmp -n 131072 - /dev/zero
    dd if="$(cat /run/device)" bs=64k count=1 iflag=direct status=none | cmp -n 65536 - /run/pattern
    case $initiator in
    kernel) nvme write-zeroes "$(cat /run/device)" --start-block=0 --block-count=7 ;;
    ours) nvmf write-zeroes $(remote) --start-block=0 --block-count=7 --force ;;
    esac
    dd if="$(cat /run/device)" bs=4k count=1 iflag=direct status=none | cmp -n 4096 - /dev/zero
}

# Compare, if the target has it (the kernel's does not, as its ONCS says).
compare() {
    pattern
    dev=$(cat /run/device)
    case $initiator in
    kernel)
        size=$(blockdev --getss "$dev")
        dd if=/run/pattern of="$dev" bs=64k oflag=direct conv=fsync status=none
        nvme compare "$dev" -s 0 -c 0 -z "$size" -d /run/pattern
        ! nvme compare "$dev" -s 0 -c 0 -z "$size" -d /bin/sh
        ;;
    ours)
        dd if=/run/pattern of="$dev" bs=64k oflag=direct conv=fsync status=none
        if [ $(($(nvmf id-ctrl $(remote) -o json | jq .oncs) & 1)) -eq 1 ]; then
            nvmf compare $(remote) --start-block=0 --block-count=15 --data=/run/pattern
            ends_with 1 'Compare Failure' nvmf compare $(remote) --start-block=0 --block-count=15 --data=/bin/sh
        else
            ends_with 2 'has no Compare' nvmf compare $(remote) --start-block=0 --block-count=15 --data=/run/pattern
        fi
        ;;
    esac
}

# `ends_with STATUS TEXT COMMAND...`: the command ends with this status and its error contains the text.
ends_with() {
    want=$1 text=$2 status=0
    shift 2
    "$@" 2>/run/said || status=$?
    cat /run/said
    [ $status -eq "$want" ] && grep -qF "$text" /run/said
}

smart() {
    case $initiator in
    kernel) nvme smart-log "/dev/$(cat /run/controller)" -o json | jq -e '.critical_warning == 0 or .critical_warning.value == 0' ;;
    ours) nvmf smart-log $(remote) -o json | jq -e '.critical_warning == 0' ;;
    esac
}

# A minute without I/O, in which keep-alives alone keep the association.
quiet_minute() {
    before=$(reconnects)
    sleep 60
    [ "$(reconnects)" = "$before" ]
    dd if="$(cat /run/device)" of=/dev/null bs=4k count=1 iflag=direct status=none
}

reconnects() {
    case $initiator in
    kernel) dmesg | grep -c -i reconnect || true ;;
    ours) grep -c -i 'reconnect\|lost' /run/nvmf/*.log || true ;;
    esac
}

reconnect() {
    disconnect
    connect
    dd if="$(cat /run/device)" of=/dev/null bs=64k count=16 iflag=direct status=none
}

# The target is killed under load and restarted; every write is verified.
killed_under_load() {
    fio --name=load --filename="$(cat /run/device)" --direct=1 --ioengine=libaio --rw=randwrite --bs=4k --iodepth=16 \
        --size=20m --rate_iops=400 --verify=crc32c --do_verify=1 --verify_fatal=1 --eta=never \
        --output=/run/load.fio.log &
    load=$!
    sleep 3
    $target_kill
    sleep 2
    kill -0 $load
    $target_restart
    wait $load || { cat /run/load.fio.log; return 1; }
    grep -E 'err=|IOPS' /run/load.fio.log
}

cell() {
    must discover discover
    must connect connect
    step identify identify
    step list list
    step 'fio verified' verify
    step ext4 file_system ext4
    step xfs file_system xfs
    step flush flush
    step discard discard
    step 'write zeroes' write_zeroes
    step compare compare
    step 'SMART log' smart
    step 'quiet minute' quiet_minute
    must reconnect reconnect
    step 'killed under load' killed_under_load
    step disconnect disconnect
    finish
}
