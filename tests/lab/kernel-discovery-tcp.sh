# What: discovery as a host without a list of targets uses it: persistent controller and its events, referrals, mDNS
# Kernels: stable backports
# Cell: kernel `nvme-tcp`, avahi → ours | TCP, discovery
# Seconds: 200
. "$LAB/lib.sh"

HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a7
HOSTID=2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a7
OTHER=nqn.2026-11.com.example:other
SERVICE=nqn.2026-11.com.example:discovery
# A network of two machines: the target's address on it, and that of the machine that looks for targets.
LAN=10.0.9.1
PEER=10.0.9.2

# `configure SUBSYSTEM...`: the first target, with these subsystems. It refers to the second one.
configure() {
    {
        printf '[discovery]\nnqn = "%s"\nmdns = true\n' $SERVICE
        printf '[[discovery.referral]]\ntransport = "tcp"\naddress = "%s:4421"\n' "$GUEST"
        printf '[[listener]]\naddress = "%s:4420"\ntransport = "tcp"\n' "$GUEST"
        printf '[[listener]]\naddress = "%s:8009"\ntransport = "tcp"\ndiscovery_only = true\n' $LAN
        for nqn in "$@"; do subsystem "$nqn"; done
    } >/run/target.new
    mv /run/target.new /run/target.toml
}

subsystem() {
    printf '[[subsystem]]\nnqn = "%s"\nallow_any_host = true\n[[subsystem.namespace]]\nnsid = 1\nmemory = "16MiB"\n' "$1"
}

second_target() {
    {
        printf '[[listener]]\naddress = "%s:4421"\ntransport = "tcp"\n' "$GUEST"
        subsystem $OTHER
    } >/run/second.toml
    nvmf-target serve --config /run/second.toml >/run/second.log 2>&1 &
    wait_for 50 grep 'listening on' /run/second.log
}

network() {
    ip netns add peer
    ip link add lan0 type veth peer name lan1 netns peer
    ip address add $LAN/24 dev lan0
    ip link set lan0 up
    ip -n peer address add $PEER/24 dev lan1
    ip -n peer link set lan1 up
    ip -n peer link set lo up
}

discover() { nvme discover -t tcp -a "$GUEST" -s 4420 --hostnqn=$HOSTNQN --hostid=$HOSTID "$@" -o json; }

# The log has the subsystem, the referral, and the discovery service itself by its own name.
log_is_complete() {
    discover | tee /run/discovered.json
    jq -eM --arg nqn "$NQN" '[.records[] | select(.subnqn == $nqn and .subtype == "nvme subsystem")] | length == 1' /run/discovered.json
    jq -eM '[.records[] | select(.subtype == "discovery subsystem referral" and .trsvcid == "4421")] | length == 1' /run/discovered.json
    jq -eM --arg nqn $SERVICE '[.records[] | select(.subnqn == $nqn and .subtype == "current discovery subsystem")] | length >= 1' \
        /run/discovered.json
}

# A controller that stays, by the service's own name; it tells of each change (an event of the kernel's, as udev sees it).
told_of_changes() {
    discover --persistent --nqn=$SERVICE --keep-alive-tmo=5 >/dev/null
    wait_for 50 controller $SERVICE
    udevadm monitor --kernel --property >/run/events.log 2>&1 &
    events=$!
    wait_for 50 grep KERNEL /run/events.log
    for change in "$NQN $NQN-new" "$NQN"; do
        before=$(grep -c 'NVME_AEN=0x70f002' /run/events.log || true)
        configure $change
        kill -HUP "$(cat /run/target.pid)"
        wait_for 50 more_events_than "$before"
        # Through the controller that is there, as nvme-stas and the udev rules do it.
        discover --device="$(controller $SERVICE)" --nqn=$SERVICE >/run/discovered.json
        jq -eM --arg nqns "$change" '[.records[] | select(.subtype == "nvme subsystem") | .subnqn] | unique == ($nqns / " ")' \
            /run/discovered.json
    done
    kill $events
    # It outlives its keep-alive time without any other command.
    sleep 7
    [ "$(cat "/sys/class/nvme/$(controller $SERVICE)/state")" = live ]
    fails sh -c "dmesg | grep -i -e 'keep.alive' -e reconnect"
    disconnect $SERVICE
}
more_events_than() { [ "$(grep -c 'NVME_AEN=0x70f002' /run/events.log)" -gt "$1" ]; }

# `connect-all` at the first target finds the disk of the second one, too.
referral_is_followed() {
    nvme connect-all -t tcp -a "$GUEST" -s 4420 --hostnqn=$HOSTNQN --hostid=$HOSTID
    wait_for 50 controller "$NQN"
    wait_for 50 controller $OTHER
    nvme disconnect-all
    wait_for 50 no_controller $OTHER
}

peer_starts() {
    mkdir -p /run/dbus
    dbus-daemon --system --fork
    ip netns exec peer avahi-daemon --daemonize --no-drop-root --no-chroot
    wait_for 50 ip netns exec peer avahi-daemon --check
}

browse() { ip netns exec peer avahi-browse --resolve --parsable --terminate _nvme-disc._tcp >/run/browsed; }
announced() { browse && grep "^=;lan1;IPv4;.*;$LAN;8009;" /run/browsed; }
withdrawn() { browse && [ ! -s /run/browsed ]; }

# The other machine knows no address, and lists the subsystems.
found_by_mdns() {
    wait_for 50 announced
    cat /run/browsed
    grep "^=.*\"p=tcp\"" /run/browsed
    grep "^=.*\"nqn=$SERVICE\"" /run/browsed
    row=$(grep -m 1 "^=;lan1;IPv4" /run/browsed)
    found=$(echo "$row" | cut -d';' -f8) port=$(echo "$row" | cut -d';' -f9)
    ip netns exec peer nvme discover -t tcp -a "$found" -s "$port" -o json |
        jq -eM --arg nqn "$NQN" '[.records[] | select(.subnqn == $nqn)] | length >= 1'
}

withdrawn_at_the_end() {
    kill -TERM "$(cat /run/target.pid)"
    wait_for 25 withdrawn
}

modprobe nvme-tcp
must 'network' network
configure "$NQN"
must 'target starts' our_target_start
must 'second target starts' second_target
step 'log' log_is_complete
step 'persistent controller is told of changes' told_of_changes
step 'referral is followed' referral_is_followed
must 'avahi starts' peer_starts
step 'found by mDNS' found_by_mdns
step 'withdrawn at the end' withdrawn_at_the_end
finish
