//! What the proxy of a server reports when it cuts off a response of HTTP/1: a last record, by the name that only the
//! two ends of the connection can derive. Then the connection ends without `close_notify`, so that the response is not
//! taken for a complete one.
//!
//! An application knows no such name, so that nothing that it sends is taken for a report.

use crate::binding::{BINDING_BYTES, Binding};

/// Before the name, which is used for renewals too.
const CUT: &[u8; 8] = b"leno-cut";

/// The bytes of the record: as few applications send in a record of its own.
const MARK_BYTES: usize = CUT.len() + BINDING_BYTES + 1;

/// The record that ends the connection with this name.
pub(crate) fn mark(binding: &Binding, report: u8) -> Vec<u8> {
    [&CUT[..], binding, &[report]].concat()
}

/// What `record` reports, if it ends the connection with this name.
pub(crate) fn report(binding: Option<&Binding>, record: &[u8]) -> Option<u8> {
    if record.len() != MARK_BYTES {
        return None;
    }
    let rest = record.strip_prefix(CUT)?.strip_prefix(binding?)?;
    rest.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_of_the_connection_makes_a_report() {
        let (own, other) = ([7; BINDING_BYTES], [8; BINDING_BYTES]);
        assert_eq!(report(Some(&own), &mark(&own, 0x81)), Some(0x81));
        for (binding, record) in [
            (Some(&other), mark(&own, 1)),
            (None, mark(&own, 1)),
            (Some(&own), [&mark(&own, 1)[..], b"x"].concat()),
            (Some(&own), b"leno-cut".to_vec()),
        ] {
            assert_eq!(report(binding, &record), None);
        }
    }
}
