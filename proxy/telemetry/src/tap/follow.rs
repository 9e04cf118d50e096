//! A request that is followed over its hops: what the proxies of later ones know it by.
//!
//! ```text
//! client's proxy ── traceparent, tracestate: leno=ID ──► application ── the same, where it passes on the context
//!                                                        of traces (W3C) ──► its proxy, whose tap is for ID
//! ```

use std::num::NonZeroU64;

/// The name of the member of `tracestate`.
const MEMBER: &str = "leno=";
/// The part of an identifier that says which target of one tap has chosen the request.
const TARGET_BITS: u32 = 16;

/// What the request carries of W3C's Trace Context when it comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Whether it takes part in a trace.
    pub(crate) has_parent: bool,
    /// By what it is followed already.
    pub(crate) followed: Option<NonZeroU64>,
}

/// What a request that a tap gets is sent on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Joins the records of the client's proxy and of the server's.
    pub number: NonZeroU64,
    /// By what later hops know it, if it is followed from here on.
    pub(crate) follow: Option<NonZeroU64>,
    /// Whether it needs a trace of its own, which applications pass on.
    pub(crate) begins_trace: bool,
}

impl Mark {
    /// The `traceparent` of a request that is followed and takes part in no trace. It is not sampled.
    #[must_use]
    pub fn parent(&self) -> Option<(&'static str, String)> {
        let id = self.follow.filter(|_| self.begins_trace)?;
        let span = self.number;
        Some(("traceparent", format!("00-{id:016x}{span:016x}-{span:016x}-00")))
    }

    /// A line of `tracestate` for a request that is followed, beside those that it has.
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

/// An identifier in hexadecimal digits.
pub(crate) fn identifier(text: &str) -> Option<NonZeroU64> {
    let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten().and_then(NonZeroU64::new)
}

/// Whether two identifiers are of one tap, whichever of its targets has chosen the request.
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
