//! The verbs-shaped contract, its reference implementation and its conformance suite.
