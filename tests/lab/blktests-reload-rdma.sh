# What: namespaces, subsystems and queue counts change by reload and restart over RDMA, as blktests changes them by configfs
# Seconds: 480
transport=rdma
. "$LAB/blktests-reload.sh"

group
finish
