# What: what the kernel sees of namespaces that change under it: masking per host, growth, write protection, Copy
# Kernels: stable backports
# Cell: kernel `nvme-tcp`, two hosts → ours | TCP, namespaces
# Seconds: 200
. "$LAB/two-hosts.sh"

# `configure VISIBLE_TO_ONE VISIBLE_TO_TWO`: namespaces 1 (for both hosts), and those that only one of them has.
configure() {
    {
        printf '[target]\ncontrol_socket = "/run/control"\n[[listener]]\naddress = "%s:4420"\ntransport = "tcp"\n' "$GUEST"
        printf '[[subsystem]]\nnqn = "%s"\nallowed_hosts = ["%s", "%s"]\n' "$NQN" "$(host_nqn 1)" "$(host_nqn 2)"
        namespace 1
        for nsid in $1; do namespace "$nsid" 1; done
        for nsid in $2; do namespace "$nsid" 2; done
    } >/run/target.new
    mv /run/target.new /run/target.toml
}

# `namespace NSID [HOST]`
namespace() {
    [ -e "/root/disk$1.img" ] || truncate -s 64M "/root/disk$1.img"
    printf '[[subsystem.namespace]]\nnsid = %s\npath = "/root/disk%s.img"\n' "$1" "$1"
    [ -z "${2:-}" ] || printf 'hosts = ["%s"]\n' "$(host_nqn "$2")"
}

reload() { kill -HUP "$(cat /run/target.pid)"; }

# `sees HOST NSID...`: these are the disks of this host, and what the controller lists.
sees() {
    seen=$(for disk in "/sys/class/nvme/$(basename "$(host_controller "$1")")"/nvme*n*; do cat "$disk/nsid"; done | sort -n | xargs)
    listed=$(nvme list-ns "$(host_controller "$1")" -o json | jq -r '.nsid_list[].nsid' | xargs)
    shift
    echo "disks: $seen; listed: $listed; expected: $*"
    [ "$seen" = "$*" ] && [ "$listed" = "$*" ]
}

masked() {
    wait_for 50 sees 1 1 2
    wait_for 50 sees 2 1 3
    # By its number, too, it is not there: Identify answers as for a namespace that never was.
    nvme id-ns "$(host_controller 1)" --namespace-id=3 -o json | jq -eM '.nsze == 0'
}

# What a host is given and what it loses, at run time: the kernel scans again.
masked_anew() {
    configure 3 2
    reload
    wait_for 50 sees 1 1 3
    wait_for 50 sees 2 1 2
    configure '2 3' ''
    reload
    wait_for 50 sees 1 1 2 3
    wait_for 50 sees 2 1
    # The namespace that both have was never away.
    kill -0 $load
}

size_is() { [ "$(blockdev --getsize64 "$(host_disk 1)")" = $(($1 * 1048576)) ] && [ "$(blockdev --getsize64 "$(host_disk 2)")" = $(($1 * 1048576)) ]; }

# Noticed by itself, and on request.
grown() {
    truncate -s 96M /root/disk1.img
    wait_for 100 size_is 96
    truncate -s 128M /root/disk1.img
    nvmf-target ctl --socket /run/control namespace resize "$NQN" 1
    wait_for 10 size_is 128
    dd if=/dev/urandom of=/run/bytes bs=1M count=1 status=none
    dd if=/run/bytes of="$(host_disk 1)" bs=1M seek=127 oflag=direct status=none
    dd if="$(host_disk 2)" bs=1M skip=127 iflag=direct status=none | cmp - /run/bytes
}

read_only_is() { [ "$(cat "/sys/block/$(basename "$(host_disk 1)")/ro")" = "$1" ]; }

write_protected() {
    nvmf-target ctl --socket /run/control namespace set "$NQN" 1 --read-only true
    wait_for 50 read_only_is 1
    fails dd if=/dev/zero of="$(host_disk 1)" bs=4k count=1 oflag=direct conv=notrunc status=none
    nvmf-target ctl --socket /run/control namespace set "$NQN" 1 --read-only false
    wait_for 50 read_only_is 0
    dd if=/dev/zero of="$(host_disk 1)" bs=4k count=1 oflag=direct conv=notrunc status=none
}

# Three ranges into one, within a namespace (the kernel's own interface has no Copy: this is a command of nvme-cli's).
copied() {
    disk=$(host_disk 1)
    dd if=/dev/urandom of="$disk" bs=4k count=64 oflag=direct status=none
    nvme copy "$disk" --sdlba=1000 --slbs=0,32,16 --blocks=15,7,3
    dd if="$disk" bs=4k count=64 iflag=direct status=none >/run/before
    { dd if=/run/before bs=4k count=16; dd if=/run/before bs=4k skip=32 count=8; dd if=/run/before bs=4k skip=16 count=4; } \
        2>/dev/null >/run/expected
    dd if="$disk" bs=4k skip=1000 count=28 iflag=direct status=none | cmp - /run/expected
    fails nvme copy "$disk" --sdlba=1000 --slbs=99999999 --blocks=0
}

load_start() {
    fio --name=reads --filename="$(host_disk 1)" --rw=randread --bs=4k --iodepth=4 --ioengine=libaio --direct=1 --size=32m \
        --time_based --runtime=1d --rate_iops=200 --eta=never >/run/load.fio.log 2>&1 &
    load=$!
}

load_ends() {
    kill -0 $load
    kill $load
    wait_for 50 grep 'err= *0' /run/load.fio.log
    fails grep 'io_u error' /run/load.fio.log
}

modprobe nvme-core multipath=N
modprobe nvme-tcp
configure 2 3
must 'target starts' our_target_start
must 'first host connects' host_connect 1
must 'second host connects' host_connect 2
must 'disks' wait_for 50 sees 1 1 2
load_start
step 'masked' masked
step 'masked anew' masked_anew
step 'grown' grown
step 'no error on what stayed' load_ends
step 'write-protected' write_protected
step 'copied' copied
nvme disconnect-all
finish
