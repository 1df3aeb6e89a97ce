# What: our initiator over verbs on rxe uses the kernel's target on rxe
# Cell: ours → kernel `nvmet-rdma` | verbs → rxe
# Seconds: 300
. "$LAB/cell.sh"
initiator=ours provider=verbs address=$GUEST port=4420 nqn=$NQN
target_kill=kernel_target_kill target_restart=kernel_target_start

rdma_device rxe
must 'target starts' kernel_target
cell
