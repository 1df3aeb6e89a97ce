# What: throughput and 99th percentile against loss on the network, over NVMe/TCP: the kernel's target and ours under each initiator
# Seconds: 1800
# Alone: yes
. "$LAB/figures.sh"
. "$LAB/far.sh"
transport=tcp listener='transport = "tcp"' address=$link_1
# Where the targets listen.
GUEST=$link_1
LOSSES='0 0.1 1 3'

kernel_target_start() {
    $in_far ln -s "/sys/kernel/config/nvmet/subsystems/$NQN" "/sys/kernel/config/nvmet/ports/1/subsystems/$NQN"
}

our_target_start() {
    $in_far nvmf-target serve --config /run/target.toml >>/run/target.log 2>&1 </dev/null &
    wait_for 50 nvmf discover -t tcp -a $link_1 --trsvcid 4421
}

# A network of half a millisecond there and back, on which both directions lose this many of a hundred packets.
loses() {
    tc qdisc replace dev near1 root netem limit 10000 delay 250us loss "$1%"
    $in_far tc qdisc replace dev far1 root netem limit 10000 delay 250us loss "$1%"
}

# `lossy PAIR`: adds the figures of the connected disk at each loss.
lossy() {
    for loss in $LOSSES; do
        loses "$loss"
        fio --name=f --filename="$(cat /run/device)" --direct=1 --ioengine=io_uring --rw=randread --bs=4k --iodepth=32 --size=256m \
            --time_based --runtime=4 --ramp_time=1 --eta=never --output-format=json </dev/null |
            jq -r --arg of "$1" --arg loss "$loss" '.jobs[0].read | "\($of)|IOPS, loss of \($loss) %|\(.iops | floor)", "\($of)|99th percentile in us, loss of \($loss) %|\(.clat_ns.percentile["99.000000"] / 1000 | floor)"' >>/run/figures
    done
    loses 0
}

round() {
    for pair in kernel/kernel kernel/ours ours/kernel ours/ours; do
        initiator=${pair%/*}
        case ${pair#*/} in
        kernel) port=4420 nqn=$NQN ;;
        ours) port=4421 nqn=$NQN.ours ;;
        esac
        connect
        lossy "$pair"
        disconnect
    done
}

modprobe -a nvme-tcp ublk_drv sch_netem
must 'two links' links
must "the kernel's target starts" kernel_target tcp
must 'our target starts' our_memory_target
rounds
over=tcp unit=''
works=$(for what in IOPS '99th percentile in us'; do for loss in $LOSSES; do echo "$what, loss of $loss %"; done; done)
report kernel/kernel kernel/ours ours/kernel ours/ours
finish
