//! A binding is a secret value that only the two ends of one connection can compute. Each end can use it as a name of
//! the connection that cannot be guessed: to renew certificates, to send a report before a cut, and to find the other
//! end in the same process. It is derived from the exporter secret of TLS 1.3 (RFC 8446 section 7.5).
//!
//! rustls has no exporter for unbuffered sessions, whose buffers belong to the caller. It passes the secret to its key
//! log, on the thread and during the call that derive it.

use std::cell::Cell;

use rustls::KeyLog;
use rustls::crypto::aws_lc_rs::cipher_suite;

/// The label that RFC 8446's exporter secret has in key logs.
const EXPORTER: &str = "EXPORTER_SECRET";

/// Distinguishes bindings from all other values that are derived from the secret.
const CONTEXT: &[u8] = b"leno renewal 1";

/// The length of a binding in bytes. It is as hard to guess as a key.
pub(crate) const BINDING_BYTES: usize = 16;

/// The binding of one connection.
pub(crate) type Binding = [u8; BINDING_BYTES];

thread_local! {
    static DERIVED: Cell<Option<Binding>> = const { Cell::new(None) };
}

/// A key log that derives bindings and keeps no secret.
#[derive(Debug)]
pub(crate) struct Bindings;

impl KeyLog for Bindings {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if label == EXPORTER {
            DERIVED.set(binding(secret));
        }
    }

    fn will_log(&self, label: &str) -> bool {
        label == EXPORTER
    }
}

/// Takes the binding that this thread has derived since the last call.
pub(crate) fn take() -> Option<Binding> {
    DERIVED.take()
}

fn binding(secret: &[u8]) -> Option<Binding> {
    let suite = cipher_suite::TLS13_AES_128_GCM_SHA256.tls13()?;
    let mut hash = suite.common.hash_provider.start();
    hash.update(CONTEXT);
    hash.update(secret);
    hash.finish().as_ref().first_chunk().copied()
}
