//! The NVM subsystem engine: the target side, without I/O.
