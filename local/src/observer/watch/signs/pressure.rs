//! Finds instances that are throttled by their own CPU limit.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use leno_dashboard::api::{Sign, SignKind};

use super::super::ObservedInstance;

/// An instance is reported if it was throttled for at least this share of the time.
const MIN_SHARE: f64 = 0.3;

/// How long the application of each instance was throttled, by namespace and instance.
#[derive(Default)]
pub(super) struct Throttled(HashMap<(String, String), Duration>);

impl Throttled {
    pub(super) fn read(instances: &[ObservedInstance]) -> Self {
        let waited = |one: &ObservedInstance| {
            let groups = [&one.surroundings.cgroup].into_iter().chain(&one.surroundings.limits);
            let waited = groups.filter_map(|group| waited(group)).max()?;
            Some(((one.namespace.clone(), one.name.clone()), waited))
        };
        Self(instances.iter().filter_map(waited).collect())
    }

    pub(super) fn signs(
        &self,
        before: &Self,
        instances: &[ObservedInstance],
        span: Duration,
    ) -> Vec<Sign> {
        let sign_of = |one: &ObservedInstance| {
            let key = (one.namespace.clone(), one.name.clone());
            let waited = self.0.get(&key)?.checked_sub(*before.0.get(&key)?)?;
            let share = waited.as_secs_f64() / span.as_secs_f64();
            (share >= MIN_SHARE).then(|| {
                let percent = (share * 100.0).min(100.0);
                let line = format!(
                    "{} was throttled by its CPU limit for {percent:.0} % of the last {} s",
                    one.name,
                    span.as_secs()
                );
                let of = (&*one.namespace, &*one.workload);
                Sign::seen(SignKind::Throttled, of, one.name.clone(), line)
            })
        };
        instances.iter().filter_map(sign_of).collect()
    }
}

/// How long the processes of a group were throttled; `None` if it has no limit or does not exist.
fn waited(group: &Path) -> Option<Duration> {
    let text = std::fs::read_to_string(group.join("cpu.stat")).ok()?;
    parse(&text)
}

/// Parses the throttled time, which version 2 counts in microseconds and version 1 in nanoseconds.
fn parse(text: &str) -> Option<Duration> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        let value = value.trim().parse().ok()?;
        match name {
            "throttled_usec" => Some(Duration::from_micros(value)),
            "throttled_time" => Some(Duration::from_nanos(value)),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::instance;
    use super::*;

    #[test]
    fn an_instance_that_waits_for_its_limit_is_named() {
        assert_eq!(parse("usage_usec 5\nthrottled_usec 1500\n"), Some(Duration::from_micros(1500)));
        assert_eq!(parse("nr_periods 2\nthrottled_time 1500\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(parse("usage_usec 5\n"), None);
        let at = |seconds| {
            let waited = Duration::from_secs(seconds);
            Throttled([(("shop".to_owned(), "web-0".to_owned()), waited)].into())
        };
        let signs = |now: u64| at(now).signs(&at(100), &[instance(0)], Duration::from_secs(30));
        assert_eq!(signs(108), []);
        assert_eq!(
            signs(124)[0].line,
            "web-0 was throttled by its CPU limit for 80 % of the last 30 s"
        );
        assert_eq!(signs(50), [], "another process");
    }
}
