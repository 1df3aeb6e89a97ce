# What: our initiator uses our target, both over NVMe/TCP
# Kernels: stable backports
# Cell: ours → ours | TCP
# Seconds: 300
. "$LAB/cell.sh"
initiator=ours transport=tcp address=$GUEST port=4420 nqn=$NQN
target_kill=our_target_kill target_restart=our_target_start

must 'target starts' our_target tcp
cell
