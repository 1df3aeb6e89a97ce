# What: a short visit of our initiator over NVMe/TCP to the kernel's target
# Kernels: stable backports
# Quick: yes
# Seconds: 180
. "$LAB/cell.sh"
initiator=ours transport=tcp address=$GUEST port=4420 nqn=$NQN

must 'target starts' kernel_target tcp
must discover discover
must connect connect
step identify identify
step 'fio verified' verify
step ext4 file_system ext4
step disconnect disconnect
options='--hdr-digest --data-digest --disable-sqflow --nr-write-queues 1'
must 'connect with digests' connect
step 'fio verified with digests' verify
step 'disconnect again' disconnect
finish
