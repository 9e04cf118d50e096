//! The one-byte report with which a server's proxy says why it cuts off an HTTP/1 response. It is sent in a last
//! record, together with the connection's [binding](crate::binding), which only the two ends can derive. Then the
//! connection ends without `close_notify`, so that the response does not look complete.
//!
//! An application does not know the binding, so none of its bytes can be mistaken for a report.

use crate::binding::{BINDING_BYTES, Binding};

/// The bytes before the binding. They distinguish the report from renewals, which contain the binding, too.
const CUT: &[u8; 8] = b"leno-cut";

/// The length of the record in bytes. Few applications send a record of this length.
const MARK_BYTES: usize = CUT.len() + BINDING_BYTES + 1;

/// The last record of the connection with this binding.
pub(crate) fn mark(binding: &Binding, report: u8) -> Vec<u8> {
    [&CUT[..], binding, &[report]].concat()
}

/// The report in `record`, if it is the last record of the connection with this binding.
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
