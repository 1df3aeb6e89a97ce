//! A gateway's engine, or two, over a store that does what a test wants of it.

mod fences;
mod objects;
mod refused;
mod slow;
