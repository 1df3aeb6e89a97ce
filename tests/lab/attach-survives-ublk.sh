# What: a disk through ublk survives ten ends of its server and ten of its target, under verified load
# Seconds: 600
. "$LAB/attach-survives.sh"
form=ublk device=/dev/ublkb0

survives
