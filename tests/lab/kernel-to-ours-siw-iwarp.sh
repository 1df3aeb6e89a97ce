# What: the kernel's initiator on siw uses our target over userspace iWARP on the host's loopback
# Cell: kernel `nvme-rdma` → ours | siw in the guest → iwarp on the host
# Seconds: 300
. "$LAB/cell.sh"
initiator=kernel address=$HOST nqn=$NQN
target_kill='host target_kill' target_restart="host target_start $NQN"

port=$(host 'echo $PORT')
must 'target starts' host "target_start $NQN"
rdma_device siw
modprobe nvme-rdma
cell
