//! What a capture leaves alone.

use leno_types::ports;
use serde::Serialize;

use crate::captured::Workload;

/// What a [`Workload`]'s capture leaves alone, under every backend, besides all that is not TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Connections from elsewhere to these ports go to whoever listens there.
    pub inbound_ports: Vec<u16>,
    /// Connections to these prefixes pass no proxy, whatever their port is.
    pub outbound_to: Vec<String>,
    /// What this user sends passes no proxy: it is the proxy's own.
    pub user: u32,
}

impl Workload {
    /// What its capture leaves alone.
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
