//! Sectors: geometry, operations, errors, and the contract of a block backend.
