//! A request's place in a trace, as headers express it: `traceparent` of W3C's Trace Context, and B3 in one header or
//! in several.

/// The length of a `traceparent` of version 00: `00-`, 32 digits, `-`, 16 digits, `-`, 2 digits.
const PARENT_BYTES: usize = 55;

/// The headers of a request that are about traces, as they were received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lines<'h> {
    w3c: Option<&'h [u8]>,
    is_repeated: bool,
    has_state: bool,
    b3: Option<&'h [u8]>,
    parts: [Option<&'h [u8]>; PARTS.len()],
}

/// The trace context of a request, parsed from its headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// The trace to which the request belongs, and the span that sent it.
    pub(crate) parent: Option<Parent>,
    /// Whether the sender has decided that the trace is sampled; `None` if it has not decided.
    pub(crate) sampled: Option<bool>,
    /// The formats that must be forwarded in addition to `traceparent`.
    pub(crate) forms: Forms,
}

/// The formats in which the next hop gets the trace context, in addition to `traceparent`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forms {
    pub(crate) b3: bool,
    pub(crate) b3_parts: bool,
    /// There is a `tracestate` without a valid `traceparent`, which must be removed.
    pub(crate) stray_state: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
}

/// The headers of B3 in several headers.
const PARTS: [&str; 4] = ["x-b3-traceid", "x-b3-spanid", "x-b3-sampled", "x-b3-flags"];

impl<'h> Lines<'h> {
    /// Finds the trace headers among the headers of a request.
    pub(crate) fn of(headers: impl Iterator<Item = (&'h str, &'h [u8])>) -> Self {
        let mut lines = Self::default();
        for (name, value) in headers {
            // The first letter excludes most names.
            match name.as_bytes().first() {
                Some(b't' | b'T') if name.eq_ignore_ascii_case("traceparent") => {
                    lines.is_repeated |= lines.w3c.replace(value).is_some();
                }
                Some(b't' | b'T') => lines.has_state |= name.eq_ignore_ascii_case("tracestate"),
                Some(b'b' | b'B') if name.eq_ignore_ascii_case("b3") => lines.b3 = Some(value),
                Some(b'x' | b'X') => {
                    let part = PARTS.iter().position(|part| name.eq_ignore_ascii_case(part));
                    if let Some(part) = part.and_then(|part| lines.parts.get_mut(part)) {
                        part.get_or_insert(value);
                    }
                }
                _ => {}
            }
        }
        lines
    }

    /// Whether the only trace header is a `traceparent` of the usual form that says that the trace is not sampled. Most
    /// requests of a mesh with traces are like this, so this check parses no number.
    pub(crate) fn is_plainly_unsampled(&self) -> bool {
        let is_alone =
            !self.is_repeated && self.b3.is_none() && self.parts.iter().all(Option::is_none);
        is_alone && self.w3c.is_some_and(is_plainly_unsampled)
    }

    /// Parses the headers. A valid `traceparent` takes precedence over B3; headers that cannot be parsed are ignored.
    pub(crate) fn read(&self) -> Received {
        let has_parts = self.parts.iter().any(Option::is_some);
        if self.w3c.is_none() && self.b3.is_none() && !has_parts {
            let forms = Forms { stray_state: self.has_state, ..Forms::default() };
            return Received { forms, ..Received::default() };
        }
        let of_w3c = self.w3c.filter(|_| !self.is_repeated).and_then(text).and_then(traceparent);
        let (parent, sampled) = match (of_w3c, self.b3) {
            (Some((parent, sampled)), _) => (Some(parent), Some(sampled)),
            (None, Some(b3)) => text(b3).map_or((None, None), b3_single),
            (None, None) => self.b3_in_parts(),
        };
        let forms = Forms {
            b3: self.b3.is_some(),
            b3_parts: has_parts,
            stray_state: self.has_state && of_w3c.is_none(),
        };
        Received { parent, sampled, forms }
    }

    fn b3_in_parts(&self) -> (Option<Parent>, Option<bool>) {
        let [trace_id, span_id, sampled, flags] = self.parts.map(|part| part.and_then(text));
        let parent = trace_id.and_then(trace_id_of).zip(span_id.and_then(span_id_of));
        let parent = parent.map(|(trace_id, span_id)| Parent { trace_id, span_id });
        // The debug flag: always sampled.
        let is_debug = flags == Some("1");
        (parent, if is_debug { Some(true) } else { sampled.and_then(decision) })
    }
}

/// The value without white space around it.
fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok().map(str::trim)
}

fn is_plainly_unsampled(value: &[u8]) -> bool {
    let Ok([b'0', b'0', b'-', ids @ .., b'-', b'0', b'0']) = <&[u8; PARENT_BYTES]>::try_from(value)
    else {
        return false;
    };
    match ids.split_first_chunk::<32>() {
        Some((trace_id, [b'-', span_id @ ..])) => is_id(trace_id) && is_id(span_id),
        _ => false,
    }
}

/// Whether these are lower-case hexadecimal digits that are not all 0. One pass without a branch per digit. A release
/// build does not vectorise it (`docs/decisions/198-what-an-unobserved-request-costs.md`).
#[inline]
fn is_id(digits: &[u8]) -> bool {
    let (is_lower, differs) = digits.iter().fold((true, 0), |(is_lower, differs), byte| {
        let is_digit = byte.wrapping_sub(b'0') < 10;
        let is_letter = byte.wrapping_sub(b'a') < 6;
        (is_lower & (is_digit | is_letter), differs | (byte ^ b'0'))
    });
    is_lower && differs != 0
}

/// Parses `00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01`.
fn traceparent(value: &str) -> Option<(Parent, bool)> {
    let mut parts = value.split('-');
    let (version, trace_id, span_id, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    // A later version may have more fields.
    let version = lower_hex(version, 2).filter(|version| *version != 0xff)?;
    if version == 0 && parts.next().is_some() {
        return None;
    }
    let trace_id = lower_hex(trace_id, 32).filter(|id| *id != 0)?;
    let span_id = lower_hex(span_id, 16).and_then(|id| u64::try_from(id).ok())?;
    let flags = lower_hex(flags, 2)?;
    (span_id != 0).then_some((Parent { trace_id, span_id }, flags & 1 == 1))
}

/// Parses `TRACE-SPAN`, `TRACE-SPAN-SAMPLED`, `TRACE-SPAN-SAMPLED-PARENT`, or the decision alone.
fn b3_single(value: &str) -> (Option<Parent>, Option<bool>) {
    let mut parts = value.split('-');
    let first = parts.next().unwrap_or_default();
    let Some(span_id) = parts.next() else { return (None, decision(first)) };
    let parent = trace_id_of(first)
        .zip(span_id_of(span_id))
        .map(|(trace_id, span_id)| Parent { trace_id, span_id });
    (parent, parts.next().and_then(decision).filter(|_| parent.is_some()))
}

fn decision(text: &str) -> Option<bool> {
    match text {
        "1" | "d" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

/// Parses an identifier of 64 or of 128 bits.
fn trace_id_of(text: &str) -> Option<u128> {
    hex(text, 32).or_else(|| hex(text, 16)).filter(|id| *id != 0)
}

fn span_id_of(text: &str) -> Option<u64> {
    hex(text, 16).and_then(|id| u64::try_from(id).ok()).filter(|id| *id != 0)
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    digits_of(text, digits, |digit| char::from(digit).to_digit(16))
}

fn lower_hex(text: &str, digits: usize) -> Option<u128> {
    let is_lower = |digit: &u8| !digit.is_ascii_uppercase();
    digits_of(text, digits, |digit| {
        Some(digit).filter(is_lower).and_then(|digit| char::from(digit).to_digit(16))
    })
}

/// The number in `text`, which must have this many hexadecimal digits; `value` parses one digit. `u128::from_str_radix`
/// multiplies for each digit, and took half of the time that a trace cost a server's proxy.
fn digits_of(text: &str, digits: usize, value: impl Fn(u8) -> Option<u32>) -> Option<u128> {
    if text.len() != digits {
        return None;
    }
    let mut number = 0_u128;
    for digit in text.bytes() {
        number = number << 4 | u128::from(value(digit)?);
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: u128 = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;
    const PARENT: Parent = Parent { trace_id: TRACE, span_id: 0xb7ad_6b71_6920_3331 };
    const W3C: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn of(headers: &[(&str, &str)]) -> Received {
        Lines::of(headers.iter().map(|(name, value)| (*name, value.as_bytes()))).read()
    }

    fn plainly(headers: &[(&str, &str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
        Lines::of(headers).is_plainly_unsampled()
    }

    #[test]
    fn a_traceparent_is_read_as_the_recommendation_has_it() {
        let read = of(&[("accept", "*/*"), ("Traceparent", W3C), ("tracestate", "a=b")]);
        assert_eq!(
            read,
            Received { parent: Some(PARENT), sampled: Some(true), ..Received::default() }
        );
        let unsampled = W3C.replace("-01", "-00");
        assert_eq!(of(&[("traceparent", &unsampled)]).sampled, Some(false));
        let later = W3C.replace("00-0af", "cc-0af") + "-more";
        assert_eq!(of(&[("traceparent", &later)]).parent, Some(PARENT));
        for wrong in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            let read = of(&[("traceparent", wrong), ("tracestate", "a=b")]);
            let forms = Forms { stray_state: true, ..Forms::default() };
            assert_eq!(read, Received { forms, ..Received::default() }, "{wrong}");
            assert!(!plainly(&[("traceparent", &wrong.replace("-01", "-00"))]), "{wrong}");
        }
        assert!(plainly(&[("accept", "*/*"), ("TraceParent", &unsampled), ("tracestate", "a=b")]));
        // These headers need to be parsed.
        for others in [("traceparent", &*unsampled), ("b3", "1"), ("x-b3-flags", "1")] {
            assert!(!plainly(&[("traceparent", &unsampled), others]), "{others:?}");
        }
        assert!(!plainly(&[("traceparent", W3C)]) && !plainly(&[("traceparent", &later)]));
        let twice = of(&[("traceparent", W3C), ("traceparent", W3C)]);
        assert_eq!(twice.parent, None);
    }

    #[test]
    fn b3_is_read_in_one_header_and_in_several() {
        let ids = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
        let b3 = Forms { b3: true, ..Forms::default() };
        for (value, sampled) in [
            (ids.to_owned(), None),
            (format!("{ids}-1"), Some(true)),
            (format!("{ids}-d"), Some(true)),
            (format!("{ids}-0-05e3ac9a4f6e3b90"), Some(false)),
        ] {
            let read = of(&[("b3", &value)]);
            let wanted = Received { parent: Some(PARENT), sampled, forms: b3 };
            assert_eq!(read, wanted, "{value}");
        }
        assert_eq!(
            of(&[("b3", "0")]),
            Received { sampled: Some(false), forms: b3, ..Received::default() }
        );
        let several = of(&[
            ("X-B3-TraceId", "8448eb211c80319c"),
            ("X-B3-SpanId", "b7ad6b7169203331"),
            ("X-B3-Sampled", "1"),
        ]);
        let short = Parent { trace_id: 0x8448_eb21_1c80_319c, ..PARENT };
        assert_eq!(
            (several.parent, several.sampled, several.forms.b3_parts),
            (Some(short), Some(true), true)
        );
        assert_eq!(of(&[("x-b3-flags", "1")]).sampled, Some(true));
        // `traceparent` takes precedence.
        let both = of(&[("b3", "0"), ("traceparent", W3C)]);
        assert_eq!((both.parent, both.sampled, both.forms), (Some(PARENT), Some(true), b3));
    }
}
