//! When the runs of a `Workload` begin, with the fields of a Kubernetes `CronJob`.

use std::fmt;

use croner::parser::{CronParser, Year};
use k8s_openapi::jiff::Zoned;
use k8s_openapi::jiff::civil::DateTime;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The fields of a schedule, each with its permitted values; the first may be omitted.
const FIELDS: [(&str, &str); 6] = [
    ("second", "0 to 59"),
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day of month", "1 to 31"),
    ("month", "1 to 12, or JAN to DEC"),
    ("day of week", "0 to 7, or SUN to SAT"),
];
/// Words for common schedules.
const NAMED: [&str; 6] = ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@hourly"];
/// The time from which to search for a run, to check that a schedule ever has one: a leap year follows.
const BEGINNING: DateTime = DateTime::constant(2024, 1, 1, 0, 0, 0, 0);

/// Runs the command of a workload at set times, to completion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Cron {
    /// The times, as `minute hour day-of-month month day-of-week`, such as `*/5 * * * *`; six fields begin with the
    /// second. Or one of `@yearly`, `@annually`, `@monthly`, `@weekly`, `@daily` and `@hourly`. If both days are
    /// restricted, either is enough. A schedule that never comes is rejected.
    pub schedule: Schedule,
    /// The time zone of the schedule, such as `Europe/Berlin`. The default is the time zone of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// What happens to a run whose time comes while another one is in progress. `Allow`, the default: both run, up to
    /// 10. `Forbid`: it begins when the other one has ended. `Replace`: the other one is ended first.
    #[serde(default, skip_serializing_if = "ConcurrencyPolicy::is_default")]
    pub concurrency_policy: ConcurrencyPolicy,
    /// How many seconds late a run may begin, because the machine slept or another run was in progress. A later one
    /// is skipped. By default a run may begin at any later time. From 1 to 31536000, which is a year.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting_deadline_seconds: Option<u32>,
    /// Whether no further runs begin. The default is false. Runs in progress continue.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
}

/// What happens to a run whose time comes while another one is in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum ConcurrencyPolicy {
    /// Both run.
    #[default]
    Allow,
    /// It begins when the other one has ended.
    Forbid,
    /// The other one is ended first.
    Replace,
}

/// Times in the syntax of cron.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    written: String,
    times: croner::Cron,
}

impl Schedule {
    /// The first time after `time`; `None` if there is none within the supported range.
    #[must_use]
    pub fn after(&self, time: &Zoned) -> Option<Zoned> {
        self.times.find_next_occurrence(time, false).ok()
    }

    /// The last time that is not after `time`; `None` if there is none within the supported range.
    #[must_use]
    pub fn until(&self, time: &Zoned) -> Option<Zoned> {
        self.times.find_previous_occurrence(time, true).ok()
    }

    fn of_text(text: &str) -> Result<Self, String> {
        let written = text.trim();
        let Ok(times) = parsed(written) else {
            return Err(format!("{text:?} is not a schedule: {}", wrong(written)));
        };
        if times.find_next_occurrence(&BEGINNING, true).is_err() {
            return Err(format!("{text:?} never comes: no month of it has such a day"));
        }
        Ok(Self { written: written.to_owned(), times })
    }
}

fn parsed(text: &str) -> Result<croner::Cron, croner::errors::CronError> {
    CronParser::builder().year(Year::Disallowed).build().parse(text)
}

/// The error for a text that is not a schedule, with advice on what to write.
fn wrong(text: &str) -> String {
    if text.starts_with('@') {
        return format!("write one of {}, or fields such as */5 * * * *", NAMED.join(", "));
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let names = match fields.len() {
        5 => &FIELDS[1..],
        6 => &FIELDS[..],
        number => {
            let fields = if number == 1 { "field" } else { "fields" };
            return format!(
                "it has {number} {fields}: write minute, hour, day of month, month and day of week, such \
                 as */5 * * * *"
            );
        }
    };
    for (index, (name, values)) in names.iter().enumerate() {
        let mut one = vec!["*"; fields.len()];
        one[index] = fields[index];
        if parsed(&one.join(" ")).is_err() {
            return format!(
                "its {name} is {:?}: write {values}, *, lists (1,2), ranges (1-5) or steps (*/5)",
                fields[index]
            );
        }
    }
    "write fields such as */5 * * * *".to_owned()
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of_text(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl std::str::FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::of_text(text)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Schedule {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Schedule".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

impl ConcurrencyPolicy {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::tz::TimeZone;

    fn at(text: &str) -> Zoned {
        text.parse::<DateTime>().unwrap().to_zoned(TimeZone::UTC).unwrap()
    }

    #[test]
    fn schedules_have_the_times_of_cron() {
        for (schedule, after, expected) in [
            ("*/5 * * * *", "2026-01-01T00:00:00", "2026-01-01T00:05:00"),
            ("*/5 * * * *", "2026-01-01T00:04:59", "2026-01-01T00:05:00"),
            ("*/20 * * * * *", "2026-01-01T00:00:00", "2026-01-01T00:00:20"),
            ("0 3 * * MON-FRI", "2026-01-02T03:00:00", "2026-01-05T03:00:00"),
            ("0 0 29 2 *", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
            // If both kinds of days are restricted, either suffices.
            ("0 0 13 * FRI", "2026-01-01T00:00:00", "2026-01-02T00:00:00"),
            ("@hourly", "2026-01-01T00:00:01", "2026-01-01T01:00:00"),
        ] {
            let schedule: Schedule = schedule.parse().unwrap();
            assert_eq!(schedule.after(&at(after)), Some(at(expected)), "{schedule}");
            assert_eq!(schedule.until(&at(expected)), Some(at(expected)), "{schedule}");
        }
    }

    #[test]
    fn what_is_no_schedule_is_refused_with_what_to_write() {
        for (text, expected) in [
            (
                "61 * * * *",
                "\"61 * * * *\" is not a schedule: its minute is \"61\": write 0 to 59, *, lists (1,2), \
                 ranges (1-5) or steps (*/5)",
            ),
            (
                "0 0 * * * SOON",
                "\"0 0 * * * SOON\" is not a schedule: its day of week is \"SOON\": write 0 to 7, or SUN to SAT, \
                 *, lists (1,2), ranges (1-5) or steps (*/5)",
            ),
            (
                "5m",
                "\"5m\" is not a schedule: it has 1 field: write minute, hour, day of month, month and day of week, \
                 such as */5 * * * *",
            ),
            (
                "0 0 0 1 1 * 2026",
                "\"0 0 0 1 1 * 2026\" is not a schedule: it has 7 fields: write minute, hour, day of month, month \
                 and day of week, such as */5 * * * *",
            ),
            (
                "@every 5m",
                "\"@every 5m\" is not a schedule: write one of @yearly, @annually, @monthly, @weekly, @daily, \
                 @hourly, or fields such as */5 * * * *",
            ),
            ("0 0 31 2 *", "\"0 0 31 2 *\" never comes: no month of it has such a day"),
        ] {
            assert_eq!(text.parse::<Schedule>().unwrap_err(), expected);
        }
    }
}
