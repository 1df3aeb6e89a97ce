# What: two hosts of the kernel share a disk of our target by reservations, which outlive its kill
# Kernels: stable backports
# Cell: kernel `nvme-tcp`, two hosts → ours | TCP, reservations
# Seconds: 300
. "$LAB/two-hosts.sh"

# `report_is DISK FILTER`: what the reservation report says. (nvme-cli prints the registrants in place of their number if
# both have one name.)
report_is() {
    nvme resv-report "$1" --eds -o json >/run/report.json
    jq -cM . /run/report.json
    jq -eM "$2" >/dev/null /run/report.json
}

# blktests 054: each command, and what the report says after it.
every_command() {
    one=$(host_disk 1)
    report_is "$one" '.regctl == 0 and .rtype == 0'
    nvme resv-register "$one" --nrkey=4 --rrega=0
    report_is "$one" '.regctl == 1 and .rtype == 0 and .regctlext[0].rkey == 4'
    nvme resv-register "$one" --crkey=4 --nrkey=5 --rrega=2
    report_is "$one" '.regctl == 1 and .regctlext[0].rkey == 5'
    conflict nvme resv-register "$one" --crkey=4 --rrega=1
    nvme resv-register "$one" --crkey=5 --rrega=1
    report_is "$one" '.regctl == 0'
    nvme resv-register "$one" --nrkey=4 --rrega=0
    nvme resv-acquire "$one" --crkey=4 --rtype=1 --racqa=0
    report_is "$one" '.rtype == 1 and .regctlext[0].rcsts == 1'
    nvme resv-acquire "$one" --crkey=4 --prkey=4 --rtype=2 --racqa=1
    report_is "$one" '.rtype == 2'
    nvme resv-release "$one" --crkey=4 --rtype=2 --rrela=0
    report_is "$one" '.rtype == 0 and .regctl == 1'
    nvme resv-acquire "$one" --crkey=4 --rtype=1 --racqa=0
    nvme resv-release "$one" --crkey=4 --rrela=1
    report_is "$one" '.rtype == 0 and .regctl == 0'
}

# Each type, as a host that is not registered and one that is find it: `TYPE STRANGER MEMBER`, r and w where reads and
# writes pass.
every_type() {
    one=$(host_disk 1) two=$(host_disk 2)
    nvme resv-register "$one" --nrkey=0x11 --rrega=0
    for row in '1 r r' '2 - -' '3 r rw' '4 - rw' '5 r rw' '6 - rw'; do
        set -- $row
        nvme resv-acquire "$one" --crkey=0x11 --rtype="$1" --racqa=0
        passes "$two" "$2"
        nvme resv-register "$two" --nrkey=0x22 --rrega=0
        passes "$two" "$3"
        passes "$one" rw
        nvme resv-register "$two" --crkey=0x22 --rrega=1
        nvme resv-release "$one" --crkey=0x11 --rtype="$1" --rrela=0
    done
    nvme resv-release "$one" --crkey=0x11 --rrela=1
}

passes() {
    case $2 in *r*) reads "$1" ;; *) conflict reads "$1" ;; esac
    case $2 in *w) writes "$1" ;; *) conflict writes "$1" ;; esac
}

one_writer() {
    one=$(host_disk 1) two=$(host_disk 2)
    nvme resv-register "$one" --nrkey=0x11 --rrega=0 --cptpl=3
    nvme resv-register "$two" --nrkey=0x22 --rrega=0 --cptpl=3
    nvme resv-acquire "$one" --crkey=0x11 --rtype=1 --racqa=0
    writes "$one"
    reads "$two"
    conflict writes "$two"
    conflict nvme resv-acquire "$two" --crkey=0x22 --rtype=1 --racqa=0
}

# What fencing agents do: the first host writes without a pause, the second one preempts it and has the disk.
fenced() {
    one=$(host_disk 1) two=$(host_disk 2)
    fio --name=load --filename="$one" --rw=randwrite --bs=4k --iodepth=8 --ioengine=libaio --direct=1 --size=64m \
        --time_based --runtime=60 >/run/fenced.fio.log 2>&1 &
    load=$!
    sleep 3
    kill -0 $load
    nvme resv-acquire "$two" --crkey=0x22 --prkey=0x11 --rtype=1 --racqa=2
    # What the second host writes now, nobody overwrites.
    dd if=/dev/urandom of=/run/bytes bs=1M count=64 status=none
    dd if=/run/bytes of="$two" bs=1M oflag=direct status=none
    if wait $load; then return 1; fi
    grep -i 'invalid exchange' /run/fenced.fio.log
    dd if="$two" bs=1M count=64 iflag=direct status=none | cmp - /run/bytes
    conflict writes "$one"
    report_is "$two" '.rtype == 1 and .regctl == 1 and .regctlext[0].rkey == 34 and .regctlext[0].rcsts == 1'
    # The first host is told: the log's first page is of type 1, registration preempted. (Linux does not read it by itself.)
    nvme get-log "$(host_controller 1)" --log-id=0x80 --log-len=64 --raw-binary >/run/notifications
    od -An -tu1 /run/notifications
    [ "$(od -An -tu1 -j8 -N1 /run/notifications | tr -d ' ')" = 1 ]
}

killed_and_restarted() {
    our_target_kill
    our_target_start
    wait_for 100 back
    one=$(host_disk 1) two=$(host_disk 2)
    report_is "$two" '.rtype == 1 and .regctl == 1 and .ptpls == 1 and .regctlext[0].rkey == 34'
    conflict writes "$one"
    writes "$two"
}
back() { reads "$(host_disk 1)" && reads "$(host_disk 2)"; }

# util-linux's blkpr: the kernel's own reservation calls, as device-mapper and pNFS use them.
by_the_kernel() {
    one=$(host_disk 1) two=$(host_disk 2)
    blkpr -c clear -k 0x22 "$two"
    blkpr -c register -k 0x31 "$one"
    blkpr -c register -k 0x32 "$two"
    blkpr -c reserve -k 0x31 -t write-exclusive-reg-only "$one"
    report_is "$one" '.rtype == 3 and .regctl == 2 and .ptpls == 1'
    writes "$two"
    conflict blkpr -c reserve -k 0x32 -t write-exclusive-reg-only "$two"
    blkpr -c preempt-abort -K 0x32 -k 0x31 -t write-exclusive-reg-only "$two"
    report_is "$two" '.rtype == 3 and .regctl == 1 and .regctlext[0].rkey == 50'
    conflict writes "$one"
    writes "$two"
    blkpr -c release -k 0x32 -t write-exclusive-reg-only "$two"
    writes "$one"
    blkpr -c clear -k 0x32 "$two"
    report_is "$one" '.rtype == 0 and .regctl == 0'
}

modprobe nvme-core multipath=N
modprobe nvme-tcp
mkdir -p /var/lib/nvmf
must 'target starts' our_target tcp
must 'first host connects' host_connect 1
must 'second host connects' host_connect 2
step 'every command (054)' every_command
step 'every type' every_type
step 'one writer' one_writer
step 'preempted under load' fenced
step 'killed and restarted' killed_and_restarted
step 'by the kernel' by_the_kernel
nvme disconnect-all
finish
