# What: a disk over NVMe/TCP on a network that loses, delays, doubles, reorders and corrupts packets, or lets through one direction only
# Seconds: 900
carried='-t tcp' listener='transport = "tcp"'
. "$LAB/network.sh"
bad_network
