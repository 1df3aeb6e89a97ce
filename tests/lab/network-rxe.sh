# What: a disk over NVMe/RDMA on verbs (rxe) between two machines, on a network that loses, delays, doubles, reorders and corrupts packets, or lets through one direction only
# Machines: 2
# Seconds: 900
. "$LAB/lib.sh"
carried='-t rdma --provider verbs' listener='provider = "verbs"' far_address=$SECOND near_link=eth1 far_link=eth1
# After each packet that is missing or out of order, rxe sends all again that followed: a handful of operations a second.
at_once='loss 0.1% duplicate 1% corrupt 0.1%'
. "$LAB/network.sh"

at_far() { second "$*"; }

links() {
    for machine in eval second; do
        $machine "modprobe -a sch_netem rdma_rxe rdma_ucm ib_uverbs && rdma link add rxe0 type rxe netdev eth1"
    done
}

# rxe drops packets whose checksum is wrong, and does not count them.
corrupted() { true; }

bad_network
