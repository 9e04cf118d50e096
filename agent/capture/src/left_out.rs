//! Describes which traffic a capture does not redirect.

use leno_types::ports;
use serde::Serialize;

use crate::captured::CaptureTarget;

/// The traffic that is not redirected by any backend. Traffic other than TCP is not listed here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Connections from outside to these ports reach the program that listens there directly.
    pub inbound_ports: Vec<u16>,
    /// Connections to these prefixes bypass the proxy, on every port.
    pub outbound_to: Vec<String>,
    /// Connections of processes with this user bypass the proxy, because they are the proxy's own.
    pub user: u32,
}

impl CaptureTarget {
    /// The traffic of this workload that is not redirected.
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
