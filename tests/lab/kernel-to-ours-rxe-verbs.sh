# What: the kernel's initiator on rxe uses our target over verbs on rxe
# Cell: kernel `nvme-rdma` → ours | rxe → verbs on rxe
# Seconds: 300
. "$LAB/cell.sh"
initiator=kernel address=$GUEST port=4420 nqn=$NQN
target_kill=our_target_kill target_restart=our_target_start

rdma_device rxe
modprobe nvme-rdma
must 'target starts' our_target verbs
cell
