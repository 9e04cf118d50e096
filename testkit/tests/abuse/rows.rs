//! The table. Where the RFCs leave a choice, whatever two parsers could read differently is
//! refused.

mod body;
mod fields;
mod h2;
mod head;
mod served;

use crate::row::{Fate, Row};

/// All rows.
pub(crate) fn all() -> Vec<Row> {
    [fields::rows(), head::rows(), body::rows(), served::rows(), h2::rows()].concat()
}

/// A row that never gets past the proxy.
fn refused(name: &'static str, section: &'static str, status: u16, request: Vec<u8>) -> Row {
    Row { name, section, request, fate: Fate::Refused(status) }
}
