//! The table of requests. If the RFCs leave a choice, a request that two parsers could read differently must be
//! refused.

mod body;
mod fields;
mod forged;
mod h2;
mod head;
mod served;

use crate::frames::Field;
use crate::row::{RequiredOutcome, Row};

/// The field in which a proxy reports that the request was HTTP/1 with field names in lower case.
const WAS_HTTP1: Field<'_> = (b"leno-h1", b"1.1 l");

/// All rows that a client sends.
pub(crate) fn all() -> Vec<Row> {
    let fields = [fields::rows(), forged::of_the_mesh()].concat();
    [fields, head::rows(), body::rows(), served::rows(), h2::rows(&[])].concat()
}

/// Rows in which a client sets the fields that only the inbound side may set.
pub(crate) fn forged() -> Vec<Row> {
    forged::of_identities()
}

/// All rows that another proxy sends over HTTP/2. They are forwarded as HTTP/1.
pub(crate) fn of_a_proxy() -> Vec<Row> {
    [h2::rows(&[WAS_HTTP1]), h2::served::rows(&[WAS_HTTP1])].concat()
}

/// A row that the proxy must refuse.
fn refused(name: &'static str, section: &'static str, status: u16, request: Vec<u8>) -> Row {
    Row { name, section, request, fate: RequiredOutcome::Refused(status) }
}
