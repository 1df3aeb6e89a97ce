# Functions that a scenario calls on the host machine: `host COMMAND` in the guest runs COMMAND here, after this file.
# BIN is the folder of the programs. PORT is a free port of 127.0.0.1, which the guest reaches as 10.0.2.2. GUEST_PORT
# leads to port 4420 of the guest.

# `target_start NQN [tcp [HOSTNQN KEY]]`: starts our target on 127.0.0.1, over userspace iWARP or NVMe/TCP, with TLS if a
# host's key is given. Its disk is DISK, a line of its configuration, else a file that stays when the target is killed.
target_start() {
    disk=${DISK:-"path = \"$PWD/disk.img\""}
    case ${2:-iwarp} in
    tcp) carried='transport = "tcp"' ;;
    *) carried='provider = "iwarp"' ;;
    esac
    known=
    if [ -n "${4:-}" ]; then
        (umask 077 && echo "$4" >key)
        carried="$carried
tls = \"required\""
        known="[[host]]
nqn = \"$3\"
tls_key_file = \"$PWD/key\""
    fi
    [ -e disk.img ] || truncate -s 512M disk.img
    cat >target.toml <<CONFIG
[[listener]]
address = "127.0.0.1:$PORT"
$carried

$known

[[subsystem]]
nqn = "$1"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
$disk
CONFIG
    target_serve
}

# `target_start_auth NQN HOSTNQN SECRET CONTROLLERS_SECRET HASH GROUP [TLS]`: starts our target on 127.0.0.1 over
# NVMe/TCP, with DH-HMAC-CHAP, and this TLS: none by default.
target_start_auth() {
    (umask 077 && echo "$3" >host.secret && echo "$4" >controller.secret)
    [ -e disk.img ] || truncate -s 512M disk.img
    cat >target.toml <<CONFIG
[target]
dhchap_hashes = ["$5"]
dhchap_groups = ["$6"]

[[listener]]
address = "127.0.0.1:$PORT"
transport = "tcp"
tls = "${7:-off}"

[[host]]
nqn = "$2"
dhchap_key_file = "$PWD/host.secret"
dhchap_ctrl_key_file = "$PWD/controller.secret"

[[subsystem]]
nqn = "$1"
allowed_hosts = ["$2"]

[[subsystem.namespace]]
nsid = 1
path = "$PWD/disk.img"
CONFIG
    target_serve
}

# `target_serve`: starts our target with the target.toml that is there, which has a listener at PORT.
target_serve() {
    "$BIN/nvmf-target" serve --config target.toml >>target.log 2>&1 </dev/null &
    echo $! >target.pid
    timeout 10 sh -c "until ss -ltn 2>/dev/null | grep -q ':$PORT ' || grep -q 'listening on' target.log; do sleep 0.05; done"
}

target_kill() {
    kill -9 "$(cat target.pid)"
}

# `vhost_start`: our target over NVMe/TCP, with a memory disk, and `nvmf serve-vhost` in front of it, on vhost.sock.
vhost_start() {
    DISK='memory = "512MiB"' target_start nqn.2026-11.lab:vhost tcp
    vhost_serve
    timeout 20 sh -c 'until [ -S vhost.sock ]; do sleep 0.05; done'
}

# `vhost_start_root`: the same, with a copy of the guest's root disk, which goes with the target.
vhost_start_root() {
    cp --sparse=always "$ROOT_DISK" root.img
    DISK="path = \"$PWD/root.img\"
block_size = 512" target_start nqn.2026-11.lab:vhost tcp
    rm root.img
    vhost_serve
    timeout 20 sh -c 'until [ -S vhost.sock ]; do sleep 0.05; done'
}

# systemd's part, to start it again, is the scenario's: a guard would outlive the scenario.
vhost_serve() {
    NOTIFY_SOCKET=/dev/null NVMF_RUNTIME_DIR="$PWD/vhost" "$BIN/nvmf" serve-vhost -t tcp -a 127.0.0.1 -s "$PORT" -n nqn.2026-11.lab:vhost \
        --socket "$PWD/vhost.sock" --hostid 11111111-1111-4111-8111-111111111111 >>vhost.log 2>&1 </dev/null &
    echo $! >vhost.pid
}

# Kills the server, and starts another once the end of that one is over, as systemd does.
vhost_kill() {
    kill -9 "$(cat vhost.pid)"
    NVMF_RUNTIME_DIR="$PWD/vhost" timeout 20 sh -c "until '$BIN/nvmf' list | grep -q ' killed '; do sleep 0.05; done"
    vhost_serve
}

# --- a group of gateways on the cluster of `# Ceph: yes`

# `gateway_start NAME ADDRESS`: a gateway of the group, with a listener at this address and PORT, or the same one again. With
# `# Ceph: island`, gw1 is in a network namespace, ISLAND, at ISLAND_GATEWAY; the cluster is behind the link ISLAND_LINK.
gateway_start() {
    cat >"$1.toml" <<CONFIG
[target]
workers = 1
buffer_memory = "16MiB"
control_socket = "$PWD/$1.sock"
# The guest is too slow for larger ones.
dhchap_groups = ["ffdhe2048"]

[[listener]]
address = "$2:$PORT"
transport = "tcp"

[cluster]
pool = "rbd"
name = "$1"
conf = "$CEPH_CONF"
ana_groups = 1
CONFIG
    at=
    [ "$1" != gw1 ] || at=${ISLAND:+nsenter --net=/run/netns/$ISLAND --}
    $at "$BIN/nvmf-target" serve --config "$1.toml" >>"$1.log" 2>&1 </dev/null &
    echo $! >"$1.pid"
    waits gateway_is_member "$1"
}

# `gateway NAME WORD...`: has a gateway do something.
gateway() {
    asked=$1
    shift
    "$BIN/nvmf-target" ctl -o json --socket "$PWD/$asked.sock" "$@"
}

gateway_is_member() { gateway "$1" cluster status | grep -q '"state":"member"'; }
gateway_serves() { gateway "$1" cluster status | grep -q '"here":"serving"'; }
gateway_applies() { gateway "$1" cluster status | grep -q "\"applied\":$2[,}]"; }
gateway_signal() { kill "-$2" "$(cat "$1.pid")"; }

# `ceph_signal KIND ID SIGNAL`: to a daemon of the cluster, as `osd 1`, `mon a`.
ceph_signal() { pkill "-$3" -f -x "ceph-$1 --conf $CEPH_CONF -f -i $2"; }

# Waits until the command succeeds, for a minute at most.
waits() {
    left=300
    until "$@" 2>/dev/null; do
        left=$((left - 1))
        [ $left -gt 0 ] || { echo "never came true: $*"; return 1; }
        sleep 0.2
    done
}
