//! Page-aligned memory that both the road and the floor register.
