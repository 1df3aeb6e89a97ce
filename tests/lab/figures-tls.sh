# What: fio over NVMe/TCP in one guest: without TLS, with records by the kernel, with records in user space
# Seconds: 1500
# Alone: yes
. "$LAB/figures.sh"
over=tcp transport=tcp works='read 128k 8
write 128k 8'

# A second listener takes the same host by TLS.
listener_with_tls() {
    tlshd_start
    (umask 077 && tls_key 01 >/run/key)
    tls_keys_insert 1 "$NQN.ours"
}

listener="transport = \"tcp\"

[[listener]]
address = \"$GUEST:4422\"
transport = \"tcp\"
tls = \"required\""

known() {
    printf '\n[[host]]\nnqn = "%s"\ntls_key_file = "/run/key"\n' "$(cat /etc/nvme/hostnqn)"
}

# `kernel_tls off|on`: whether the kernel can be had to handle records.
kernel_tls() {
    case $1 in
    off)
        echo 'install tls /bin/false' >/etc/modprobe.d/no-tls.conf
        wait_for 50 modprobe -r tls
        ;;
    on)
        rm -f /etc/modprobe.d/no-tls.conf
        modprobe tls
        ;;
    esac
}

# How many directions of connections the kernel has handled since it has TLS.
by_kernel() {
    [ -e /proc/net/tls_stat ] || { echo 0; return; }
    awk '$1 ~ /^Tls[RT]xSw$/ { sum += $2 } END { print sum + 0 }' /proc/net/tls_stat
}

# `pair NAME`
pair() {
    initiator=${1%/*} nqn=$NQN.ours port=4421 tls=
    case $1 in
    ours/ours,TLS-*) port=4422 tls='--tls --tls-key-file /run/key' ;;
    kernel/ours,TLS) port=4422 tls=--tls ;;
    esac
    before=$(by_kernel)
    connect
    case $1 in
    *,TLS-kernel | kernel/*,TLS) [ "$(by_kernel)" -gt "$before" ] ;;
    *) [ "$(by_kernel)" = "$before" ] ;;
    esac
    measure "$1"
    disconnect
}

round() {
    for handles in $(in_order off on); do
        kernel_tls $handles
        case $handles in
        off) pairs='ours/ours ours/ours,TLS-user' ;;
        on) pairs='ours/ours,TLS-kernel kernel/ours kernel/ours,TLS' ;;
        esac
        for name in $(in_order $pairs); do pair "$name"; done
    done
}

modprobe nvme-tcp
must 'keys' listener_with_tls
listener="$listener
$(known)"
must 'our target starts' our_memory_target
rounds
report ours/ours ours/ours,TLS-kernel ours/ours,TLS-user
report kernel/ours kernel/ours,TLS
finish
