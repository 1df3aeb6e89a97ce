# What: the same as network-tcp, with both digests
# Seconds: 900
carried='-t tcp --hdr-digest --data-digest' listener='transport = "tcp"'
. "$LAB/network.sh"
bad_network
