//! Durations in policies and the Gateway API (GEP-2257).

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The largest number of digits before a unit (GEP-2257).
const MAX_DIGITS: usize = 5;
/// The largest number of units in a duration (GEP-2257).
const MAX_UNITS: usize = 4;

/// A length of time: `1h30m`, `10s`, `250ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub std::time::Duration);

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text is a number without a unit.
    #[error("{0} has no unit: write a duration, such as 10s")]
    NoUnit(String),
    /// The text is not a duration.
    #[error(
        "{0:?} is not a duration: write whole numbers with h, m, s or ms, such as 1h30m or 10s"
    )]
    Form(String),
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let wrong = || match text.parse::<f64>() {
            Ok(number) if number.is_finite() => DurationError::NoUnit(text.to_owned()),
            _ => DurationError::Form(text.to_owned()),
        };
        let (mut rest, mut sum, mut units) = (text, 0_u64, 0);
        if text.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 || digits > MAX_DIGITS || units == MAX_UNITS {
                return Err(wrong());
            }
            let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
            rest = &rest[digits..];
            // `ms` is tried before `m`, because `m` is a prefix of it.
            let (unit, milliseconds) = [("h", 3_600_000), ("ms", 1), ("m", 60_000), ("s", 1_000)]
                .into_iter()
                .find(|(unit, _)| rest.starts_with(unit))
                .ok_or_else(wrong)?;
            rest = &rest[unit.len()..];
            sum += number * milliseconds;
            units += 1;
        }
        Ok(Self(std::time::Duration::from_millis(sum)))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.as_millis();
        if left == 0 {
            return f.write_str("0s");
        }
        for (unit, milliseconds) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)] {
            let count = left / milliseconds;
            left %= milliseconds;
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrNumber;

        impl Visitor<'_> for TextOrNumber {
            type Value = Duration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration, such as 10s")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
                text.parse().map_err(E::custom)
            }

            // Reject a number with the same error as a text without a unit.
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Duration, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Duration, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Duration, E> {
                self.visit_str(&number.to_string())
            }
        }

        deserializer.deserialize_any(TextOrNumber)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Duration {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            // The pattern of GEP-2257.
            "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, milliseconds, written) in [
            ("0s", 0, "0s"),
            ("10s", 10_000, "10s"),
            ("250ms", 250, "250ms"),
            ("1h30m", 5_400_000, "1h30m"),
            ("1m1s1ms", 61_001, "1m1s1ms"),
            ("90s", 90_000, "1m30s"),
            ("99999h", 359_996_400_000, "99999h"),
        ] {
            let read: Duration = text.parse().unwrap();
            assert_eq!(read.0.as_millis(), milliseconds, "{text}");
            assert_eq!(read.to_string(), written);
        }
        for text in ["", "10", "s", "1.5s", "-1s", "1d", "100000s", "1h1m1s1ms1s", "1 s", "1us"] {
            assert!(text.parse::<Duration>().is_err(), "{text}");
        }
    }
}
