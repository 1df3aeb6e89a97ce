# What: `nvme connect-all` of a stock host finds the disk of our target on the host's loopback, and turns flow control off
# Seconds: 120
. "$LAB/lib.sh"

# The discovery log names the address that the host has asked at. 10.0.2.2 is none of the host's own, so it is asked at
# one of its loopback addresses, which the guest's routes lead there. The port makes it the address of this run alone.
port=$(host 'echo $PORT')
address=127.$((port / 256)).$((port % 256)).1

reachable() {
    echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet
    ip route add "$address" via $HOST dev eth0 table local
}

target_starts() {
    cat >/share/target.toml <<CONFIG
[[listener]]
address = "$address:$port"
transport = "tcp"

[[listener]]
address = "$address"
transport = "tcp"
discovery_only = true

[[subsystem]]
nqn = "$NQN"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
memory = "64MiB"
CONFIG
    host target_serve
}

# Runs a command that connects; the target's log of it goes to /run/said.
logged() {
    lines=$(host 'wc -l <target.log')
    "$@"
    wait_for 50 disk
    dd if="$(disk)" of=/dev/null bs=64k count=16 iflag=direct status=none
    host "tail -n +$((lines + 1)) target.log" | tee /run/said
}

disk() {
    for disk in /sys/class/nvme-subsystem/nvme-subsys*/nvme*n1; do
        [ "$(cat "$disk/../subsysnqn")" = "$NQN" ] && [ -b "/dev/$(basename "$disk")" ] || continue
        echo "/dev/$(basename "$disk")"
        return
    done
    return 1
}

# `queues [TEXT]`: how many connected queues of the disk's controller are in the log, with this text behind them.
queues() { grep -c "connected to $NQN with.*${1:-}" /run/said || true; }

discovered() {
    nvme discover -t tcp -a "$address" "$@" -o json | tee /run/discovered.json
    jq -e --arg nqn "$NQN" '.records[] | select(.subnqn == $nqn) | .treq | test("sq flow control disable supported")' \
        /run/discovered.json
}

connected_to_all() {
    logged nvme connect-all -t tcp -a "$address" "$@"
    [ "$(queues)" -ge 3 ]
    [ "$(queues 'without SQ flow control')" = "$(queues)" ]
    disconnect
}

# What `connect` alone does, unless it is told otherwise.
connected_to_one() {
    logged nvme connect -t tcp -a "$address" -s "$port" -n "$NQN"
    [ "$(queues)" -ge 3 ]
    [ "$(queues 'without SQ flow control')" = 0 ]
    disconnect
}

modprobe nvme-tcp
must 'route to the host' reachable
must 'target starts' target_starts
step 'discover at 8009' discovered
step 'connect-all at 8009' connected_to_all
step 'discover at the I/O port' discovered -s "$port"
step 'connect-all at the I/O port' connected_to_all -s "$port"
step 'connect keeps flow control' connected_to_one
finish
