# What: two machines and one disk: a second machine finds it by discovery, both use it, and reserve it
# Kernels: stable backports
# Machines: 2
# Cell: kernel `nvme-tcp`, two machines → ours | TCP, reservations
# Seconds: 300
. "$LAB/two-hosts.sh"

configured() {
    mkdir -p /var/lib/nvmf
    truncate -s 128M /root/disk.img
    cat >/run/target.toml <<CONFIG
[[listener]]
address = "$GUEST:4420"
transport = "tcp"
[[listener]]
address = "$FIRST:4420"
transport = "tcp"
[[subsystem]]
nqn = "$NQN"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
path = "/root/disk.img"
CONFIG
    our_target_start
}

# `there COMMAND...`: on the second machine, which has the functions of two-hosts.sh. `$THERE` is its disk.
THERE=/dev/there
there() { second ". \"\$LAB/two-hosts.sh\"; $*"; }

second_connects() {
    there "modprobe nvme-core multipath=N; modprobe nvme-tcp
        nvme connect-all -t tcp -a $FIRST -s 4420 --hostnqn=$(host_nqn 2) --hostid=00000000-0000-4000-8000-000000000002 \
            --reconnect-delay=1 --keep-alive-tmo=5
        wait_for 50 sh -c 'test -b /dev/nvme*n1'
        ln -s /dev/nvme*n1 $THERE"
}

# What one writes, the other reads.
shared() {
    there "dd if=/dev/urandom of=/run/bytes bs=1M count=8 status=none
        dd if=/run/bytes of=$THERE bs=1M oflag=direct status=none
        md5sum </run/bytes" >/run/expected
    dd if="$(host_disk 1)" bs=1M count=8 iflag=direct status=none | md5sum | cmp - /run/expected
}

reserved() {
    one=$(host_disk 1)
    nvme resv-register "$one" --nrkey=0x11 --rrega=0 --cptpl=3
    there nvme resv-register $THERE --nrkey=0x22 --rrega=0 --cptpl=3
    nvme resv-acquire "$one" --crkey=0x11 --rtype=1 --racqa=0
    writes "$one"
    there reads $THERE
    there conflict writes $THERE
}

modprobe nvme-core multipath=N
modprobe nvme-tcp
must 'target starts' configured
must 'first machine connects' host_connect 1
must 'second machine finds the disk' second_connects
step 'shared' shared
step 'reserved' reserved
nvme disconnect-all
finish
