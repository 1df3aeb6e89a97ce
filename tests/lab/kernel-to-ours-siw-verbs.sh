# What: the kernel's initiator on siw uses our target over verbs on siw
# Cell: kernel `nvme-rdma` → ours | siw → verbs on siw
# Seconds: 300
# Known: kernel BUG at drivers/infiniband/core/iwcm.c
. "$LAB/cell.sh"
initiator=kernel address=$GUEST port=4420 nqn=$NQN
target_kill=our_target_kill target_restart=our_target_start

rdma_device siw
modprobe nvme-rdma
must 'target starts' our_target verbs
cell
