# Figures of fio in one guest. A scenario sets
#
#   over        what the figures are reported to be over
#   transport   rdma | tcp
#   provider    of our initiator and our target over rdma
#   listener    what our target's configuration says of its listener
#   works       what fio does, a line each: RW BS DEPTH (below)
#   unit        of the figures: IOPS (below) | ms
#
# and calls `figures`: kernel on kernel, kernel on ours, ours on ours, ours on kernel; or has rounds of its own.

. "$LAB/cell.sh"
address=$GUEST unit=IOPS
works='randread 4k 1
randread 4k 32
randwrite 4k 32
read 128k 8'

# fio's IOPS of one workload: RW BS DEPTH SECONDS
iops() {
    fio --name=f --filename="$(cat /run/device)" --direct=1 --ioengine=io_uring --rw="$1" --bs="$2" --iodepth="$3" --size=256m \
        --time_based --runtime="$4" --ramp_time=1 --eta=never --output-format=json | jq "[.jobs[0].read.iops, .jobs[0].write.iops] | max | floor"
}

# `measure PAIR`: adds the figures of the connected disk.
measure() {
    echo "$works" | while read -r work; do
        echo "$1|$work|$(iops $work 3 </dev/null)" >>/run/figures
    done
}

# `in_turn TARGET KIND KIND`: adds the figures of two disks that are there at once, /run/device.KIND. They take turns:
# A B B A. The figure of a round is the mean of the two.
in_turn() {
    echo "$works" | while read -r work; do
        : >/run/turns
        for kind in $2 $3 $3 $2; do
            cp "/run/device.$kind" /run/device
            echo "$kind $(iops $work 2 </dev/null)" >>/run/turns
        done
        for kind in $2 $3; do
            awk -v kind=$kind -v of="$kind/$1|$work" '$1 == kind { sum += $2 } END { print of "|" int(sum / 2) }' /run/turns
        done >>/run/figures
    done
}

# `rounds`: measures in six rounds, each of which is `round`. $number is even in every other one.
rounds() {
    for number in 1 2 3 4 5 6; do
        step "round $number" round
    done
}

# `in_order WORD...`: the words, in every other round from the last to the first: A B C, C B A.
in_order() {
    for word in "$@"; do echo "$word"; done | if [ $((number % 2)) = 0 ]; then tac; else cat; fi
}

# `report PAIR...`: prints for each work the figures of each pair, one for each round, and the median of their ratios to
# those of the first.
report() {
    echo "$works" | while read -r work; do
        of() { awk -F'|' -v pair="$1" -v work="$work" '$1 == pair && $2 == work { line = line comma $3; comma = "," } END { print line }' /run/figures; }
        base=$(of "$1")
        line="$over, $work:"
        for pair in "$@"; do
            line="$line ${pair%/*} → ${pair#*/} $(of "$pair") $unit ($(ratio "$(of "$pair")" "$base"));"
        done
        echo ":: figure ${line%;}"
    done
}

# `ratio FIGURES FIGURES`: the median of the ratios, round by round.
ratio() {
    awk -v a="$1" -v b="$2" 'BEGIN {
        split(a, ours, ","); split(b, theirs, ",")
        for (i in ours) if (theirs[i] > 0) print ours[i] / theirs[i]
    }' | sort -g | awk '{ ratio[NR] = $1 } END { printf "%.2f", (ratio[int((NR + 1) / 2)] + ratio[int(NR / 2) + 1]) / 2 }'
}

# Our target, with a memory disk, and the defaults.
our_memory_target() {
    cat >/run/target.toml <<CONFIG
[target]

[[listener]]
address = "$GUEST:4421"
$listener

[[subsystem]]
nqn = "$NQN.ours"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
memory = "512MiB"
block_size = 512
CONFIG
    our_target_start
}

# `third_target_start POLL`: the same with this `poll` on a third port. It runs only while it is measured: one that is busy uses a whole
# processor, so it has one worker. `nice`: as by default, with the priority that its unit gives it.
third_target_start() {
    poll=$1 nice=0
    case $1 in nice) poll=adaptive nice=-20 ;; esac
    sed "s/4421/4422/; s/$NQN.ours/$NQN.third/; s/^\[target]/[target]\npoll = \"$poll\"/" /run/target.toml >/run/third.toml
    case $poll in busy) sed -i 's/^poll = .*/&\nworkers = 1/' /run/third.toml ;; esac
    nice -n $nice nvmf-target serve --config /run/third.toml >/run/third.log 2>&1 &
    echo $! >/run/third.pid
    wait_for 50 grep 'listening on' /run/third.log
}

third_target_stop() {
    kill "$(cat /run/third.pid)"
    while kill -0 "$(cat /run/third.pid)" 2>/dev/null; do sleep 0.1; done
}

# Both targets run at once, on two ports; each initiator measures both in turn, and ours with another `poll`, which is behind a comma.
PAIRS='kernel/kernel kernel/ours kernel/ours,busy ours/kernel ours/ours'

round() {
    for pair in $(in_order $PAIRS); do
        initiator=${pair%/*}
        case ${pair#*/} in
        kernel) port=4420 nqn=$NQN ;;
        ours) port=4421 nqn=$NQN.ours ;;
        ours,*) port=4422 nqn=$NQN.third && third_target_start ${pair#*,} ;;
        esac
        connect
        measure "$pair"
        disconnect
        case $pair in *,*) third_target_stop ;; esac
    done
}

figures() {
    modprobe "nvme-$transport"
    must "the kernel's target starts" kernel_target $transport
    must 'our target starts' our_memory_target
    rounds
    report $PAIRS
    finish
}
