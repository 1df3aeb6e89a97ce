# What: our initiator uses our target, both over userspace iWARP
# Cell: ours → ours | iwarp
# Seconds: 300
. "$LAB/cell.sh"
initiator=ours provider=iwarp address=$GUEST port=4420 nqn=$NQN
target_kill=our_target_kill target_restart=our_target_start

must 'target starts' our_target iwarp
cell
