//! mTLS between proxies.
