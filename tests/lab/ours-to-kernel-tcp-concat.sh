# What: our initiator authenticates to the kernel's target over NVMe/TCP and makes the key for TLS by that (concatenation)
# Kernels: backports
# Seconds: 600
. "$LAB/cell.sh"
initiator=ours transport=tcp address=$GUEST port=4420 nqn=$NQN

# `allow GROUP`: the kernel's target has it for our host, with SHA-256.
allow() {
    echo 'hmac(sha256)' >"$entry/dhchap_hash"
    echo "$1" >"$entry/dhchap_dhgroup"
}

set_up() {
    kernel_target tcp tls1.3
    # The first connection is one without TLS.
    kernel_target_kill
    echo 'not required' >/sys/kernel/config/nvmet/ports/1/addr_treq
    entry=/sys/kernel/config/nvmet/hosts/$(nvmf show-hostnqn)
    mkdir "$entry"
    cat "$own" >"$entry/dhchap_key"
    cat "$controller" >"$entry/dhchap_ctrl_key"
    echo 0 >"/sys/kernel/config/nvmet/subsystems/$NQN/attr_allow_any_host"
    ln -s "$entry" "/sys/kernel/config/nvmet/subsystems/$NQN/allowed_hosts/"
    kernel_target_start
}

modprobe -a tls nvme-tcp
must 'tlshd starts' tlshd_start
own=/run/own controller=/run/controller-secret other=/run/other
nvmf gen-dhchap-key --hmac 1 --keyfile $own
nvmf gen-dhchap-key --hmac 3 --keyfile $controller
nvmf gen-dhchap-key --keyfile $other
entry=/sys/kernel/config/nvmet/hosts/$(nvmf show-hostnqn)
must 'target starts' set_up
# Not SHA-384: tlshd's GnuTLS (3.8.9; Debian's backports have no other) makes every binder with SHA-256.
# One way only: the kernel's target (7.3) forgets the challenges when it has proved itself, before it makes the key of them.
tls="-S $own --concat"
for group in ffdhe2048 ffdhe3072; do
    must "target takes sha256 and $group" allow $group
    must connect connect
    # What tlshd says of each connection.
    step 'over TLS' grep -i 'handshake.*successful' /run/tlshd.log
    step identify identify
    step flush flush
    case $group in ffdhe2048) step 'fio verified' verify ;; esac
    step disconnect disconnect
done
tls="-S $other --concat"
# The kernel's target says so, or hangs up before it could.
step 'wrong secret' ends_with 1 'that it has for this host NQN' nvmf id-ctrl $(remote)
tls="-S $own --dhchap-ctrl-secret $other --concat"
step 'wrong secret of the controller' ends_with 1 'did not prove' nvmf id-ctrl $(remote)
finish
