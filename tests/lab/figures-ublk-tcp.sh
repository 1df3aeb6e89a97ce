# What: fio over NVMe/TCP in one guest: a disk by `nvmf attach` through ublk beside the kernel's own, on each target
# Seconds: 1500
# Alone: yes
. "$LAB/figures-disks.sh"
over=tcp transport=tcp listener='transport = "tcp"'

disks
