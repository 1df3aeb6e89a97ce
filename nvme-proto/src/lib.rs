//! Wire types of NVMe, NVMe over Fabrics, NVMe/RDMA and NVMe/TCP.
