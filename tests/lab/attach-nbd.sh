# What: where ublk may not be loaded, `nvmf attach` makes a disk through the kernel's nbd client
# Kernels: stable backports
# Seconds: 900
. "$LAB/attach-disk.sh"
form=nbd device=/dev/nbd0

echo 'blacklist ublk_drv' >/etc/modprobe.d/no-ublk.conf
attached_disk
