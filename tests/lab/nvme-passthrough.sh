# What: the kernel's initiator over NVMe/TCP uses our target, whose disk is an NVMe drive that is passed through
# Kernels: stable backports
# Cell: kernel `nvme-tcp` → ours, an NVMe drive | TCP
# Drive: nvme
# Seconds: 400
. "$LAB/cell.sh"
initiator=kernel transport=tcp address=$GUEST port=4420 nqn=$NQN
drive=/dev/ng0n1

# `serve DISK`: our target, with this disk.
serve() {
    cat >/run/target.toml <<CONFIG
[[listener]]
address = "$GUEST:4420"
transport = "tcp"

[[subsystem]]
nqn = "$NQN"
allow_any_host = true

[[subsystem.namespace]]
nsid = 1
path = "$1"
CONFIG
    nvmf-target check /run/target.toml
    our_target_start
}

stop() {
    kill "$(cat /run/target.pid)"
    wait_for 50 target_has_ended
}

target_has_ended() { ! kill -0 "$(cat /run/target.pid)"; }

# Past the page cache: what is written to the one is read from the other.
drive_has_the_pattern() {
    dd if=/dev/nvme0n1 bs=64k count=16 iflag=direct status=none | cmp - /run/pattern
}

# The same disk, whichever of its two devices is served.
uuid_stays() {
    [ "$(cat "/sys/block/$(basename "$(cat /run/device)")/uuid")" = "$(cat /run/uuid)" ]
}

keep_uuid() { cat "/sys/block/$(basename "$(cat /run/device)")/uuid" | tee /run/uuid; }

# Nobody mounts what is served.
drive_is_claimed() {
    ! mount -t ext4 /dev/nvme0n1 /mnt
}

# Not as root: whoever may open the device may ask the drive what it is.
as_another_user() {
    chown nobody /dev/ng0n1 /dev/nvme0n1
    nobody="setpriv --reuid nobody --regid nogroup --clear-groups"
    $nobody nvmf-target check /run/target.toml
    $nobody nvmf-target serve --export $drive --listen 127.0.0.1:4421 >/run/nobody.log 2>&1 &
    wait_for 50 grep 'nvme connect' /run/nobody.log || { cat /run/nobody.log; return 1; }
    kill $!
    wait $! || true
}

# The suite of every backend. It overwrites the drive.
conforms() {
    NVMF_TEST_BLOCK_DEVICE=$1 device-conformance --ignored --exact a_block_device_conforms --test-threads 1
}

modprobe nvme
must 'the drive is there' wait_for 50 test -c $drive
nvme id-ctrl $drive | grep -E '^(mn|mdts|oncs|vwc|wzsl) '
step 'conformance suite' conforms $drive
modprobe nvme-tcp
must 'target starts' serve $drive
must connect connect
step identify identify
step 'UUID' keep_uuid
step 'fio verified' verify
step 'flush, zeroes, discard' flush
step 'on the drive itself' drive_has_the_pattern
step compare compare
step ext4 file_system ext4
step 'drive is claimed' drive_is_claimed
step disconnect disconnect
must 'target stops' stop
step 'not as root' as_another_user
must 'target starts on the block device' serve /dev/nvme0n1
must 'connect to the block device' connect
step 'UUID of the block device' uuid_stays
step 'disconnect at the end' disconnect
finish
