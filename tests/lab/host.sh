# What a scenario may ask of the machine around its guest: `host COMMAND` there runs COMMAND here, after this file.
# BIN has the programs. PORT is free on 127.0.0.1 (the guest reaches it as 10.0.2.2); GUEST_PORT leads to the guest's 4420.

# Our target on the loopback, over userspace iWARP, with a disk of its own that outlives it.
target_start() {
    [ -e disk.img ] || truncate -s 512M disk.img
    cat >target.toml <<CONFIG
[[listener]]
address = "127.0.0.1:$PORT"
provider = "iwarp"

[[subsystem]]
nqn = "$1"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
path = "$PWD/disk.img"
CONFIG
    "$BIN/nvmf-target" serve --config target.toml >>target.log 2>&1 </dev/null &
    echo $! >target.pid
    timeout 10 sh -c "until ss -ltn 2>/dev/null | grep -q ':$PORT ' || grep -q 'listening on' target.log; do sleep 0.05; done"
}

target_kill() {
    kill -9 "$(cat target.pid)"
}
