# What: our initiator uses our target, both over verbs on rxe
# Cell: ours → ours | verbs on rxe
# Seconds: 300
. "$LAB/cell.sh"
initiator=ours provider=verbs address=$GUEST port=4420 nqn=$NQN
target_kill=our_target_kill target_restart=our_target_start

rdma_device rxe
must 'target starts' our_target verbs
cell
