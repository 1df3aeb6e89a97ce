# blktests' nvme group, what it does to the target through configfs: here by reload and restart. A scenario sets
#
#   transport   rdma (over verbs on rxe) | tcp
#
# before this file, calls `group`, and ends with `finish`. Each step has the number of the test with the same purpose.
. "$LAB/lib.sh"

HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a7
HOSTID=2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a7
POINT="-t $transport -a $GUEST -s 4420 --hostnqn=$HOSTNQN --hostid=$HOSTID"

# How the target and `nvmf` are told of the transport.
case $transport in
rdma) listener='provider = "verbs"' carried='-t rdma --provider verbs' ;;
tcp) listener='transport = "tcp"' carried='-t tcp' ;;
esac

# The part of the configuration that is not about subsystems.
general=

# `configure SUBSYSTEM...`: writes the configuration, by a rename so that the target never reads half of it, and reloads.
configure() {
    printf '%s\n' "$general" '[[listener]]' "address = \"$GUEST:4420\"" "$listener" "$@" >/run/target.new
    mv /run/target.new /run/target.toml
    if running; then kill -HUP "$(cat /run/target.pid)"; fi
}

running() { [ -e /run/target.pid ] && kill -0 "$(cat /run/target.pid)" 2>/dev/null; }

# `serve SUBSYSTEM...`: starts the target with these subsystems, or reloads it and waits until that is done.
serve() {
    if running; then
        lines=$(wc -l </run/target.log) reloads=$(grep -c ' reloaded ' /run/target.log || true)
        configure "$@"
        wait_for 100 more_reloads_than "$reloads"
        fails sh -c "tail -n +$((lines + 1)) /run/target.log | grep ERROR"
    else
        configure "$@"
        our_target_start
    fi
}

more_reloads_than() { [ "$(grep -c ' reloaded ' /run/target.log)" -gt "$1" ]; }

stop() {
    kill "$1" "$(cat /run/target.pid)"
    while running; do sleep 0.05; done
}

# `subsystem NQN [any|HOSTNQN]`: prints a subsystem with one null namespace.
subsystem() {
    case ${2:-any} in
    any) access='allow_any_host = true' ;;
    *) access="allowed_hosts = [\"$2\"]" ;;
    esac
    printf '[[subsystem]]\nnqn = "%s"\n%s\n' "$1" "$access"
    above=$1
    namespaces 1
}

# `namespaces NSID...`: prints null namespaces of the subsystem above. Each has a UUID that is the same after a restart.
namespaces() {
    case $above in
    $NQN) above_number=0 ;;
    $NQN-[0-9]*) above_number=${above##*-} ;;
    *) above_number=65535 ;;
    esac
    for nsid in "$@"; do
        printf '[[subsystem.namespace]]\nnsid = %s\nnull = "64MiB"\n' "$nsid"
        printf 'uuid = "6e766d66-0000-4000-8000-%04x%08x"\n' "$above_number" "$nsid"
    done
}

connect() {
    nvme connect $POINT -n "$@"
}

queue_count_is() { state_is live && [ "$(cat "/sys/class/nvme/$(controller)/queue_count")" = "$1" ]; }

# The disk of a namespace. The kernel numbers disks independently of NSIDs.
disk_of() {
    for disk in /sys/block/nvme*n*; do
        node=/dev/$(basename "$disk")
        # Multipath's paths are listed as well, but have no node.
        [ "$(cat "$disk/nsid" 2>/dev/null)" = "$1" ] && [ -b "$node" ] || continue
        echo "$node"
        return
    done
    return 1
}

disk_is_there() { disk_of "$1"; }
disk_is_gone() { ! disk_of "$1"; }

discovered() { nvme discover $POINT -o json | jq "$@"; }
generation() { nvme discover $POINT | sed -n 's/.*Generation counter \([0-9]*\).*/\1/p'; }

# Fails unless the discovery log's generation has grown since the last call.
generation_moves() {
    generation=$(generation)
    echo "$1: generation $generation, was $(cat /run/generation)"
    [ "$generation" -gt "$(cat /run/generation)" ]
    echo "$generation" >/run/generation
}

many_subsystems() {
    serve "$(subsystem $NQN)"
    generation >/run/generation
    serve "$(for number in $(seq 1000); do subsystem "$NQN-$number"; done)"
    generation_moves 'a thousand subsystems'
    discovered -e '[.records[].subnqn | select(contains("'$NQN'-"))] | unique | length == 1000'
    serve "$(subsystem $NQN)"
    generation_moves 'one again'
    discovered -e '[.records[].subnqn | select(contains("'$NQN'"))] == ["'$NQN'"]'
}

# Asks for namespaces one by one: connecting would make the guest's kernel create a thousand disks, which takes minutes.
many_namespaces() {
    serve "$(subsystem $NQN; namespaces $(seq 2 1000))"
    for nsid in 1 2 999 1000; do
        nvmf id-ns $carried -a "$GUEST" -s 4420 -n $NQN --nsid $nsid -o json | jq -e '.nsze == 67108864 / 4096'
    done
    serve "$(subsystem $NQN)"
    fails nvmf id-ns $carried -a "$GUEST" -s 4420 -n $NQN --nsid 1000
}

generation_counter() {
    serve "$(subsystem $NQN)"
    generation >/run/generation
    other=$NQN-other stranger=nqn.2026-11.com.example:stranger
    serve "$(subsystem $NQN; subsystem $other $HOSTNQN)"
    generation_moves 'a subsystem added'
    serve "$(subsystem $NQN; subsystem $other $stranger)"
    generation_moves 'its host replaced'
    discovered -e '[.records[].subnqn | select(. == "'$other'")] == []'
    serve "$(subsystem $NQN; subsystem $other $HOSTNQN)"
    generation_moves 'its host back'
    serve "$(subsystem $NQN)"
    generation_moves 'a subsystem removed'
}

deleted_at_once() {
    for number in 1 2 3 4 5 6 7 8 9 10; do
        serve "$(subsystem $NQN; subsystem "$NQN-$number")"
        connect "$NQN-$number"
        disconnect "$NQN-$number"
        serve "$(subsystem $NQN)"
    done
}

# After a restart with another `io_queues`, the host reconnects with that many queues.
queue_count() {
    stop -TERM
    serve "$(subsystem $NQN)"
    connect $NQN --keep-alive-tmo=1 --reconnect-delay=1
    wait_for 50 queue_count_is 3
    for queues in 1 2; do
        stop -TERM
        general="[target]
io_queues = $queues"
        serve "$(subsystem $NQN)"
        wait_for 100 queue_count_is $((queues + 1))
    done
    disconnect
}

namespaces_come_and_go() {
    serve "$(subsystem $NQN)"
    connect $NQN
    wait_for 50 disk_is_there 1
    for number in 2 3 4 5 6 7 8 9 10 11; do
        serve "$(subsystem $NQN; namespaces $number)"
        wait_for 50 disk_is_there $number
        serve "$(subsystem $NQN)"
        wait_for 50 disk_is_gone $number
    done
    disconnect
}

# A namespace is removed and added again, as fast as the target reloads, with I/O on it.
changed_while_in_use() {
    with=$(subsystem $NQN; namespaces 2) without=$(subsystem $NQN)
    serve "$with"
    connect $NQN
    wait_for 50 disk_is_there 2
    (while [ ! -e /run/changed ]; do dd if="$(disk_of 2)" of=/dev/null bs=4k iflag=direct status=none; done) >/run/said 2>&1 &
    load=$!
    for round in 1 2 3 4 5 6 7 8 9 10; do
        configure "$without"
        sleep 0.1
        configure "$with"
        sleep 0.1
    done
    serve "$without"
    wait_for 50 disk_is_gone 2
    serve "$with"
    wait_for 50 disk_is_there 2
    touch /run/changed
    wait $load || true
    dd if="$(disk_of 2)" of=/dev/null bs=4k count=1 iflag=direct status=none
    disconnect
}

# A host that has not yet noticed that a namespace is gone gets its write refused, and nothing else happens.
written_when_gone() {
    serve "$(subsystem $NQN; namespaces 2)"
    connect $NQN
    wait_for 50 disk_is_there 2
    nvme set-feature "/dev/$(controller)" --feature-id=0xb --value=0
    serve "$(subsystem $NQN)"
    disk_is_there 2
    fails nvme write "$(disk_of 2)" --start-block=1 --block-count=0 --data-size=4096 --data=/bin/sh >/run/said 2>&1
    cat /run/said
    grep -i 'invalid.*namespace' /run/said
    disconnect
}

# The target is killed and restarted while the host connects, is connected, or reconnects.
killed() {
    for pause in 0 0.5 1 2 3; do
        connect $NQN --keep-alive-tmo=1 --reconnect-delay=1 &
        connecting=$!
        sleep $pause
        stop -KILL
        serve "$(subsystem $NQN)"
        wait $connecting || true
        nvme disconnect -n $NQN
        wait_for 50 no_controller
    done
    connect $NQN
    wait_for 50 disk_is_there 1
    disconnect
}

# Runs a step and cleans up if it failed, so that the next one starts clean. (Not `step || ...`, which ignores `set -e`.)
trial() {
    step "$@"
    [ $? -eq 0 ] || nvme disconnect-all
}

group() {
    case $transport in rdma) must rxe rdma_device rxe ;; esac
    modprobe "nvme-$transport"
    trial '002 a thousand subsystems discovered' many_subsystems
    trial '016, 017 a thousand namespaces' many_namespaces
    trial '030 generation counter' generation_counter
    trial '031 deleted at once' deleted_at_once
    trial '048 queue count changes' queue_count
    trial '051 changed while in use' changed_while_in_use
    trial '052, 058 namespaces come and go' namespaces_come_and_go
    trial '055 written when it is gone' written_when_gone
    trial '060 target killed while hosts come and go' killed
}
