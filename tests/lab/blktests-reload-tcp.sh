# What: namespaces, subsystems and queue counts change by reload and restart over TCP, as blktests changes them by configfs
# Seconds: 480
transport=tcp
. "$LAB/blktests-reload.sh"

group
finish
