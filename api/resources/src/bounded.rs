//! Parses numbers. An error names the bounds of the field, and not those of its type.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, Visitor};

/// Numbers from here on are printed with an exponent.
const TOO_LARGE: f64 = 1e15;

/// Parses a number for a field that accepts `LEAST` to `MOST`. Whole numbers outside of these bounds are parsed if they
/// fit the type: the checks of a document refuse them later, and an object that is already stored stays readable.
pub(crate) fn number<'de, D: Deserializer<'de>, const LEAST: u32, const MOST: u32>(
    deserializer: D,
) -> Result<u32, D::Error> {
    // This method makes a deserializer pass numbers of every kind.
    deserializer.deserialize_f64(Number::<LEAST, MOST>)
}

struct Number<const LEAST: u32, const MOST: u32>;

impl<const LEAST: u32, const MOST: u32> Number<LEAST, MOST> {
    fn of<E: Error>(number: impl TryInto<u32> + fmt::Display + Copy) -> Result<u32, E> {
        let beyond = |_| E::custom(format_args!("{number} is not from {LEAST} to {MOST}"));
        number.try_into().map_err(beyond)
    }
}

impl<const LEAST: u32, const MOST: u32> Visitor<'_> for Number<LEAST, MOST> {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number from {LEAST} to {MOST}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u32, E> {
        Self::of(number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u32, E> {
        Self::of(number)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<u32, E> {
        // A whole number that does not fit into 64 bits is parsed as one with a fraction.
        Err(match number.abs() < TOO_LARGE {
            true => E::custom(format_args!("{number:?} is not a whole number")),
            false => E::custom(format_args!("{number:e} is not from {LEAST} to {MOST}")),
        })
    }
}
