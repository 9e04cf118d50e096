//! The HTTP engine of the data plane.
