# What: fio over NVMe/TCP in one guest: kernel on kernel, kernel on ours, ours on ours, ours on kernel
# Seconds: 1500
# Alone: yes
. "$LAB/figures.sh"
over=tcp transport=tcp listener='transport = "tcp"'

figures
