//! The time zones of this machine.

use std::path::{Path, PathBuf};

use k8s_openapi::jiff::tz::TimeZone;

/// Where machines have the rules of time zones; `TZDIR` names another place.
const PLACE: &str = "/usr/share/zoneinfo";
/// The zone of the machine itself.
const OWN: &str = "/etc/localtime";

/// The zone of this name; without one, that of the machine.
///
/// # Errors
/// Why the machine does not have it, and what to do.
pub fn named(name: Option<&str>) -> Result<TimeZone, String> {
    match name {
        None => Ok(own()),
        // Every machine has it, also one without the rules of others.
        Some("UTC") => Ok(TimeZone::UTC),
        Some(name) => {
            let place = place();
            if !place.is_dir() {
                return Err(
                    "this machine has no time zones: install tzdata, or write UTC".to_owned()
                );
            }
            let wrong = || {
                format!("this machine has no time zone {name:?}: `ls {}` has them", place.display())
            };
            read(&place.join(name), name).ok_or_else(wrong)
        }
    }
}

/// The zone of `TZ`, else of the machine, else UTC, as the C library has it.
fn own() -> TimeZone {
    let variable = std::env::var("TZ").unwrap_or_default();
    let wanted = variable.strip_prefix(':').unwrap_or(&variable);
    let path = match wanted {
        "" => PathBuf::from(OWN),
        // An absolute path stands for itself.
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
