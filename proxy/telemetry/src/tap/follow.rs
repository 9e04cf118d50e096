//! Following a request over several hops: a tap adds an identifier to it, by which the proxies of later hops recognise
//! it.
//!
//! ```text
//! client's proxy ── traceparent, tracestate: leno=ID ──► application ── same headers ──► its proxy, with a tap for ID
//! ```
//! The application must copy the two headers (W3C Trace Context) to the requests that it sends.

use std::num::NonZeroU64;

/// The beginning of the member in `tracestate`.
const MEMBER: &str = "leno=";
/// The low bits of an identifier. An operator may tap several targets with identifiers that differ only in these bits,
/// so that events show which target has chosen the request.
const TARGET_BITS: u32 = 16;

/// The trace context of a request when it arrives (W3C Trace Context).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Whether the request takes part in a trace.
    pub(crate) has_parent: bool,
    /// The identifier of the tap that already follows the request.
    pub(crate) followed: Option<NonZeroU64>,
}

/// The mark that a tapped request is forwarded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Joins the events of the client's proxy and of the server's proxy.
    pub number: NonZeroU64,
    /// The identifier by which proxies of later hops recognise the request, if the tap follows it.
    pub(crate) follow: Option<NonZeroU64>,
    /// Whether the request needs a new trace context, because applications forward only requests' existing ones.
    pub(crate) begins_trace: bool,
}

impl Mark {
    /// The `traceparent` for a followed request that takes part in no trace. It is not sampled.
    #[must_use]
    pub fn parent(&self) -> Option<(&'static str, String)> {
        let id = self.follow.filter(|_| self.begins_trace)?;
        let span = self.number;
        Some(("traceparent", format!("00-{id:016x}{span:016x}-{span:016x}-00")))
    }

    /// The `tracestate` line for a followed request, in addition to those that it has.
    #[must_use]
    pub fn state(&self) -> Option<(&'static str, String)> {
        Some(("tracestate", format!("{MEMBER}{:016x}", self.follow?)))
    }
}

impl Carried {
    pub(crate) fn read<'h>(headers: impl Iterator<Item = (&'h str, &'h [u8])>) -> Self {
        let mut carried = Self::default();
        for (name, value) in headers {
            let parents = ["traceparent", "b3", "x-b3-traceid"];
            if parents.iter().any(|one| name.eq_ignore_ascii_case(one)) {
                carried.has_parent = true;
            } else if name.eq_ignore_ascii_case("tracestate") {
                let value = std::str::from_utf8(value).unwrap_or_default();
                let member = value.split(',').find_map(|one| one.trim().strip_prefix(MEMBER));
                carried.followed = carried.followed.or(member.and_then(identifier));
            }
        }
        carried
    }
}

/// Parses an identifier of 16 hexadecimal digits.
pub(crate) fn identifier(text: &str) -> Option<NonZeroU64> {
    let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten().and_then(NonZeroU64::new)
}

/// Whether two identifiers belong to the same tap, whichever of its targets has chosen the request.
pub(crate) fn are_alike(one: NonZeroU64, other: NonZeroU64) -> bool {
    one.get() >> TARGET_BITS == other.get() >> TARGET_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_by_its_tracestate() {
        let id = identifier("00ab00000000cd01").unwrap();
        let mark = Mark { number: NonZeroU64::MIN, follow: Some(id), begins_trace: true };
        let (name, state) = mark.state().unwrap();
        let both = format!("vendor=x, {state}");
        let read = Carried::read([(name, both.as_bytes())].into_iter());
        assert_eq!(read, Carried { has_parent: false, followed: Some(id) });
        let (name, parent) = mark.parent().unwrap();
        assert_eq!(parent, "00-00ab00000000cd010000000000000001-0000000000000001-00");
        assert!(Carried::read([(name, parent.as_bytes())].into_iter()).has_parent);
        assert!(are_alike(id, identifier("00ab00000000ffff").unwrap()));
        assert!(!are_alike(id, identifier("00ab00000001cd01").unwrap()));
        for wrong in ["", "1", "00ab00000000cd0g", "0000000000000000", "+0ab00000000cd01"] {
            assert_eq!(identifier(wrong), None, "{wrong}");
        }
        let plain = Mark { follow: None, ..mark };
        assert_eq!((plain.parent(), plain.state()), (None, None));
    }
}
