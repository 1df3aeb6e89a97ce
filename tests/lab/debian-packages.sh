#!/bin/sh
# What: the Debian packages under systemd: installed, restarted under load and when hung, found by another machine before and after a reboot, purged
# System: systemd
# Machines: 2
# Seconds: 1200
. "$LAB/lib.sh"

FILE=/srv/nvmf/disk1.img
# Outlives the reboot.
STAGE=/var/lib/lab-stage

# The second machine's host.
OTHER=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000002

property() { systemctl show nvmf-target -P "$1"; }

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
    groupadd --system nvmf-admin
    mkdir -p /etc/systemd/system/nvmf-target.service.d
    printf '[Service]\nSupplementaryGroups=nvmf-admin\n' >/etc/systemd/system/nvmf-target.service.d/group.conf
    systemctl daemon-reload
    cat >/etc/nvmf/target.toml <<TOML
[target]
workers = 1
control_group = "nvmf-admin"
[[listener]]
address = "$GUEST:4420"
transport = "tcp"
[[listener]]
address = "$FIRST:4420"
transport = "tcp"
[[subsystem]]
nqn = "$NQN"
allowed_hosts = ["$(cat /etc/nvme/hostnqn)", "$OTHER"]
[[subsystem.namespace]]
nsid = 1
path = "$FILE"
size = "64MiB"
create = true
TOML
    runuser -u nvmf -- nvmf-target check /etc/nvmf/target.toml
    systemctl enable --now nvmf-target
    [ "$(property ActiveState)" = active ]
    property StatusText | grep "$GUEST:4420 (NVMe/TCP).*: 1 namespace"
}

# Who is in the group may use the control socket, and nobody else.
admitted() {
    setpriv --reuid=nobody --regid=nogroup --groups=nvmf-admin nvmf-target ctl status
    fails setpriv --reuid=nobody --regid=nogroup --clear-groups nvmf-target ctl status
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
    wait_for 50 controller_disk
}

# The second machine has nothing but the target's address, and a name that the target knows.
found() {
    second "modprobe nvme-tcp
        nvme connect-all -t tcp -a $FIRST -s 4420 --hostnqn=$OTHER --hostid=${OTHER##*:} --reconnect-delay=1 \
            --ctrl-loss-tmo=600
        wait_for 50 controller_disk"
}

found_and_written() {
    found
    second 'dd if=/dev/urandom of=/run/data bs=1M count=4 status=none
        dd if=/run/data of="$(controller_disk)" bs=1M seek=32 oflag=direct status=none'
    found_is_right
}

found_is_right() {
    second 'dd if="$(controller_disk)" bs=1M skip=32 count=4 iflag=direct status=none | cmp - /run/data
        md5sum /run/data'
}

# It was connected when this machine went down.
found_again() {
    second 'wait_for 300 state_is live'
    found_is_right
    second disconnect
    found
    found_is_right
    second disconnect
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
    [ "$(property NFileDescriptorStore)" = 2 ]
    before=$(property MainPID)
    touch /run/probing
    probe &
    fio --name=load --filename="$(controller_disk)" --direct=1 --rw=randwrite --bs=4k --iodepth=4 --ioengine=libaio \
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
    [ "$(property NFileDescriptorStore)" = 2 ]
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

has_restarted() { [ "$(property NRestarts)" -gt 0 ] && systemctl is-active --quiet nvmf-target; }

hung() {
    [ "$(property NRestarts)" = 0 ]
    kill -STOP "$(property MainPID)"
    wait_for 600 has_restarted
    [ "$(property NRestarts)" = 1 ]
    journalctl --unit nvmf-target --no-pager | grep -i 'watchdog timeout'
    wait_for 100 state_is live
    dd if="$(controller_disk)" of=/dev/null bs=1M count=1 iflag=direct
}

written() {
    dd if=/dev/urandom of=/var/lib/lab-data bs=1M count=4
    dd if=/var/lib/lab-data of="$(controller_disk)" bs=1M oflag=direct conv=fsync
    disconnect
}

served_again() {
    wait_for 150 systemctl is-active --quiet nvmf-target
    connected
    dd if="$(controller_disk)" of=/run/data bs=1M count=4 iflag=direct
    cmp /run/data /var/lib/lab-data
}

drained() {
    journalctl --boot -1 --unit nvmf-target --no-pager | grep ' stopped$'
}

purged() {
    disconnect
    rm -r /etc/systemd/system/nvmf-target.service.d
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
    must 'the group that is named controls it, and nobody else' admitted
    step 'systemd-analyze security is under 2.0' exposed
    must "the kernel's host connects" connected
    must 'a second machine finds the disk and uses it' found_and_written
    step 'a restart under verified load refuses nobody' restarted
    step 'a reload adds a namespace, and one of a wrong file fails' reloaded
    step 'a target that hangs is started again by the watchdog' hung
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
    step 'the second machine has it again, and finds it anew' found_again
    step 'a purge takes everything but the disk' purged
    finish
    ;;
esac
