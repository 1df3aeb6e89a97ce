# What: blktests' nvme group, DH-HMAC-CHAP (041 to 045), keys by nvme-cli, over NVMe/TCP
# Kernels: stable backports
# Seconds: 400
transport=tcp
. "$LAB/blktests-reload.sh"

key() { nvme gen-dhchap-key --nqn="${3:-$HOSTNQN}" --hmac="$1" --key-length="$2"; }

# `subsystem_of HOST_SECRET [CONTROLLER_SECRET]`: prints a subsystem for the host, and the host with these secrets.
subsystem_of() {
    (umask 077 && echo "$1" >/run/host.secret.new)
    mv /run/host.secret.new /run/host.secret
    printf '[[host]]\nnqn = "%s"\ndhchap_key_file = "/run/host.secret"\n' $HOSTNQN
    case ${2:-} in
    '') ;;
    *)
        (umask 077 && echo "$2" >/run/controller.secret)
        printf 'dhchap_ctrl_key_file = "/run/controller.secret"\n'
        ;;
    esac
    subsystem $NQN $HOSTNQN
}

# `with HASHES GROUPS`: what is used from the next start on.
with() { general="[target]
dhchap_hashes = [$1]
dhchap_groups = [$2]"; }

starts_anew() {
    ! running || stop -TERM
    serve "$@"
}

# `in_and_out OPTION...`: connects with these secrets, reads, and disconnects.
in_and_out() {
    connect $NQN "$@"
    wait_for 50 disk_is_there 1
    dd if="$(disk_of 1)" of=/dev/null bs=4k count=16 iflag=direct status=none
    disconnect
}

refused() { fails connect $NQN "$@"; }

# 041: with the secret, and not without one or with another.
one_way() {
    secret=$(key 0 32)
    serve "$(subsystem_of "$secret")"
    refused
    refused --dhchap-secret="$(key 0 32)"
    in_and_out --dhchap-secret="$secret"
}

# 042: secrets of each length, as they are and transformed by each hash.
every_key() {
    for kind in '0 32' '0 48' '0 64' '1 32' '2 48' '3 64'; do
        secret=$(key $kind)
        serve "$(subsystem_of "$secret")"
        in_and_out --dhchap-secret="$secret"
    done
}

# 043: each hash with each group. (The emulated guest is too slow for larger ones.)
every_hash_and_group() {
    secret=$(key 1 32)
    for hash in sha256 sha384 sha512; do
        for group in null ffdhe2048 ffdhe3072; do
            with "\"$hash\"" "\"$group\""
            starts_anew "$(subsystem_of "$secret")"
            in_and_out --dhchap-secret="$secret"
        done
    done
    general=
    starts_anew "$(subsystem_of "$secret")"
}

# 044: both ways; a host that is told another secret of the controller does not use it.
both_ways() {
    secret=$(key 1 32) controllers=$(key 1 32 $NQN)
    serve "$(subsystem_of "$secret" "$controllers")"
    in_and_out --dhchap-secret="$secret"
    in_and_out --dhchap-secret="$secret" --dhchap-ctrl-secret="$controllers"
    refused --dhchap-secret="$secret" --dhchap-ctrl-secret="$(key 1 32 $NQN)"
}

# 045: authenticates again with the same secrets, with new ones of the host and of the controller, and after the target
# has another group and hash; then the disk is used.
again() {
    with '"sha256"' '"ffdhe2048"'
    secret=$(key 1 32) controllers=$(key 1 32 $NQN)
    starts_anew "$(subsystem_of "$secret" "$controllers")"
    connect $NQN --dhchap-secret="$secret" --dhchap-ctrl-secret="$controllers" --reconnect-delay=1 --keep-alive-tmo=5
    wait_for 50 disk_is_there 1
    failures_before=$(complaints)
    authenticate dhchap_secret "$secret"
    secret=$(key 1 32)
    serve "$(subsystem_of "$secret" "$controllers")"
    authenticate dhchap_secret "$secret"
    controllers=$(key 1 32 $NQN)
    serve "$(subsystem_of "$secret" "$controllers")"
    authenticate dhchap_ctrl_secret "$controllers"
    [ "$(complaints)" = "$failures_before" ]
    for row in '"sha256" "ffdhe3072"' '"sha512" "ffdhe3072"'; do
        with $row
        starts_anew "$(subsystem_of "$secret" "$controllers")"
        wait_for 100 state_is live
        authenticate dhchap_secret "$secret"
    done
    fio --name=reads --filename="$(disk_of 1)" --rw=randread --direct=1 --ioengine=libaio --bs=4k --iodepth=16 --size=16m \
        --output-format=terse --terse-version=3 | cut -d';' -f3,5,8
    disconnect
}

# `authenticate ATTRIBUTE SECRET`: writing a secret has the kernel authenticate again.
authenticate() {
    echo "$2" >"/sys/class/nvme/$(controller)/$1"
    sleep 1
    state_is live
    dd if="$(disk_of 1)" of=/dev/null bs=4k count=16 iflag=direct status=none
}

# How often the kernel has said that an authentication failed.
complaints() { dmesg | grep -c -i 'authentication.*fail\|fail.*authenticat' || true; }

modprobe nvme-tcp
trial '041 one way' one_way
trial '042 every kind of key' every_key
trial '043 every hash and group' every_hash_and_group
trial '044 both ways' both_ways
trial '045 again, with new keys' again
finish
