//! Remote NVMe namespaces as a userspace block API, and the nvmf command.
