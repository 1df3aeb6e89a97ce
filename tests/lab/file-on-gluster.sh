# What: a file on GlusterFS, by FUSE, as a disk of our target: verified, flushed; its brick silent, stopped, killed
# Kernels: stable
# Seconds: 1200
. "$LAB/network-file.sh"
at_server=$store/brick/disk.img

server() {
    mkdir -p $store
    mount -t tmpfs -o size=1g tmpfs $store
    $in_far glusterd --log-file=/run/glusterd.log -p /run/glusterd.pid
    wait_for 100 gluster_says volume list
    gluster_says volume create disks $link_1:$store/brick force
    # A silent brick is given up after this time; the default is 42 s.
    gluster_says volume set disks network.ping-timeout 20
    gluster_says volume start disks
}

gluster_says() { $in_far gluster --mode=script "$@"; }

mounted() {
    modprobe fuse
    mkdir -p /run/net
    mount -t glusterfs $link_1:/disks /run/net
    findmnt /run/net
}

brick() { pgrep -x glusterfsd; }
client() { pgrep -x glusterfs; }
brick_stops() { kill -STOP $(brick); }
brick_goes_on() { kill -CONT $(brick); }
client_stops() { kill -STOP $(client); }
client_goes_on() { kill -CONT $(client); }

# The only brick: what is under way and what comes next fails, until it is there again.
brick_killed() {
    kill -KILL $(brick)
    fails dd if=/run/bytes of="$(cat /run/device1)" bs=64k oflag=direct conv=fsync status=none
    ctl status | grep 'namespace 1:' -A 1
    beside 'brick killed'
    gluster_says volume start disks force
    wait_for 150 dd if="$(cat /run/device1)" of=/run/said bs=4k count=1 iflag=direct
    ctl status | grep 'namespace 1:' -A 1
    ctl namespace remove "$NQN" 1
    ctl namespace add "$NQN" --nsid 1 /run/net/disk.img
    wait_for 100 disk 1
    disk 1 >/run/device1
    verified
}

ends() {
    step 'brick stopped under load' held_to_its_disk 'brick stopped' brick_stops brick_goes_on
    step 'FUSE process stopped under load' held_to_its_disk 'FUSE process stopped' client_stops client_goes_on
    step 'brick killed' brick_killed
}

served_from_the_network
