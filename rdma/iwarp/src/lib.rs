//! Userspace iWARP (MPA, DDP, RDMAP) over TCP.
