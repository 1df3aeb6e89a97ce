# What: the kernel uses our target over RDMA as blktests' nvme group does, through the control program that the suite calls
# Seconds: 540
transport=rdma
. "$LAB/blktests.sh"

group
finish
