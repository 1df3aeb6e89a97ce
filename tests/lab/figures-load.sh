# What: fio over NVMe/TCP in one guest, both processors of which a third process wants: the kernel's target, ours, ours sleeping at once
# Seconds: 1500
# Alone: yes
. "$LAB/figures.sh"
over='tcp beside two busy threads' transport=tcp listener='transport = "tcp"'
works='randread 4k 1
randread 4k 16'
PAIRS='kernel/kernel kernel/ours kernel/ours,nice kernel/ours,interrupt'

busy_threads() {
    for processor in 1 2; do
        while :; do :; done </dev/null >/dev/null 2>&1 &
    done
}

must 'a busy thread for each processor' busy_threads
figures
