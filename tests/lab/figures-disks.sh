# Figures of disks by `nvmf attach` beside the kernel's own, on each target. A scenario sets what figures.sh has, and calls `disks`.

. "$LAB/figures.sh"
works='randread 4k 1
randread 4k 32
randwrite 4k 32'

# `as KIND COMMAND...`: with this initiator and its disk.
as() {
    kind=$1
    shift
    case $kind in kernel) initiator=kernel options= ;; ublk) initiator=ours options='--as ublk' ;; esac
    cp "/run/device.$kind" /run/device 2>/dev/null || true
    "$@"
    cp /run/device "/run/device.$kind"
}

# Both disks of a target are there at once.
pairs() {
    target=$1
    case $target in
    kernel) port=4420 nqn=$NQN ;;
    ours) port=4421 nqn=$NQN.ours ;;
    esac
    for kind in kernel ublk; do as $kind connect; done
    in_turn $target kernel ublk
    for kind in ublk kernel; do as $kind disconnect; done
    rm /run/device.*
}

round() {
    pairs ours
    pairs kernel
}

disks() {
    modprobe -a "nvme-$transport" ublk_drv
    must "the kernel's target starts" kernel_target $transport
    must 'our target starts' our_memory_target
    rounds
    report kernel/ours ublk/ours
    report kernel/kernel ublk/kernel
    finish
}
