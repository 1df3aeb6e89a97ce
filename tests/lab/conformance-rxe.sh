# What: the verbs provider passes the suite of every provider on rxe
# Kernels: stable backports
# Quick: yes
# Seconds: 240
. "$LAB/lib.sh"

rdma_device rxe
step 'conformance suite' conformance rxe0
finish
