# What: our initiator over NVMe/TCP uses the kernel's target
# Kernels: stable backports
# Cell: ours → kernel `nvmet-tcp` | TCP
# Seconds: 300
. "$LAB/cell.sh"
initiator=ours transport=tcp address=$GUEST port=4420 nqn=$NQN
target_kill=kernel_target_kill target_restart=kernel_target_start

must 'target starts' kernel_target tcp
cell
