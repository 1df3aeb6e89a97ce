# What: the same with header and data digests
# Kernels: stable backports
# Cell: ours → kernel `nvmet-tcp` | TCP with digests
# Seconds: 300
. "$LAB/cell.sh"
initiator=ours transport=tcp address=$GUEST port=4420 nqn=$NQN options='--hdr-digest --data-digest'
target_kill=kernel_target_kill target_restart=kernel_target_start

must 'target starts' kernel_target tcp
cell
