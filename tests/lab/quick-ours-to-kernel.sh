# What: a short visit of our initiator over verbs on rxe to the kernel's target on rxe
# Kernels: stable backports
# Quick: yes
# Seconds: 180
. "$LAB/cell.sh"
initiator=ours provider=verbs address=$GUEST port=4420 nqn=$NQN

rdma_device rxe
must 'target starts' kernel_target
must discover discover
must connect connect
step identify identify
step 'fio verified' verify
step ext4 file_system ext4
step disconnect disconnect
finish
