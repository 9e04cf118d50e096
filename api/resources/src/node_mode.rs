//! Decides whether and how a node proxy serves a pod. Labels and annotations of the pod and of its namespace say
//! this.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::metadata::{
    INJECT_ANNOTATION, MODE_ANNOTATION, PROMOTE_AFTER_ANNOTATION, SHARE_ANNOTATION,
};

/// The shortest and the longest time that [`PROMOTE_AFTER_ANNOTATION`] may have. Processes report how busy a workload
/// is about once a second, not more often.
const PROMOTE_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_hours(24)];

/// The annotation of a mirror pod: one that the kubelet has read from a file and not from the API server.
const MIRROR: &str = "kubernetes.io/config.mirror";

type Map = BTreeMap<String, String>;

/// The settings of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodMode {
    node: Option<bool>,
    meshed: Option<bool>,
}

/// The settings of a namespace, for pods that have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceMode {
    node: bool,
    meshed: bool,
}

/// The value of the label with this name or, if there is no such label, of the annotation.
#[must_use]
pub fn setting<'m>(
    labels: Option<&'m Map>,
    annotations: Option<&'m Map>,
    key: &str,
) -> Option<&'m str> {
    let of = |map: Option<&'m Map>| map.and_then(|map| map.get(key));
    of(labels).or_else(|| of(annotations)).map(String::as_str)
}

/// Which pods share a process, if the pod or its namespace sets it.
#[must_use]
pub fn share<'m>(labels: Option<&'m Map>, annotations: Option<&'m Map>) -> Option<&'m str> {
    setting(labels, annotations, SHARE_ANNOTATION)
}

/// How long a workload must be busy before it gets a process of its own, as written, if the workload or its namespace
/// sets it.
#[must_use]
pub fn promotion<'m>(labels: Option<&'m Map>, annotations: Option<&'m Map>) -> Option<&'m str> {
    setting(labels, annotations, PROMOTE_AFTER_ANNOTATION)
}

/// Parses the value of `leno.dev/promote-after`: a time, or `None` for `off`.
///
/// # Errors
/// The value is neither, or the time is out of bounds. The message says what to write.
pub fn promote_after(text: &str) -> Result<Option<Duration>, String> {
    if text == "off" {
        return Ok(None);
    }
    let [least, most] = PROMOTE_AFTER;
    let time: Option<crate::Duration> = text.parse().ok();
    match time {
        Some(crate::Duration(time)) if (least..=most).contains(&time) => Ok(Some(time)),
        _ => Err(format!("{text:?} is not a duration from 1s to 24h: use for example 30s, or off")),
    }
}

impl PodMode {
    /// Reads the labels and annotations of a pod.
    #[must_use]
    pub fn new(labels: Option<&Map>, annotations: Option<&Map>) -> Self {
        // The kubelet has a mirror pod from a file, and knows it by another uid than the API server.
        let mirrored = annotations.is_some_and(|annotations| annotations.contains_key(MIRROR));
        let declines =
            mirrored || setting(labels, annotations, INJECT_ANNOTATION) == Some("disabled");
        Self {
            node: setting(labels, annotations, MODE_ANNOTATION).map(|mode| mode == "node"),
            // The API server selects the pods for injection only by their labels.
            meshed: if declines { Some(false) } else { is_enabled(labels).then_some(true) },
        }
    }

    /// Whether the pod is in the mesh and in node mode. A misspelt value does not select node mode.
    #[must_use]
    pub fn is_node(self, namespace: NamespaceMode) -> bool {
        self.meshed.unwrap_or(namespace.meshed) && self.node.unwrap_or(namespace.node)
    }
}

impl PodMode {
    /// Whether the namespace does not put the pod into the mesh, and the pod itself says nothing of it. A pod that declines is
    /// not meant, because whether it may decline is decided when it is made.
    #[must_use]
    pub fn is_withdrawn(self, namespace: NamespaceMode) -> bool {
        self.meshed.is_none() && !namespace.meshed
    }
}

impl NamespaceMode {
    /// Reads the labels and annotations of a namespace.
    #[must_use]
    pub fn new(labels: Option<&Map>, annotations: Option<&Map>) -> Self {
        Self {
            node: setting(labels, annotations, MODE_ANNOTATION) == Some("node"),
            meshed: is_enabled(labels),
        }
    }
}

fn is_enabled(labels: Option<&Map>) -> bool {
    setting(labels, None, INJECT_ANNOTATION) == Some("enabled")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> Map {
        text.split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (format!("leno.dev/{key}"), value.to_owned()))
            .collect()
    }

    #[test]
    fn a_pod_is_in_node_mode_if_it_is_to_have_a_proxy_and_its_mode_is_node() {
        let rows = [
            // In this order: labels and annotations of the pod, labels and annotations of its namespace.
            ("", "", "inject=enabled mode=node", "", true),
            ("", "", "inject=enabled", "mode=node", true),
            ("", "", "mode=node", "", false),
            ("", "", "mode=node", "inject=enabled", false),
            ("inject=enabled mode=node", "", "", "", true),
            ("inject=enabled", "mode=node", "", "", true),
            ("", "inject=enabled mode=node", "", "", false),
            ("inject=enabled", "", "", "mode=node", true),
            ("inject=disabled", "", "inject=enabled mode=node", "", false),
            ("", "inject=disabled", "inject=enabled mode=node", "", false),
            ("mode=sidecar", "", "inject=enabled mode=node", "", false),
            ("mode=sidecar", "mode=node", "inject=enabled", "", false),
            ("mode=Node", "", "inject=enabled mode=node", "", false),
            ("", "", "inject=enabled mode=nod", "", false),
        ];
        for (labels, annotations, of_namespace, annotations_of_namespace, expected) in rows {
            let pod = PodMode::new(Some(&map(labels)), Some(&map(annotations)));
            let namespace =
                NamespaceMode::new(Some(&map(of_namespace)), Some(&map(annotations_of_namespace)));
            assert_eq!(
                pod.is_node(namespace),
                expected,
                "{labels:?} {annotations:?} {of_namespace:?} {annotations_of_namespace:?}"
            );
        }
        assert!(!PodMode::new(None, None).is_node(NamespaceMode::default()));
    }

    #[test]
    fn only_a_namespace_withdraws_pods_from_the_mesh() {
        for (labels, annotations, of_namespace, expected) in [
            ("", "", "", true),
            ("mode=node", "", "mode=node", true),
            ("", "", "inject=disabled", true),
            ("", "", "inject=enabled", false),
            ("", "", "inject=enabled mode=sidecar", false),
            ("inject=enabled", "", "", false),
            ("inject=disabled", "", "", false),
            ("", "inject=disabled", "", false),
        ] {
            let pod = PodMode::new(Some(&map(labels)), Some(&map(annotations)));
            let namespace = NamespaceMode::new(Some(&map(of_namespace)), None);
            assert_eq!(
                pod.is_withdrawn(namespace),
                expected,
                "{labels:?} {annotations:?} {of_namespace:?}"
            );
        }
    }

    #[test]
    fn the_time_of_a_promotion_is_bounded_and_off_is_none() {
        assert_eq!(promote_after("off"), Ok(None));
        assert_eq!(promote_after("1m30s"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(promote_after("24h"), Ok(Some(Duration::from_hours(24))));
        for wrong in ["", "0s", "999ms", "25h", "30", "never", "Off", "soon"] {
            let error = promote_after(wrong).unwrap_err();
            assert!(error.ends_with("use for example 30s, or off"), "{wrong:?}: {error}");
        }
    }
}
