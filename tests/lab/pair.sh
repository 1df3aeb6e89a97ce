# Two targets on one file, each with two ports: 1 has 4420 and 4421, 2 has 4422 and 4423. Each has the file as a device
# of its own: it opens its disk for itself alone, as it would on a machine of its own.

# The host that has a path to each.
HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a7
HOSTID=2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a7

disks() {
    modprobe loop
    truncate -s 256M /root/disk.img
    losetup -f --show /root/disk.img >/run/disk1
    losetup -f --show /root/disk.img >/run/disk2
}

ports_of() { case $1 in 1) echo 4420 4421 ;; 2) echo 4422 4423 ;; esac; }
target_of() { case $1 in 4420 | 4421) echo 1 ;; *) echo 2 ;; esac; }

# `configure TARGET STATE`: the same state at both of its ports.
configure() {
    {
        printf '[target]\nworkers = 1\nbuffer_memory = "16MiB"\n'
        printf 'cntlid_min = %s000\ncntlid_max = %s999\nstate_dir = "/run/state%s"\n' "$1" "$1" "$1"
        printf 'control_socket = "/run/control%s"\n' "$1"
        for port in $(ports_of "$1"); do
            printf '[[listener]]\naddress = "%s:%s"\ntransport = "tcp"\n' "$GUEST" "$port"
            printf '[[listener.ana_group]]\nid = 1\nstate = "%s"\n' "$2"
        done
        printf '[[subsystem]]\nnqn = "%s"\nserial = "PAIR"\nallow_any_host = true\n' "$NQN"
        printf '[[subsystem.namespace]]\nnsid = 1\npath = "%s"\nana_group = 1\n' "$(cat "/run/disk$1")"
        printf 'uuid = "6e766d66-0000-4000-8000-00000000a4a1"\n'
    } >"/run/target$1.new"
    mkdir -p "/run/state$1"
    mv "/run/target$1.new" "/run/target$1.toml"
}

# In the network namespace that the scenario has them in, if any.
start() {
    ${in_far:-} nvmf-target serve --config "/run/target$1.toml" >>"/run/target$1.log" 2>&1 &
    echo $! >"/run/target$1.pid"
    wait_for 50 nvmf-target ctl --socket "/run/control$1" status
}
