# What: the verbs provider passes the suite of every provider on siw
# Seconds: 240
. "$LAB/lib.sh"

rdma_device siw
step 'conformance suite' conformance siw0
finish
