//! Loads, attaches, pins and updates the kernel programs.
