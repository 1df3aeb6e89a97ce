//! nvmf-target: exports disks and files over NVMe/RDMA.
