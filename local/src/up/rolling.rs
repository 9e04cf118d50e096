//! The order in which instances are restarted after an edit: one of a workload at a time, and only while all its other
//! instances take traffic, so that the workload is always available.

use std::collections::BTreeMap;

use leno_types::InstanceName;

/// An instance that should run, as far as restarts depend on it.
#[derive(Clone, Debug)]
pub(super) struct RollingInstance {
    pub(super) name: InstanceName,
    /// Its workload, in its namespace.
    pub(super) workload: String,
    /// Whether it takes traffic or has completed.
    pub(super) settled: bool,
    /// Whether it is ending.
    pub(super) ending: bool,
    /// Whether its settings have changed since it was started.
    pub(super) outdated: bool,
}

/// The instances to end now, so that they are restarted with new settings.
pub(super) fn next(members: &[RollingInstance]) -> Vec<InstanceName> {
    let mut workloads: BTreeMap<(&str, &str), Vec<&RollingInstance>> = BTreeMap::new();
    for member in members {
        workloads.entry((&member.name.namespace, &member.workload)).or_default().push(member);
    }
    let mut ended = Vec::new();
    for members in workloads.into_values() {
        let outdated = |member: &&&RollingInstance| member.outdated && !member.ending;
        // An instance that takes no traffic can be restarted at any time.
        let idle = members.iter().filter(outdated).filter(|member| !member.settled);
        ended.extend(idle.map(|member| member.name.clone()));
        if members.iter().all(|member| member.settled) {
            ended.extend(members.iter().find(outdated).map(|member| member.name.clone()));
        }
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The members that end, of one workload with these states: `r`eady, `w`aiting or `e`nding. Capitals mark
    /// outdated members.
    fn ended(states: &str) -> Vec<usize> {
        let member = |(index, state): (usize, char)| RollingInstance {
            name: InstanceName::new("shop", &format!("web-{index}")).unwrap(),
            workload: "web".into(),
            settled: state.eq_ignore_ascii_case(&'r'),
            ending: state.eq_ignore_ascii_case(&'e'),
            outdated: state.is_ascii_uppercase(),
        };
        let members: Vec<RollingInstance> = states.chars().enumerate().map(member).collect();
        let number = |name: InstanceName| name.name.trim_start_matches("web-").parse().unwrap();
        next(&members).into_iter().map(number).collect()
    }

    #[test]
    fn one_at_a_time_while_all_others_take_traffic() {
        assert_eq!(ended("RRR"), [0]);
        assert_eq!(ended("ERR"), [0; 0]);
        assert_eq!(ended("wRR"), [0; 0]);
        assert_eq!(ended("rRR"), [1]);
        assert_eq!(ended("rrr"), [0; 0]);
        assert_eq!(ended("R"), [0]);
    }

    #[test]
    fn what_takes_no_traffic_is_not_waited_for() {
        assert_eq!(ended("RWW"), [1, 2]);
        assert_eq!(ended("wW"), [1]);
    }

    #[test]
    fn workloads_do_not_wait_for_each_other() {
        let member = |workload: &str| RollingInstance {
            name: InstanceName::new("shop", &format!("{workload}-0")).unwrap(),
            workload: workload.into(),
            settled: true,
            ending: false,
            outdated: true,
        };
        assert_eq!(next(&[member("api"), member("web")]).len(), 2);
    }
}
