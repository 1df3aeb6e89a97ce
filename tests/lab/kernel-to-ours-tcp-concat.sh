# What: the kernel's initiator authenticates to our target over NVMe/TCP and makes the key for TLS by that (concatenation)
# Kernels: backports
# Seconds: 600
. "$LAB/cell.sh"
initiator=kernel transport=tcp address=$HOST nqn=$NQN
port=$(host 'echo $PORT')
own=$(host '"$BIN/nvmf" gen-dhchap-key --hmac 1')
controller=$(host '"$BIN/nvmf" gen-dhchap-key --hmac 3')
other=$(host '"$BIN/nvmf" gen-dhchap-key')

# `refused TEXT OPTION...`: the kernel cannot connect with these options, and our target's log says why.
refused() {
    text=$1
    shift
    fails nvme connect -t tcp -a "$address" -s "$port" -n "$nqn" "$@"
    [ -z "$text" ] || host "grep -F '$text' target.log"
}

# The connection is one over TLS, by both sides' words.
over_tls() {
    host "grep -F 'entries over TLS' target.log"
    grep . "/sys/class/nvme/$(cat /run/controller)/tls_key"
}

# A reset makes a new key.
new_key() {
    sysfs=/sys/class/nvme/$(cat /run/controller)
    before=$(cat "$sysfs/tls_key")
    echo 1 >"$sysfs/reset_controller"
    wait_for 50 state_is live
    [ "$(cat "$sysfs/tls_key")" != "$before" ]
    dd if="$(cat /run/device)" of=/dev/null bs=64k count=16 iflag=direct status=none
}

modprobe -a tls nvme-tcp
must 'tlshd starts' tlshd_start
# Not SHA-384: tlshd's GnuTLS (3.8.9; Debian's backports have no other) makes every binder with SHA-256.
for group in ffdhe2048 ffdhe3072; do
    must "target with sha256 and $group starts" host "target_start_auth $NQN $(cat /etc/nvme/hostnqn) $own $controller sha256 $group concat"
    step 'discover' discover
    options="--dhchap-secret=$own --concat"
    must "one way, $group" connect
    step 'over TLS' over_tls
    step identify identify
    step flush flush
    step 'fio verified' verify
    step 'reset' new_key
    step disconnect disconnect
    options="--dhchap-secret=$own --dhchap-ctrl-secret=$controller --concat"
    must "both ways, $group" connect
    step 'over TLS' over_tls
    step flush flush
    step disconnect disconnect
    case $group in
    ffdhe2048)
        step 'no concatenation' refused '' --dhchap-secret="$own"
        step 'no secret' refused ''
        step 'wrong secret' refused 'its response is wrong' --dhchap-secret="$other" --concat
        ;;
    esac
    step 'target ends' host target_kill
done
finish
