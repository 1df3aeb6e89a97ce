# What: a short visit of the kernel's initiator on siw to our target over userspace iWARP on the host's loopback
# Quick: yes
# Seconds: 180
. "$LAB/cell.sh"
initiator=kernel address=$HOST nqn=$NQN

port=$(host 'echo $PORT')
must 'target starts' host "target_start $NQN"
rdma_device siw
modprobe nvme-rdma
must discover discover
must connect connect
step identify identify
step 'fio verified' verify
step ext4 file_system ext4
step compare compare
step disconnect disconnect
finish
