# What: the tests of TLS records, where the kernel handles them
# Kernels: stable backports
# Quick: yes
# Seconds: 60
. "$LAB/lib.sh"

ip link set lo up
modprobe tls
must 'records of the kernel' tls-records --test-threads 1 tls::
# It was the kernel that handled them.
step 'kernel handled them' awk '$1 == "TlsRxSw" { received = $2 } $1 == "TlsTxSw" { sent = $2 } END { exit !(received && sent) }' /proc/net/tls_stat
finish
