# What: the same with header and data digests
# Kernels: stable backports
# Cell: kernel `nvme-tcp` → ours | TCP with digests
# Seconds: 300
. "$LAB/cell.sh"
initiator=kernel transport=tcp address=$HOST nqn=$NQN options='--hdr-digest --data-digest'
target_kill='host target_kill' target_restart="host target_start $NQN tcp"

port=$(host 'echo $PORT')
must 'target starts' host "target_start $NQN tcp"
modprobe nvme-tcp
cell
