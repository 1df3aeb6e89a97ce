# What: our initiator over userspace iWARP uses our target over verbs on siw
# Cell: ours → ours | iwarp → verbs on siw
# Seconds: 300
# Known: kernel BUG at drivers/infiniband/core/iwcm.c
. "$LAB/cell.sh"
initiator=ours provider=iwarp address=$GUEST port=4420 nqn=$NQN
target_kill=our_target_kill target_restart=our_target_start

rdma_device siw
must 'target starts' our_target verbs
cell
