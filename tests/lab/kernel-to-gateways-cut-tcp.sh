# What: the kernel's multipath over three gateways of a group with 64 images: the owner cut from Ceph and not from hosts, two takers
# Cell: kernel `nvme-tcp`, multipath → ours, three gateways of a group | TCP, ANA, 64 images of Ceph
# Ceph: island
# Seconds: 1800
. "$LAB/gateways.sh"
GATEWAYS="gw1 gw2 gw3"
IMAGES=64
# 4 s until the owner sees it, 5 s until its lease is out, 2 s of evidence, and the takeover.
CUT_MAX=13000

all_disks() { [ "$(ls -d /sys/class/nvme-subsystem/nvme-subsys*/nvme*n* | wc -l)" = $IMAGES ]; }

others_than() { for gateway in $GATEWAYS; do [ $gateway = "$1" ] || echo $gateway; done; }

# One gateway serves the ANA group, and all of these say that it is its.
one_serves() {
    owners=$(for gateway in "$@"; do host "gateway $gateway cluster status" | jq -r '.result.groups["1"].gateway'; done | sort -u)
    serving=$(for gateway in "$@"; do host "gateway $gateway cluster status" | jq -r '.result.groups["1"].here'; done | grep -c serving)
    [ "$(echo "$owners" | wc -l)" = 1 ] && [ "$serving" = 1 ]
}

# As a switch does that fails: hosts still reach it.
cut_off() {
    [ "$(owner)" = gw1 ]
    load_start 35
    host 'ip link set $ISLAND_LINK down'
    sleep 16
    host 'gateway gw1 cluster status' | jq -e '.result.state == "suspended"'
    host 'ip link set $ISLAND_LINK up'
    load_ends_well 'owner cut from Ceph' $CUT_MAX
    host 'waits gateway_is_member gw1'
    wait_for 300 paths_are_live
    wait_for 50 one_serves $GATEWAYS
    [ "$(owner)" != gw1 ]
}

# Both others want what its owner had.
two_takers() {
    owner=$(owner)
    load_start 30
    host "gateway_signal $owner KILL"
    load_ends_well "owner of $IMAGES images killed, two takers" $FAILOVER_MAX
    wait_for 50 one_serves $(others_than "$owner")
}

modprobe nvme-tcp
must 'native multipath' grep -q Y /sys/module/nvme_core/parameters/multipath
must 'routes to the host' reachable
must 'gateways' gateways $IMAGES
step 'discover' discovered gw2
must 'connect-all' connect
step 'all images are disks' wait_for 100 all_disks
step 'nothing happens' undisturbed
must 'owner cut from Ceph' cut_off
must 'owner killed, two takers' two_takers
step 'no error' fails sh -c "dmesg | grep -i 'I/O error'"
step 'disconnect' disconnect
finish
