# What: a disk through nbd survives ten ends of its server and ten of its target, under verified load
# Kernels: stable backports
# Seconds: 900
. "$LAB/attach-survives.sh"
form=nbd device=/dev/nbd0

echo 'blacklist ublk_drv' >/etc/modprobe.d/no-ublk.conf
survives
