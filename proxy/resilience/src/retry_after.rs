//! The `Retry-After` header (RFC 9110 section 10.2.3).
#![expect(clippy::arithmetic_side_effects, reason = "a date of four digits of years")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&[u8]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// The wait that a `Retry-After` value demands: a number of seconds, or a date in the format that
/// RFC 9110 section 5.6.7 prefers. `None` if it is neither. A past date means no wait.
#[must_use]
pub fn retry_after(value: &[u8], now: SystemTime) -> Option<Duration> {
    let value = value.trim_ascii();
    if value.first()?.is_ascii_digit() {
        return number(value, 9).map(Duration::from_secs);
    }
    let date = UNIX_EPOCH + Duration::from_secs(imf_fixdate(value)?);
    Some(date.duration_since(now).unwrap_or_default())
}

fn number(digits: &[u8], at_most: usize) -> Option<u64> {
    let fits = !digits.is_empty() && digits.len() <= at_most;
    let all_digits = digits.iter().all(u8::is_ascii_digit);
    let add = |sum, digit: &u8| sum * 10 + u64::from(digit - b'0');
    (fits && all_digits).then(|| digits.iter().fold(0, add))
}

/// Unix time in seconds of a date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn imf_fixdate(text: &[u8]) -> Option<u64> {
    let (_, text) = text.split_at_checked(3)?;
    let (b", ", text) = text.split_at_checked(2)? else { return None };
    let (day, text) = field(text, 2, b' ')?;
    let (month, text) = text.split_at_checked(3)?;
    let month = MONTHS.iter().position(|known| *known == month)? as u64 + 1;
    let (year, text) = field(text.strip_prefix(b" ")?, 4, b' ')?;
    let (hour, text) = field(text, 2, b':')?;
    let (minute, text) = field(text, 2, b':')?;
    let (second, b"GMT") = field(text, 2, b' ')? else { return None };
    if !(1..=31).contains(&day) || year < 1970 || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some(days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
}

/// A number with this many digits and this byte after it, and the rest of the text.
fn field(text: &[u8], digits: usize, end: u8) -> Option<(u64, &[u8])> {
    let (digits, rest) = text.split_at_checked(digits)?;
    Some((number(digits, 4)?, rest.strip_prefix(&[end])?))
}

/// The number of days since 1970-01-01. Internally a year begins in March, so that the leap day is its last day.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month > 2 { year } else { year - 1 };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year / 4 - year / 100 + year / 400 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn seconds_and_dates() {
        // 1994-11-06 08:49:37 UTC, the example in RFC 9110.
        let now = at(784_111_777 - 5);
        let date = b"Sun, 06 Nov 1994 08:49:37 GMT";
        for (value, expected) in [
            (&b"0"[..], Some(0)),
            (b"120", Some(120)),
            (b" 3 ", Some(3)),
            (date, Some(5)),
            (b"Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            (b"", None),
            (b"-1", None),
            (b"1.5", None),
            (b"9999999999", None),
            (b"soon", None),
            (b"Sun, 06 Nov 1994 08:49:37 CET", None),
            (b"Sun, 06 Nuv 1994 08:49:37 GMT", None),
            (b"Sunday, 06-Nov-94 08:49:37 GMT", None),
        ] {
            let text = String::from_utf8_lossy(value);
            assert_eq!(retry_after(value, now), expected.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn the_leap_day_is_a_day() {
        let leap = imf_fixdate(b"Thu, 29 Feb 2024 00:00:00 GMT").unwrap();
        let next = imf_fixdate(b"Fri, 01 Mar 2024 00:00:00 GMT").unwrap();
        assert_eq!((leap, next - leap), (1_709_164_800, 86_400));
    }
}
