//! Reads the time zones of this machine.

use std::path::{Path, PathBuf};

use k8s_openapi::jiff::tz::TimeZone;

/// The directory where machines have the rules of time zones; `TZDIR` overrides it.
const PLACE: &str = "/usr/share/zoneinfo";
/// The file with the time zone of the machine itself.
const OWN: &str = "/etc/localtime";

/// The time zone with this name; without a name, the machine's.
///
/// # Errors
/// Why the machine does not have the zone, and what to do.
pub fn named(name: Option<&str>) -> Result<TimeZone, String> {
    match name {
        None => Ok(own()),
        // This zone needs no file, so it works even on a machine without time zone rules.
        Some("UTC") => Ok(TimeZone::UTC),
        Some(name) => {
            let place = place();
            if !place.is_dir() {
                return Err(
                    "this machine has no time zones: install tzdata, or write UTC".to_owned()
                );
            }
            let wrong = || {
                format!(
                    "this machine has no time zone {name:?}: `ls {}` lists those that it has",
                    place.display()
                )
            };
            read(&place.join(name), name).ok_or_else(wrong)
        }
    }
}

/// The zone in `TZ`, else that of the machine, else UTC. The C library has the same order.
fn own() -> TimeZone {
    let variable = std::env::var("TZ").unwrap_or_default();
    let wanted = variable.strip_prefix(':').unwrap_or(&variable);
    let path = match wanted {
        "" => PathBuf::from(OWN),
        // `join` returns an absolute path unchanged.
        wanted => place().join(wanted),
    };
    let posix = || TimeZone::posix(wanted).ok();
    read(&path, wanted).or_else(posix).unwrap_or(TimeZone::UTC)
}

fn place() -> PathBuf {
    std::env::var_os("TZDIR").map_or_else(|| PathBuf::from(PLACE), PathBuf::from)
}

fn read(path: &Path, name: &str) -> Option<TimeZone> {
    let rules = std::fs::read(path).ok()?;
    TimeZone::tzif(name, &rules).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_that_the_machine_lacks_is_refused() {
        assert_eq!(named(Some("UTC")), Ok(TimeZone::UTC));
        let refused = named(Some("Europe/Berlim")).unwrap_err();
        assert!(refused.starts_with("this machine has no time zone"), "{refused}");
    }
}
