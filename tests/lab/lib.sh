# Functions for scenarios. Scenarios run as root in the guest and end with `finish`.
#
#   step NAME COMMAND...   runs it in a shell of its own that stops at the first failure, and notes the result
#   must NAME COMMAND...   the same, but ends the scenario if it fails
#   host COMMAND           runs it on the host machine (host.sh)
#   second COMMAND         runs it on the second machine, which has these functions too (`# Machines: 2` in the header)

GUEST=10.0.2.15
HOST=10.0.2.2
# The first and the second machine on the network that they share.
FIRST=10.0.3.1
SECOND=10.0.3.2
NQN=nqn.2026-11.com.example:lab
failures=0

now() { cut -d' ' -f1 /proc/uptime; }

step() {
    step_name=$1
    shift
    step_begun=$(now)
    echo "-- $step_name"
    (set -eu; "$@")
    step_status=$?
    step_time=$(awk "BEGIN { printf \"%.1f s\", $(now) - $step_begun }")
    if [ $step_status -eq 0 ]; then
        echo ":: ok $step_name ($step_time)"
    else
        echo ":: FAILED $step_name ($step_time)"
        failures=$((failures + 1))
    fi
    return $step_status
}

# Not `step || finish`: a shell ignores `set -e` before `||`.
must() {
    step "$@"
    [ $? -eq 0 ] || finish
}

finish() {
    exit $failures
}

# Requests are numbered by the files that exist, so that this works in a subshell too.
ask() {
    requests=$(($(ls "$1" | grep -c 'status$' || true) + 1))
    echo "$2" >"$1/$requests.asking"
    mv "$1/$requests.asking" "$1/$requests"
    until [ -e "$1/$requests.status" ]; do sleep 0.05; done
    cat "$1/$requests.output"
    return "$(cat "$1/$requests.status")"
}

host() { ask /share/requests "$*"; }
second() { ask /share/second/requests "$*"; }

# `wait_for TRIES COMMAND...`: waits until the command succeeds, trying every 0.2 s.
wait_for() {
    wait_left=$1
    shift
    until "$@" >/dev/null 2>&1; do
        wait_left=$((wait_left - 1))
        if [ $wait_left -le 0 ]; then
            echo "never came true: $*"
            return 1
        fi
        sleep 0.2
    done
}

# For `! command`, which `set -e` ignores.
fails() {
    if "$@"; then
        echo "should have failed: $*"
        return 1
    fi
}

# `rdma_device rxe|siw`: adds a software RDMA device on the guest's only network interface.
rdma_device() {
    case $1 in
    rxe) modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0 ;;
    siw) modprobe siw && rdma link add siw0 type siw netdev eth0 ;;
    none) ;;
    esac
    case $1 in none) ;; *) modprobe -a rdma_ucm ib_uverbs ;; esac
}

# Runs the conformance suite of providers over verbs on a device of the guest.
conformance() {
    NVMF_VERBS_DEVICE=$1 NVMF_VERBS_ADDRESS=$GUEST verbs-conformance --exact conformance_on_the_device_that_is_named --nocapture \
        >/run/conformance.log 2>&1 || { tail -80 /run/conformance.log; return 1; }
    grep -q '1 passed' /run/conformance.log
}

# --- the kernel's initiator: its controller of a subsystem, of $NQN if none is named

# The name of the controller, as the kernel gives it.
controller() {
    for controller in /sys/class/nvme/nvme*; do
        [ "$(cat "$controller/subsysnqn" 2>/dev/null)" = "${1:-$NQN}" ] || continue
        basename "$controller"
        return
    done
    return 1
}

# The disk that it gives. (With multipath, the disk is named after the subsystem.)
controller_disk() {
    for disk in /sys/class/nvme/"$(controller "$@")"/nvme*n*; do
        disk=/dev/$(basename "$disk" | sed 's/c[0-9]*n/n/')
        [ -b "$disk" ] && echo "$disk" && return
    done
    return 1
}

no_controller() { ! controller "$@"; }
state_is() { [ "$(cat "/sys/class/nvme/$(controller)/state")" = "$1" ]; }

disconnect() {
    nvme disconnect -n "${1:-$NQN}"
    wait_for 50 no_controller "$@"
}

# --- TLS: tlshd, which does the kernel's handshakes, and the keys that it finds

tlshd_start() {
    modprobe nvme-keyring || modprobe nvme_tcp
    [ -s /etc/nvme/hostnqn ] || { mkdir -p /etc/nvme && nvme gen-hostnqn >/etc/nvme/hostnqn; }
    [ -s /etc/nvme/hostid ] || cut -d: -f3 /etc/nvme/hostnqn >/etc/nvme/hostid
    printf '[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n' >/etc/tlshd.conf
    tlshd -s >/run/tlshd.log 2>&1 &
    echo $! >/run/tlshd.pid
    sleep 1
    kill -0 "$(cat /run/tlshd.pid)" || { cat /run/tlshd.log; return 1; }
}

# `tls_key 01|02`: a key for SHA-256 or SHA-384.
tls_key() {
    case $1 in
    01) echo NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ: ;;
    02) echo NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==: ;;
    esac
}

# `tls_keys_insert 0|1 [NQN]`: puts what is made of /run/key into the kernel's keyring, for a subsystem and for discovery.
# (The guest's nvme-cli derives keys in its older way.)
tls_keys_insert() {
    for of in "${2:-$NQN}" nqn.2014-08.org.nvmexpress.discovery; do
        nvmf check-tls-key --keyfile /run/key -n "$(cat /etc/nvme/hostnqn)" -c "$of" --identity "$1" --insert
    done
    grep psk /proc/keys
}

tls_keys_remove() {
    ring=0x$(awk '$8 == "keyring" && $9 == ".nvme:" { print $1 }' /proc/keys)
    for serial in $(awk '$8 == "psk" { print $1 }' /proc/keys); do
        # Some are on their way out already.
        keyctl unlink "0x$serial" "$ring" || true
    done
    [ -z "$(keyctl rlist "$ring")" ]
}

# --- targets in the guest

# `our_target iwarp|verbs|tcp`: starts our target over RDMA with this provider, or over TCP. Its disk is a file that stays when the target is killed.
our_target() {
    [ -e /root/disk.img ] || truncate -s 512M /root/disk.img
    case $1 in
    tcp) listener='transport = "tcp"' ;;
    *) listener="provider = \"$1\"" ;;
    esac
    cat >/run/target.toml <<CONFIG
[[listener]]
address = "$GUEST:4420"
$listener

[[subsystem]]
nqn = "$NQN"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
path = "/root/disk.img"
CONFIG
    our_target_start
}

our_target_start() {
    nvmf-target serve --config /run/target.toml >>/run/target.log 2>&1 &
    echo $! >/run/target.pid
    wait_for 50 nvmf_target_answers || { tail -20 /run/target.log; return 1; }
}

nvmf_target_answers() {
    kill -0 "$(cat /run/target.pid)" && [ "$(grep -c 'listening on' /run/target.log)" -gt "$(cat /run/target.starts 2>/dev/null || echo 0)" ] &&
        grep -c 'listening on' /run/target.log >/run/target.starts
}

our_target_kill() { kill -9 "$(cat /run/target.pid)"; }

# `kernel_target [tcp [tls1.3]]`: starts the kernel's target over TCP, else on the RDMA device that owns the address, with a
# memory-backed null_blk.
kernel_target() {
    modprobe null_blk nr_devices=1 gb=1 bs=512 memory_backed=1 discard=1 queue_mode=2 irqmode=0 hw_queue_depth=128
    modprobe -a configfs nvmet "nvmet_${1:-rdma}"
    mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
    nvmet=/sys/kernel/config/nvmet
    mkdir "$nvmet/subsystems/$NQN"
    echo 1 >"$nvmet/subsystems/$NQN/attr_allow_any_host"
    mkdir "$nvmet/subsystems/$NQN/namespaces/1"
    echo -n /dev/nullb0 >"$nvmet/subsystems/$NQN/namespaces/1/device_path"
    echo 1 >"$nvmet/subsystems/$NQN/namespaces/1/enable"
    mkdir "$nvmet/ports/1"
    echo ipv4 >"$nvmet/ports/1/addr_adrfam"
    echo "${1:-rdma}" >"$nvmet/ports/1/addr_trtype"
    echo "$GUEST" >"$nvmet/ports/1/addr_traddr"
    echo 4420 >"$nvmet/ports/1/addr_trsvcid"
    case ${2:-} in tls1.3) echo tls1.3 >"$nvmet/ports/1/addr_tsas" && echo required >"$nvmet/ports/1/addr_treq" ;; esac
    kernel_target_start
}

kernel_target_start() { ln -s "/sys/kernel/config/nvmet/subsystems/$NQN" "/sys/kernel/config/nvmet/ports/1/subsystems/$NQN"; }

# Removes the subsystem from the port: the kernel tears every controller down at once.
kernel_target_kill() { rm "/sys/kernel/config/nvmet/ports/1/subsystems/$NQN"; }
