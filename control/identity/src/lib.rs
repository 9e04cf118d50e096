//! The mesh's certificate authority.
