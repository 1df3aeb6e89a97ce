# What: fio on rxe in one guest: a disk by `nvmf attach` through ublk beside the kernel's own, on each target
# Seconds: 1500
# Alone: yes
. "$LAB/figures-disks.sh"
over=rxe transport=rdma provider=verbs listener='provider = "verbs"'

rdma_device rxe
disks
