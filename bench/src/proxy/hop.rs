//! One hop: where a proxy listens, where it forwards to, and what it speaks on both sides.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::scenario::Work;

/// The configuration of one proxy.
#[derive(Clone, Debug)]
pub(crate) struct Hop {
    /// Where the proxy listens.
    pub(crate) address: SocketAddr,
    /// The address it forwards to.
    pub(crate) backend: SocketAddr,
    /// The kind of work it carries.
    pub(crate) work: Work,
    /// The protocol of its clients.
    pub(crate) accept: Leg,
    /// The protocol of the backend.
    pub(crate) connect: Leg,
}

/// The protocol on one side of a proxy.
#[derive(Clone, Debug)]
pub(crate) struct Leg {
    /// For HTTP: version 2 if set, else 1.1.
    pub(crate) http2: bool,
    /// TLS 1.3 with certificates on both sides; plaintext if `None`.
    pub(crate) tls: Option<Tls>,
}

/// The files of one side's identity, and the name of the other side.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    /// Contains `chain.pem`, `key.pem`, both in `both.pem`, and `roots.pem`.
    pub(crate) directory: PathBuf,
    /// The SPIFFE ID that the other side must have.
    pub(crate) other: String,
}

impl Leg {
    /// The protocol of an application for this work: plaintext.
    pub(crate) fn plain(work: Work) -> Self {
        Leg { http2: work == Work::Http2, tls: None }
    }
}
