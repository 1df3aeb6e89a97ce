# What: a disk through ublk survives ten ends of its server and ten of its target, under verified load
# Kernels: stable backports
# Seconds: 600
. "$LAB/attach-survives.sh"
form=ublk device=/dev/ublkb0

survives
