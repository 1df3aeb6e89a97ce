# What: the kernel uses our target over TCP as blktests' nvme group does, through the control program that the suite calls
# Seconds: 600
transport=tcp
. "$LAB/blktests.sh"

group
finish
