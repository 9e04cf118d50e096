//! Drives the real mesh.
