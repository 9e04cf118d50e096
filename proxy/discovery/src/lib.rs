//! The proxy's side of discovery and identity.
