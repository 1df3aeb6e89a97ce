# What: our initiator authenticates (DH-HMAC-CHAP) to the kernel's target over NVMe/TCP
# Kernels: stable backports
# Seconds: 400
. "$LAB/cell.sh"
initiator=ours transport=tcp address=$GUEST port=4420 nqn=$NQN

# `allow HASH GROUP`: the kernel's target has these for our host. The group is the one that it takes, whatever is offered.
allow() {
    echo "hmac($1)" >"$entry/dhchap_hash"
    echo "$2" >"$entry/dhchap_dhgroup"
}

set_up() {
    kernel_target tcp
    entry=/sys/kernel/config/nvmet/hosts/$(nvmf show-hostnqn)
    mkdir "$entry"
    cat "$own" >"$entry/dhchap_key"
    cat "$controller" >"$entry/dhchap_ctrl_key"
    echo 0 >"/sys/kernel/config/nvmet/subsystems/$NQN/attr_allow_any_host"
    ln -s "$entry" "/sys/kernel/config/nvmet/subsystems/$NQN/allowed_hosts/"
}

modprobe nvme-tcp
nvmf show-hostnqn 2>/dev/null || nvmf gen-hostnqn >/etc/nvme/hostnqn
own=/run/own controller=/run/controller-secret other=/run/other
nvmf gen-dhchap-key --hmac 2 --keyfile $own
nvmf gen-dhchap-key --keyfile $controller
nvmf gen-dhchap-key --keyfile $other
entry=/sys/kernel/config/nvmet/hosts/$(nvmf show-hostnqn)
must 'target starts' set_up
# The guest is emulated: larger groups take it minutes.
for pair in 'sha256 null' 'sha384 ffdhe2048' 'sha512 ffdhe3072'; do
    must "target takes $pair" allow $pair
    for secrets in "-S $own --dhchap-ctrl-secret $controller" "-S $own"; do
        tls=$secrets
        must connect connect
        step identify identify
        step flush flush
        step disconnect disconnect
    done
done
tls=
step 'no secret' ends_with 1 'demands authentication' nvmf id-ctrl $(remote)
tls="-S $other"
# The kernel's target says so, or hangs up before it could.
step 'wrong secret' ends_with 1 'that it has for this host NQN' nvmf id-ctrl $(remote)
tls="-S $own --dhchap-ctrl-secret $other"
step 'wrong secret of the controller' ends_with 1 'did not prove' nvmf id-ctrl $(remote)
finish
