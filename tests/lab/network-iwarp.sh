# What: a disk over NVMe/RDMA on iWARP, on a network that loses, delays, doubles, reorders and corrupts packets, or lets through one direction only
# Seconds: 900
carried='-t rdma --provider iwarp' listener='provider = "iwarp"'
. "$LAB/network.sh"
bad_network
