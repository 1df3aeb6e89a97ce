# What: a short visit of the kernel's initiator over NVMe/TCP to our target on the host's loopback
# Kernels: stable backports
# Quick: yes
# Seconds: 240
. "$LAB/cell.sh"
initiator=kernel transport=tcp address=$HOST nqn=$NQN

port=$(host 'echo $PORT')
must 'target starts' host "target_start $NQN tcp"
modprobe nvme-tcp
must discover discover
must connect connect
step identify identify
step 'fio verified' verify
step ext4 file_system ext4
step compare compare
step disconnect disconnect
options='--hdr-digest --data-digest --disable-sqflow'
must 'connect with digests' connect
step 'flush with digests' flush
step 'disconnect again' disconnect
finish
