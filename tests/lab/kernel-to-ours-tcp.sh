# What: the kernel's initiator over NVMe/TCP uses our target on the host's loopback, with nothing loaded on the host
# Kernels: stable backports
# Cell: kernel `nvme-tcp` → ours | TCP
# Seconds: 300
. "$LAB/cell.sh"
initiator=kernel transport=tcp address=$HOST nqn=$NQN
target_kill='host target_kill' target_restart="host target_start $NQN tcp"

port=$(host 'echo $PORT')
must 'target starts' host "target_start $NQN tcp"
modprobe nvme-tcp
cell
