# The kernel's multipath over gateways of a group. A scenario sets GATEWAYS, the names of the gateways from gw1 on.

. "$LAB/lib.sh"

HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a7
HOSTID=2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a7
port=$(host 'echo $PORT')
# Each gateway is one of the host's loopback addresses, which the guest's routes lead there: a discovery log names the
# addresses of the listeners. The port makes them those of this run alone. One on an island has an address there.
net=127.$((port / 256)).$((port % 256))
island=$(host 'echo ${ISLAND_GATEWAY:-}')
# What a failover may take that nobody sees coming, and a planned move: milliseconds, beside what a write takes on this
# machine when nothing happens.
FAILOVER_MAX=10000
MOVE_MAX=1000

address_of() { case $1 in gw1) echo "${island:-$net.1}" ;; *) echo "$net.${1#gw}" ;; esac; }
addresses() { for gateway in $GATEWAYS; do address_of $gateway; done; }
other() { case $1 in gw1) echo gw2 ;; *) echo gw1 ;; esac; }

# --- the group

reachable() {
    echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet
    for address in $(addresses); do ip route add "$address" via $HOST dev eth0 table local; done
}

# `gateways IMAGES`: starts them, with so many images. The first has the ANA group.
gateways() {
    for gateway in $GATEWAYS; do
        host "gateway_start $gateway $(address_of $gateway)"
        [ $gateway != gw1 ] || host "waits gateway_serves gw1"
    done
    host "gateway gw1 subsystem add $NQN --host $HOSTNQN"
    host "for image in \$(seq $1); do
        rbd create --size 64M disk\$image && gateway gw1 namespace add $NQN --rbd rbd/disk\$image >said || exit 1
    done"
}

# Who has the ANA group, by the first that answers.
owner() {
    for gateway in $GATEWAYS; do
        host "gateway $gateway cluster status 2>/dev/null" | jq -er '.result.groups["1"] | select(.state == "owned").gateway' && return
    done
    return 1
}

# --- the host: one disk, with the options that `nvme connect-all` has by default

connect() {
    # From an address that is not a loopback one, nvme-cli connects to none that is.
    for gateway in gw1 ${island:+gw2}; do
        nvme connect-all -t tcp -a "$(address_of $gateway)" -s "$port" --hostnqn=$HOSTNQN --hostid=$HOSTID "$@"
    done
    wait_for 100 paths_are_live
    wait_for 100 disk
    nvme list-subsys
}

disk() {
    for disk in /sys/class/nvme-subsystem/nvme-subsys*/nvme*n1; do
        [ -b "/dev/${disk##*/}" ] && echo "/dev/${disk##*/}" && return
    done
    return 1
}

path_of() {
    for controller in /sys/class/nvme/nvme*; do
        grep -q "traddr=$(address_of "$1")," "$controller/address" && echo "$controller" && return
    done
    return 1
}

paths_are_live() { for gateway in $GATEWAYS; do [ "$(cat "$(path_of $gateway)/state")" = live ] || return 1; done; }

# `discovered GATEWAY`: each gateway tells of all.
discovered() {
    nvme discover -t tcp -a "$(address_of "$1")" -s "$port" --hostnqn=$HOSTNQN --hostid=$HOSTID -o json >/run/discovered.json
    jq -er --arg nqn $NQN '[.records[] | select(.subnqn == $nqn).traddr] | sort | join(" ")' /run/discovered.json >/run/said
    cat /run/said
    [ "$(cat /run/said)" = "$(addresses | sort | tr '\n' ' ' | sed 's/ $//')" ]
}

# --- verified load

# `load_start SECONDS`: so many seconds of writes, then everything is read back. The log has each write: the time that it
# ended, and what it took.
load_start() {
    fio --name=verify --filename="$(disk)" --rw=randwrite --bs=4k --iodepth=16 --ioengine=libaio --direct=1 --size="$(($1 * 512))k" \
        --rate_iops=128 --verify=crc32c --do_verify=1 --verify_fatal=1 --write_lat_log=/run/lat >/run/load.fio.log 2>&1 &
    load=$!
    sleep 4
}

# `load_ends_well WHAT MOST`: without an error and with what was written; no write took longer, and between two of them
# was no more time.
load_ends_well() {
    wait $load || { tail -30 /run/load.fio.log; return 1; }
    grep -E 'err=|IOPS' /run/load.fio.log
    longest=$(awk -F', ' '
        NR > 1 && $1 - last > longest { longest = $1 - last }
        $2 / 1e6 > longest { longest = $2 / 1e6 }
        { last = $1 }
        END { printf "%d", longest }
    ' /run/lat_lat.1.log)
    echo ":: figure $(uname -r), gateways $GATEWAYS, $1: the longest pause of a write was $longest ms"
    [ "$longest" -le $(($2 + $(cat /run/undisturbed 2>/dev/null || echo 0))) ]
}

undisturbed() {
    load_start 15
    load_ends_well 'nothing happens' $FAILOVER_MAX
    echo "$longest" >/run/undisturbed
}

killed() {
    owner=$(owner)
    load_start 30
    host "gateway_signal $owner KILL"
    load_ends_well 'owner killed' $FAILOVER_MAX
    [ "$(owner)" = "$(other "$owner")" ]
}

# By the kernel's own attempts, each ten seconds.
comes_back() {
    owner=$(owner)
    host "gateway_start $(other "$owner") $(address_of "$(other "$owner")")"
    wait_for 200 paths_are_live
    [ "$(owner)" = "$owner" ]
}
