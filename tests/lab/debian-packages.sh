#!/bin/sh
# What: the Debian packages under systemd: installed, restarted under load, kept over a reboot, purged
# System: systemd
# Seconds: 600
. "$LAB/lib.sh"

FILE=/srv/nvmf/disk1.img
# Outlives the reboot.
STAGE=/var/lib/lab-stage

property() { systemctl show nvmf-target -P "$1"; }

disk() {
    for disk in /sys/class/nvme/"$(controller)"/nvme*n*; do basename "$disk" | sed 's/c[0-9]*n/n/'; return; done
}

installed() {
    dpkg --install /share/packages/nvmf-target_*.deb /share/packages/nvmf_*.deb
    fails systemctl is-enabled --quiet nvmf-target
    fails systemctl is-active --quiet nvmf-target
    [ "$(stat -c %U /srv/nvmf)" = nvmf ]
    nvmf --version
}

# As installed it starts, serves nothing and says so, and is filled by commands.
empty() {
    runuser -u nvmf -- nvmf-target check /etc/nvmf/target.toml 2>&1 | grep 'warning: nothing is served'
    systemctl start nvmf-target
    [ "$(property ActiveState)" = active ]
    property StatusText | grep 'nothing is served: there is no \[\[listener\]\]'
    nvmf-target ctl listener add "$GUEST:4420" -t tcp
    nvmf-target ctl subsystem add "$NQN" --allow-any-host
    nvmf-target ctl namespace add "$NQN" --memory 1MiB
    nvmf-target ctl save --in-place
    systemctl restart nvmf-target
    property StatusText | grep "$GUEST:4420 (NVMe/TCP): 1 namespace"
    systemctl stop nvmf-target
}

configured() {
    nvmf show-hostnqn
    cat >/etc/nvmf/target.toml <<TOML
[target]
workers = 1
[[listener]]
address = "$GUEST:4420"
transport = "tcp"
[[subsystem]]
nqn = "$NQN"
allowed_hosts = ["$(cat /etc/nvme/hostnqn)"]
[[subsystem.namespace]]
nsid = 1
path = "$FILE"
size = "64MiB"
create = true
TOML
    runuser -u nvmf -- nvmf-target check /etc/nvmf/target.toml
    systemctl enable --now nvmf-target
    [ "$(property ActiveState)" = active ]
    [ "$(property WatchdogUSec)" = 30s ]
    property StatusText | grep "$GUEST:4420 (NVMe/TCP): 1 namespace"
}

exposed() {
    exposure=$(systemd-analyze security --no-pager nvmf-target.service | sed -n 's/.*exposure level for [^:]*: \([0-9.]*\).*/\1/p')
    echo ":: figure systemd-analyze security: $exposure"
    awk "BEGIN { exit !($exposure < 2.0) }"
}

connected() {
    modprobe nvme-tcp
    nvme connect -t tcp -a "$GUEST" -s 4420 -n "$NQN" --reconnect-delay 1
    wait_for 50 state_is live
    wait_for 50 test -b "/dev/$(disk)"
}

# Connects over and over; what is refused is counted in a file.
probe() {
    : >/run/refused
    while [ -e /run/probing ]; do
        bash -c "exec 3<>/dev/tcp/$GUEST/4420" 2>>/run/refused || true
        sleep 0.1
    done
}

restarted() {
    [ "$(property NFileDescriptorStore)" = 1 ]
    before=$(property MainPID)
    touch /run/probing
    probe &
    fio --name=load --filename="/dev/$(disk)" --direct=1 --rw=randwrite --bs=4k --iodepth=4 --ioengine=libaio \
        --verify=crc32c --verify_backlog=64 --time_based --runtime=20 --size=16M >/run/fio.log 2>&1 &
    load=$!
    sleep 5
    begun=$(now)
    systemctl restart nvmf-target
    echo ":: figure systemctl restart under load: $(awk "BEGIN { print $(now) - $begun }") s"
    begun=$(now)
    wait_for 100 state_is live
    echo ":: figure until the kernel's host is connected again: $(awk "BEGIN { print $(now) - $begun }") s"
    journalctl --unit nvmf-target --no-pager --output short-precise --since -60s | cut -c1-160
    wait $load || { cat /run/fio.log; return 1; }
    rm /run/probing
    fails grep -i 'error\|err=[^ 0]' /run/fio.log
    fails [ -s /run/refused ]
    fails [ "$(property MainPID)" = "$before" ]
    [ "$(property NFileDescriptorStore)" = 1 ]
}

reloaded() {
    cp /etc/nvmf/target.toml /run/target.toml
    printf '[[subsystem.namespace]]\nnsid = 2\nnull = "1GiB"\n' >>/etc/nvmf/target.toml
    systemctl reload nvmf-target
    property StatusText | grep '2 namespace'
    echo nonsense >>/etc/nvmf/target.toml
    fails systemctl reload nvmf-target
    [ "$(property ActiveState)" = active ]
    cp /run/target.toml /etc/nvmf/target.toml
    systemctl reload nvmf-target
}

written() {
    dd if=/dev/urandom of=/var/lib/lab-data bs=1M count=4
    dd if=/var/lib/lab-data of="/dev/$(disk)" bs=1M oflag=direct conv=fsync
    disconnect
}

served_again() {
    wait_for 150 systemctl is-active --quiet nvmf-target
    connected
    dd if="/dev/$(disk)" of=/run/data bs=1M count=4 iflag=direct
    cmp /run/data /var/lib/lab-data
}

drained() {
    journalctl --boot -1 --unit nvmf-target --no-pager | grep ' stopped$'
}

purged() {
    disconnect
    dpkg --purge nvmf-target nvmf
    fails pidof nvmf-target
    [ -e "$FILE" ]
    fails [ -e /etc/nvmf/target.toml ]
    fails [ -e /var/lib/nvmf ]
    fails systemctl cat nvmf-target
}

case $(cat $STAGE 2>/dev/null) in
'')
    must 'packages are installed, and nothing is started' installed
    step 'the target starts empty, and is filled by commands' empty
    must 'the configured target is enabled and started' configured
    step 'systemd-analyze security is under 2.0' exposed
    must "the kernel's host connects" connected
    step 'a restart under verified load refuses nobody' restarted
    step 'a reload adds a namespace, and one of a wrong file fails' reloaded
    must 'data are written before the reboot' written
    echo "$failures" >$STAGE
    # As `systemctl reboot`, which asks logind.
    systemctl start --no-block --job-mode=replace-irreversibly reboot.target
    sleep 600
    ;;
*)
    failures=$(cat $STAGE)
    step 'the target had drained at the shutdown' drained
    must 'the disk is served after the reboot, with its data' served_again
    step 'a purge takes everything but the disk' purged
    finish
    ;;
esac
