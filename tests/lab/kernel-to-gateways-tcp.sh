# What: the kernel's multipath over two gateways of a group, an image of Ceph: the owner killed, stopped, moved from, under fio
# Kernels: stable backports
# Cell: kernel `nvme-tcp`, multipath → ours, two gateways of a group | TCP, ANA, an image of Ceph
# Ceph: yes
# Seconds: 2400
. "$LAB/gateways.sh"
GATEWAYS="gw1 gw2"

# The owner stops, and goes on when the other one serves, under load.
stopped() {
    owner=$(owner)
    load_start 40
    host "gateway_signal $owner STOP"
    host "waits gateway_serves $(other "$owner")"
    sleep 2
    host "gateway_signal $owner CONT"
    # The host notices a silent gateway by its Keep Alive Timeout.
    load_ends_well 'owner stopped' 30000
    host "waits gateway_is_member $owner"
    wait_for 200 paths_are_live
    [ "$(owner)" = "$(other "$owner")" ]
}

# An OSD hangs for eight seconds: what it has waits, leases are late, and nobody is fenced for that.
osd_hung() {
    owner=$(owner)
    load_start 30
    begun=$(date +%s%3N)
    host 'ceph_signal osd 1 STOP'
    sleep 8
    host 'ceph_signal osd 1 CONT'
    # One that was marked down meanwhile joins anew, which is Ceph's time. The host, whose connection was closed, tries each 10 s.
    host "waits gateway_is_member $owner"
    load_ends_well 'OSD hung for 8 s' $(($(date +%s%3N) - begun + 12000))
    host "waits gateway_is_member gw1"
    host "waits gateway_is_member gw2"
    [ "$(owner)" = "$owner" ]
}

# I/O needs no monitor.
monitor_hung() {
    load_start 25
    host 'ceph_signal mon a STOP'
    sleep 12
    host 'ceph_signal mon a CONT'
    load_ends_well 'monitor hung for 12 s' $FAILOVER_MAX
}

# Without a monitor nobody can be fenced, and so nothing is taken over.
killed_without_monitor() {
    owner=$(owner)
    load_start 45
    host 'ceph_signal mon a STOP'
    host "gateway_signal $owner KILL"
    sleep 15
    fails host "gateway_serves $(other "$owner")"
    host 'ceph_signal mon a CONT'
    load_ends_well 'owner killed while the monitor hung for 15 s' 40000
    [ "$(owner)" = "$(other "$owner")" ]
}

# From then on there are two OSDs.
osd_killed() {
    load_start 30
    host 'ceph_signal osd 2 KILL'
    load_ends_well 'OSD killed' 40000
}

# What a stopped owner had been given before is refused when it goes on: everything was written anew meanwhile.
old_writes() {
    for round in 1 2 3; do
        owner=$(owner)
        fio --name=old --filename="$(disk)" --rw=randwrite --bs=16k --iodepth=64 --ioengine=libaio --direct=1 --size=8m \
            --buffer_pattern=0x11 --loops=1000 --time_based --runtime=8 >/run/load.fio.log 2>&1 &
        load=$!
        sleep 4
        host "gateway_signal $owner STOP"
        wait $load || { tail -30 /run/load.fio.log; return 1; }
        tr '\0' '\042' </dev/zero | dd of="$(disk)" bs=64k count=128 iflag=fullblock oflag=direct status=none
        host "gateway_signal $owner CONT"
        host "waits gateway_is_member $owner"
        wait_for 200 paths_are_live
        tr '\0' '\042' </dev/zero | head -c 8388608 >/run/new
        dd if="$(disk)" bs=64k count=128 iflag=direct status=none | cmp - /run/new
    done
}

moved() {
    owner=$(owner)
    load_start 20
    for to in "$(other "$owner")" "$owner" "$(other "$owner")"; do
        host "gateway gw1 cluster move 1 $to" | jq -e .ok >/run/said
        sleep 3
    done
    load_ends_well 'three planned moves' $MOVE_MAX
}

# A clean stop gives everything away first.
ended() {
    owner=$(owner)
    load_start 15
    host "gateway_signal $owner TERM"
    load_ends_well 'owner ended' $MOVE_MAX
}

# --- DH-HMAC-CHAP: the keys are the group's

secured() {
    disconnect
    host 'umask 077 && "$BIN/nvmf" gen-dhchap-key --hmac 1 >host.key && "$BIN/nvmf" gen-dhchap-key --hmac 3 >controller.key'
    host "gateway gw1 host set-key $HOSTNQN --keyfile host.key" | jq -e .ok
    host "gateway gw1 host set-key $HOSTNQN --keyfile controller.key --controller" | jq -e .ok
    # The other one has them when it serves the version that has them.
    version=$(host 'gateway gw1 cluster status' | jq .result.configuration.applied)
    host "waits gateway_applies gw2 $version"
}

unsecured_is_refused() {
    for gateway in gw1 gw2; do
        fails nvme connect -t tcp -a "$(address_of $gateway)" -s "$port" -n $NQN --hostnqn=$HOSTNQN --hostid=$HOSTID
        fails nvme connect -t tcp -a "$(address_of $gateway)" -s "$port" -n $NQN --hostnqn=$HOSTNQN --hostid=$HOSTID \
            --dhchap-secret="$(host '"$BIN/nvmf" gen-dhchap-key')"
    done
}

# (`nvme connect-all` has no option for the controller's key.)
both_ways() {
    for gateway in gw1 gw2; do
        nvme connect -t tcp -a "$(address_of $gateway)" -s "$port" -n $NQN --hostnqn=$HOSTNQN --hostid=$HOSTID \
            --dhchap-secret="$(host cat host.key)" --dhchap-ctrl-secret="$(host cat controller.key)"
    done
    wait_for 100 paths_are_live
    wait_for 100 disk
    dd if=/run/new of="$(disk)" bs=64k count=16 oflag=direct status=none
    disconnect
}

modprobe nvme-tcp
must 'native multipath' grep -q Y /sys/module/nvme_core/parameters/multipath
must 'routes to the host' reachable
must 'gateways' gateways 1
step 'discover at the first' discovered gw1
step 'discover at the second' discovered gw2
must 'connect-all' connect
step 'nothing happens' undisturbed
must 'owner killed' killed
must 'path comes back' comes_back
step 'owner stopped' stopped
step 'old writes are refused' old_writes
step 'planned moves' moved
step 'OSD hung' osd_hung
step 'monitor hung' monitor_hung
step 'owner killed while the monitor hangs' killed_without_monitor
step 'path comes back' comes_back
step 'owner ended' ended
step 'path comes back' comes_back
step 'OSD killed' osd_killed
must 'keys' secured
step 'no key, wrong key' unsecured_is_refused
step 'connect with keys, both ways' both_ways
must 'connect-all with its key' connect --dhchap-secret="$(host cat host.key)"
must 'owner killed, with keys' killed
step 'path comes back, with keys' comes_back
step 'no error' fails sh -c "dmesg | grep -i 'I/O error'"
step 'disconnect' disconnect
finish
