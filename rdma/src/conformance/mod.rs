//! The suite that every provider passes.
