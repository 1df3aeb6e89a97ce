//! Simulation, processes and the kernel lab.
