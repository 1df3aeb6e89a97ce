# What: our initiator over verbs on siw uses the kernel's target on siw
# Cell: ours → kernel `nvmet-rdma` | verbs → siw
# Seconds: 300
# Known: kernel BUG at drivers/infiniband/core/iwcm.c
. "$LAB/cell.sh"
initiator=ours provider=verbs address=$GUEST port=4420 nqn=$NQN
target_kill=kernel_target_kill target_restart=kernel_target_start

rdma_device siw
must 'target starts' kernel_target
cell
