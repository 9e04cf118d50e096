//! Which traffic a capture leaves alone.

use leno_types::ports;
use serde::Serialize;

use crate::captured::CaptureTarget;

/// The traffic that a [`CaptureTarget`]'s capture leaves alone under every backend. Traffic other than
/// TCP is never captured and not listed here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Connections from outside to these ports go straight to the program that listens there.
    pub inbound_ports: Vec<u16>,
    /// Connections to these prefixes bypass the proxy, on every port.
    pub outbound_to: Vec<String>,
    /// Connections of this user bypass the proxy: they are the proxy's own.
    pub user: u32,
}

impl CaptureTarget {
    /// The traffic that this workload's capture leaves alone.
    #[must_use]
    pub fn left_out(&self) -> LeftOut {
        let excluded = self.excluded.iter().map(|(address, length)| format!("{address}/{length}"));
        let always = ["127.0.0.0/8", "::1/128"].map(ToOwned::to_owned);
        LeftOut {
            inbound_ports: vec![ports::ADMIN],
            outbound_to: always.into_iter().chain(excluded).collect(),
            user: self.proxy_uid,
        }
    }
}
