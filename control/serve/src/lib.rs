//! Serves discovery and identity to proxies.
