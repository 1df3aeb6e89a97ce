# What: a file on NFS 4.2 as a disk of our target: verified, flushed, its server silent and restarted
# Kernels: stable
# Seconds: 1200
. "$LAB/network-file.sh"
at_server=$store/disk.img

server() {
    mkdir -p $store
    mount -t tmpfs -o size=1g tmpfs $store
    modprobe nfsd
    echo "$store 10.77.1.1(rw,no_root_squash,no_subtree_check,fsid=1)" >/etc/exports
    $in_far mount -t nfsd nfsd /proc/fs/nfsd
    $in_far exportfs -ra
    $in_far rpc.mountd -N 3
    comes_back
}

dies() { $in_far rpc.nfsd 0; }
# Clients wait for the grace period: as short as it can be.
comes_back() { $in_far rpc.nfsd --grace-time 10 --lease-time 10 --no-nfs-version 3 4; }

mounted() {
    modprobe nfs
    mkdir -p /run/net
    mount -t nfs4 -o vers=4.2,hard $link_1:$store /run/net
    findmnt /run/net
}

ends() { step 'server restarted under load' held_to_its_disk 'server ended' dies comes_back; }

served_from_the_network
