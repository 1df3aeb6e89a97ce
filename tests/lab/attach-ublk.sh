# What: `nvmf attach` makes a disk through ublk, which works as disks do and survives its target
# Kernels: stable backports
# Seconds: 900
. "$LAB/attach-disk.sh"
form=ublk device=/dev/ublkb0

attached_disk
