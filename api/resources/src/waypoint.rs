//! Which waypoint the clients of a service must use, and which workloads are instances of a waypoint.

use std::collections::BTreeMap;

use leno_types::ServiceName;

use crate::metadata::{
    USE_WAYPOINT_LABEL, USE_WAYPOINT_NAMESPACE_LABEL, WAYPOINT_FROM_LABEL, WAYPOINT_LABEL,
};
use crate::node_mode::setting;

type Map = BTreeMap<String, String>;

/// The waypoint that the labels of a service, a namespace or a workload select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaypointUse {
    /// No waypoint (`none`).
    Direct,
    /// The waypoint of this name.
    Through(ServiceName),
    /// An invalid value: nothing is served until it is corrected.
    Invalid,
}

/// The waypoint of which a workload is an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaypointInstance {
    /// The waypoint.
    pub waypoint: ServiceName,
    /// Whether services of other namespaces may use it.
    pub from_all: bool,
}

/// The waypoint that labels or annotations in `namespace` select; `None` if they select nothing.
#[must_use]
pub fn waypoint_use(
    labels: Option<&Map>,
    annotations: Option<&Map>,
    namespace: &str,
) -> Option<WaypointUse> {
    let name = setting(labels, annotations, USE_WAYPOINT_LABEL)?;
    if name == "none" {
        return Some(WaypointUse::Direct);
    }
    let of = setting(labels, annotations, USE_WAYPOINT_NAMESPACE_LABEL).unwrap_or(namespace);
    let named = ServiceName::new(of, name);
    Some(named.map_or(WaypointUse::Invalid, WaypointUse::Through))
}

/// The waypoint of which a workload in `namespace` is an instance, by its labels.
#[must_use]
pub fn waypoint_instance(labels: &Map, namespace: &str) -> Option<WaypointInstance> {
    let waypoint = ServiceName::new(namespace, labels.get(WAYPOINT_LABEL)?).ok()?;
    let from = labels.get(WAYPOINT_FROM_LABEL).map(String::as_str);
    Some(WaypointInstance { waypoint, from_all: from == Some("all") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Map {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_waypoint_is_of_the_own_namespace_unless_another_one_is_named() {
        let of = |pairs: &[_]| waypoint_use(Some(&map(pairs)), None, "shop");
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(USE_WAYPOINT_NAMESPACE_LABEL, "far")]), None);
        assert_eq!(of(&[(USE_WAYPOINT_LABEL, "none")]), Some(WaypointUse::Direct));
        let through = |name: &str| Some(WaypointUse::Through(name.parse().unwrap()));
        assert_eq!(of(&[(USE_WAYPOINT_LABEL, "edge")]), through("shop/edge"));
        let far = [(USE_WAYPOINT_LABEL, "edge"), (USE_WAYPOINT_NAMESPACE_LABEL, "far")];
        assert_eq!(of(&far), through("far/edge"));
    }

    #[test]
    fn a_name_that_cannot_be_read_opens_nothing() {
        let of = |value| waypoint_use(Some(&map(&[(USE_WAYPOINT_LABEL, value)])), None, "shop");
        for value in ["", "a/b", "A b"] {
            assert_eq!(of(value), Some(WaypointUse::Invalid), "{value:?}");
        }
    }

    #[test]
    fn an_instance_is_of_a_waypoint_of_its_own_namespace() {
        let from = |value| {
            let labels = map(&[(WAYPOINT_LABEL, "edge"), (WAYPOINT_FROM_LABEL, value)]);
            waypoint_instance(&labels, "shop").unwrap()
        };
        assert_eq!(from("same").waypoint, "shop/edge".parse().unwrap());
        assert!(!from("same").from_all && !from("any").from_all && from("all").from_all);
        assert_eq!(waypoint_instance(&map(&[]), "shop"), None);
    }
}
