//! Writes a line of text or JSON.

use std::fmt::{self, Write};

use super::settings::{Pair, Part, Parts};
use super::{Form, Layout, MAX_FIELD_BYTES, Record, Value};

impl Record<'_> {
    /// The line, including its newline. In values, all bytes except printable ASCII are escaped, and so are spaces,
    /// `"`, `\` and `%`, so that a request cannot forge a field or a second line.
    #[must_use]
    pub(super) fn line(&self, form: Form, layout: &Layout) -> String {
        let mut line = String::with_capacity(256);
        let written = match &layout.parts {
            Parts::Template(parts) => self.template(&mut line, parts),
            Parts::Pairs(pairs) if form == Form::Json => self.json(&mut line, pairs),
            Parts::Pairs(pairs) => self.text(&mut line, pairs),
        };
        written.expect("a string takes every write");
        line.push('\n');
        line
    }

    fn template(&self, line: &mut String, parts: &[Part]) -> fmt::Result {
        for part in parts {
            match part {
                Part::Literal(text) => line.push_str(text),
                Part::Field(field) => match self.value(field) {
                    Some(value) => write!(line, "{value}")?,
                    None => line.push('-'),
                },
            }
        }
        Ok(())
    }

    fn text(&self, line: &mut String, pairs: &[Pair]) -> fmt::Result {
        for Pair { key, field, .. } in pairs {
            let Some(value) = self.value(field) else { continue };
            let between = if line.is_empty() { "" } else { " " };
            write!(line, "{between}{key}={value}")?;
        }
        Ok(())
    }

    fn json(&self, line: &mut String, pairs: &[Pair]) -> fmt::Result {
        line.push('{');
        for Pair { key, field, .. } in pairs {
            let Some(value) = self.value(field) else { continue };
            let between = if line.len() == 1 { "" } else { "," };
            match &value {
                Value::Text(_) => write!(line, "{between}\"{key}\":\"{value}\"")?,
                _ => write!(line, "{between}\"{key}\":{value}")?,
            }
        }
        line.push('}');
        Ok(())
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => escape(text, f),
            Self::Number(number) => number.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
        }
    }
}

/// Percent-escapes every byte that could end or distort a field in either form.
fn escape(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in bytes.iter().take(MAX_FIELD_BYTES) {
        match byte {
            b'"' | b'\\' | b'%' | b' ' | 0..=0x1f | 0x7f.. => write!(f, "%{byte:02X}")?,
            _ => f.write_char(char::from(*byte))?,
        }
    }
    Ok(())
}

/// Formats microseconds of Unix time as date and time in UTC, such as `2026-11-27T12:30:00.250Z`.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "no divisor is zero, and the days of 2^64 microseconds are some 200 million"
)]
pub(super) fn rfc3339(unix_us: u64) -> String {
    let (ms, seconds) = (unix_us / 1000 % 1000, unix_us / 1_000_000);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    // Days are counted from 0000-03-01, so that a leap day is the last day of its year. 400 years have 146,097 days.
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Counted from March, each five months have 153 days.
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::access::AccessSettings;
    use crate::edge::{Direction, EdgeLabels};

    fn edge() -> EdgeLabels {
        EdgeLabels {
            direction: Direction::Inbound,
            client: "web".into(),
            client_namespace: "shop".into(),
            client_trust_domain: "".into(),
            server: "cart-0".into(),
            server_namespace: "shop".into(),
            service: "".into(),
            mtls: true,
        }
    }

    fn line(record: &Record<'_>, settings: &str) -> String {
        let settings: AccessSettings = settings.parse().unwrap();
        record.line(settings.form, &settings.layout)
    }

    #[test]
    fn a_request_cannot_forge_a_line() {
        let edge = edge();
        let record = Record {
            method: "GET",
            protocol: Some("HTTP/2"),
            target: b"/a\nb \"c\\",
            status: Some(200),
            grpc_status: Some(5),
            bytes: (1, 2),
            duration: Duration::from_micros(7),
            ..Record::of(&edge)
        };
        assert_eq!(
            line(&record, "text"),
            "direction=inbound client=shop/web server=shop/cart-0 method=GET \
             target=/a%0Ab%20%22c%5C protocol=HTTP/2 status=200 grpc_status=5 request_bytes=1 \
             response_bytes=2 duration_us=7 mtls=true\n"
        );
        assert_eq!(
            line(&record, "json"),
            "{\"direction\":\"inbound\",\"client\":\"shop/web\",\"server\":\"shop/cart-0\",\
             \"method\":\"GET\",\"target\":\"/a%0Ab%20%22c%5C\",\"protocol\":\"HTTP/2\",\
             \"status\":200,\"grpc_status\":5,\"request_bytes\":1,\"response_bytes\":2,\"duration_us\":7,\"mtls\":true}\n"
        );
    }

    #[test]
    fn a_line_has_what_its_settings_name() {
        let edge = edge();
        let headers = [("user-agent".into(), b"curl/8 \n".as_slice().into())];
        let record = Record {
            method: "GET",
            target: b"/items?id=1&token=hidden",
            status: Some(503),
            error: Some("failfast"),
            headers: &headers,
            ..Record::of(&edge)
        };
        assert_eq!(
            line(&record, "json:code=status,path,target,route,header(user-agent),mtls"),
            "{\"code\":503,\"path\":\"/items\",\"target\":\"/items?id=1&token=(masked)\",\
             \"user-agent\":\"curl/8%20%0A\",\"mtls\":true}\n"
        );
        assert_eq!(
            line(&record, "text:status,ua=header(User-Agent)"),
            "status=503 ua=curl/8%20%0A\n"
        );
        assert_eq!(
            line(&record, "text:\"%method% %path%\" %status% %error% %route% 100%%"),
            "\"GET /items\" 503 failfast - 100%\n"
        );
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, wanted) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_798_675_199, "2026-12-30T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(seconds * 1_000_000), wanted);
        }
        assert_eq!(rfc3339(250_999), "1970-01-01T00:00:00.250Z");
    }
}
