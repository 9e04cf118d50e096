//! What names one connection to its two ends, and to no one else: derived from the exporter secret of TLS 1.3 (RFC 8446
//! section 7.5).
//!
//! The library has no exporter for sessions in buffers of the caller. It shows the secret to the log of keys, in the
//! thread and during the step that derive it.

use std::cell::Cell;

use rustls::KeyLog;
use rustls::crypto::aws_lc_rs::cipher_suite;

/// The name that RFC 8446's exporter secret has in logs of keys.
const EXPORTER: &str = "EXPORTER_SECRET";

/// Keeps bindings apart from all other uses of the secret.
const CONTEXT: &[u8] = b"leno renewal 1";

/// Bytes of a binding: as hard to guess as a key.
pub(crate) const BINDING_BYTES: usize = 16;

/// Names one connection.
pub(crate) type Binding = [u8; BINDING_BYTES];

thread_local! {
    static DERIVED: Cell<Option<Binding>> = const { Cell::new(None) };
}

/// Derives bindings; keeps no secret.
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

/// The binding that this thread has derived since the last call.
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
