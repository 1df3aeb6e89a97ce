# What: the kernel's initiator authenticates (DH-HMAC-CHAP) to our target on the host's loopback over NVMe/TCP
# Kernels: stable backports
# Seconds: 400
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

# The kernel authenticates again when it is given a secret; a disk that is in use stays in use.
again() {
    disk=$(cat /run/device) before=$(complaints)
    dd if=/dev/urandom of=/run/bytes bs=64k count=16 status=none
    for run in 1 2 3; do
        echo "$own" >"/sys/class/nvme/$(cat /run/controller)/dhchap_secret"
        dd if=/run/bytes of="$disk" bs=64k oflag=direct conv=fsync status=none
        dd if="$disk" bs=64k count=16 iflag=direct status=none | cmp - /run/bytes
    done
    state_is live
    [ "$(complaints)" = "$before" ]
}

# How often the kernel has said that an authentication failed.
complaints() { dmesg | grep -c -i 'authentication.*fail\|fail.*authenticat' || true; }

# What a connect both ways is told.
both="--dhchap-secret=$own --dhchap-ctrl-secret=$controller"

modprobe nvme-tcp
for groups in null ffdhe2048 ffdhe3072; do
    hash=$(case $groups in null) echo sha256 ;; ffdhe2048) echo sha384 ;; *) echo sha512 ;; esac)
    must "target with $hash and $groups starts" host "target_start_auth $NQN $(cat /etc/nvme/hostnqn) $own $controller $hash $groups"
    step 'discover' discover
    options=$both
    must "both ways, $hash, $groups" connect
    step identify identify
    step flush flush
    case $groups in ffdhe3072) ;; *) step 'again, under I/O' again ;; esac
    step disconnect disconnect
    options="--dhchap-secret=$own"
    must "one way, $hash, $groups" connect
    step flush flush
    step disconnect disconnect
    case $groups in
    null)
        step 'no secret' refused ''
        step 'wrong secret' refused 'its response is wrong' --dhchap-secret="$other"
        step 'wrong secret of the controller' refused 'it refused the controller' --dhchap-secret="$own" --dhchap-ctrl-secret="$other"
        ;;
    esac
    step 'target ends' host target_kill
done
finish
