//! The configuration of the target, validated at the border.
