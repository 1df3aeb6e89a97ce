# What: fio with two jobs in one guest: a disk by `nvmf attach` through ublk with two queues, beside one with a single queue
# Seconds: 900
# Alone: yes
. "$LAB/figures.sh"
over=tcp transport=tcp listener='transport = "tcp"'
works='randread 4k 1
randread 4k 16
randwrite 4k 16'

# Two jobs, each on a processor of its own: the requests of one are all of one queue.
iops() {
    fio --name=f --filename="$(cat /run/device)" --direct=1 --ioengine=io_uring --rw="$1" --bs="$2" --iodepth="$3" --size=256m \
        --numjobs=2 --group_reporting --cpus_allowed=0-1 --cpus_allowed_policy=split \
        --time_based --runtime="$4" --ramp_time=1 --eta=never --output-format=json | jq "[.jobs[0].read.iops, .jobs[0].write.iops] | max | floor"
}

# `disk KIND QUEUES`: nobody has a file system on it.
disk() {
    nvmf attach -t tcp -a "$GUEST" -s 4421 -n "$NQN.ours" --as ublk --duplicate-connect --queues "$2" -o json |
        jq -r .device >"/run/device.$1"
}

disks() {
    disk one 1
    disk two 2
}

round() { in_turn ours one two; }

modprobe ublk_drv
must 'our target starts' our_memory_target
must 'both disks are there' disks
rounds
step detached nvmf detach --all
report one/ours two/ours
finish
