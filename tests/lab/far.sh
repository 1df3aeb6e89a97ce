# A target behind two links: in the network namespace "far", where link N has the address 10.77.N.2. A link that is cut is
# a black hole: what is sent over it is gone, and nobody is told.

# (Not `ip netns exec`, which keeps what is mounted then.)
in_far='nsenter --net=/run/netns/far'
link_1=10.77.1.2 link_2=10.77.2.2

links() {
    ip netns add far
    ip -n far link set lo up
    for link in 1 2; do
        ip link add near$link type veth peer name far$link netns far
        ip address add 10.77.$link.1/24 dev near$link
        ip -n far address add 10.77.$link.2/24 dev far$link
        ip link set near$link up
        ip -n far link set far$link up
    done
}

cut_link() { ip -n far link set "far$1" down; }
heal_link() { ip -n far link set "far$1" up; }
