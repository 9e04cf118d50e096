//! Structures shared between the kernel programs and user space.
