//! The table. Where the RFCs leave a choice, whatever two parsers could read differently is
//! refused.

mod body;
mod fields;
mod forged;
mod h2;
mod head;
mod served;

use crate::frames::Field;
use crate::row::{Fate, Row};

/// How a proxy says that a request was one of HTTP/1, with names in lower case.
const WAS_HTTP1: Field<'_> = (b"leno-h1", b"1.1 l");

/// All rows of a client.
pub(crate) fn all() -> Vec<Row> {
    let fields = [fields::rows(), forged::of_the_mesh()].concat();
    [fields, head::rows(), body::rows(), served::rows(), h2::rows(&[])].concat()
}

/// Rows of a client of an application that write what the inbound side alone may write.
pub(crate) fn forged() -> Vec<Row> {
    forged::of_identities()
}

/// All rows of another proxy, which become requests of HTTP/1.
pub(crate) fn of_a_proxy() -> Vec<Row> {
    [h2::rows(&[WAS_HTTP1]), h2::served::rows(&[WAS_HTTP1])].concat()
}

/// A row that never gets past the proxy.
fn refused(name: &'static str, section: &'static str, status: u16, request: Vec<u8>) -> Row {
    Row { name, section, request, fate: Fate::Refused(status) }
}
