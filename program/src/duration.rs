//! Durations on command lines: a whole number and a unit.

use std::time::Duration;

/// Parses `500ms`, `60s`, `90m`, `24h` or `7d`; a number alone is in seconds.
///
/// # Errors
/// Any other text; the message has these examples.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is not a duration: use for example 500ms, 60s, 90m, 24h or 7d");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let count: u64 = count.parse().map_err(|_| wrong())?;
    let ms = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    count.checked_mul(ms).map(Duration::from_millis).ok_or_else(wrong)
}

/// Checks that a duration is within two bounds, inclusive.
///
/// # Errors
/// It is not; the message names the bounds.
pub fn within(duration: Duration, (least, most): (Duration, Duration)) -> Result<Duration, String> {
    if (least..=most).contains(&duration) {
        return Ok(duration);
    }
    Err(format!("{} is not from {} to {}", written(duration), written(least), written(most)))
}

/// A duration as a user writes it: in the largest unit of which it is a whole number.
fn written(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
    let (each, unit) = match ms {
        0 => (1, "s"),
        // One day is written 24h.
        86_400_000 => (3_600_000, "h"),
        _ => units.into_iter().find(|(each, _)| ms.is_multiple_of(*each)).unwrap_or((1, "ms")),
    };
    format!("{}{unit}", ms.checked_div(each).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_durations_as_users_write_them() {
        let bounds = (Duration::from_millis(100), Duration::from_hours(1));
        assert_eq!(within(Duration::ZERO, bounds), Err("0s is not from 100ms to 1h".to_owned()));
        let day = (Duration::from_secs(5), Duration::from_hours(24));
        assert_eq!(
            within(Duration::from_hours(25), day),
            Err("25h is not from 5s to 24h".to_owned())
        );
        let week = Duration::from_hours(24 * 7);
        assert_eq!(within(week, day), Err("7d is not from 5s to 24h".to_owned()));
        assert_eq!(within(Duration::from_secs(90), day), Ok(Duration::from_secs(90)));
    }

    #[test]
    fn durations_are_read() {
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("24h"), Ok(Duration::from_secs(86_400)));
        for wrong in ["", "s", "1y", "-1s", "1.5h", "99999999999999999999s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
