# What: fio on rxe in one guest: kernel on kernel, kernel on ours, ours on ours, ours on kernel
# Seconds: 1500
# Alone: yes
. "$LAB/figures.sh"
over=rxe transport=rdma provider=verbs listener='provider = "verbs"'

rdma_device rxe
figures
