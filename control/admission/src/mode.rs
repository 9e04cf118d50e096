//! Determines whether a pod is in node mode, by its own settings or those of its namespace, and the other settings
//! of a namespace for proxies.

use std::collections::BTreeMap;

use leno_resources::{
    MODE_ANNOTATION, PROMOTE_AFTER_ANNOTATION, SHARE_ANNOTATION, SPIFFE_SOCKET_ANNOTATION,
    UDP_ANNOTATION, WORKLOAD_API_ANNOTATION, promote_after,
};

use crate::inject::{InjectError, said, setting};
use crate::value::JsonValue;
use crate::workload_api;

/// The values of `leno.dev/mode`.
const MODES: [&str; 2] = [SIDECAR, NODE];
/// The values of `leno.dev/share`.
const SHARES: [&str; 4] = ["workload", "service-account", "namespace", "node"];
/// The values of `leno.dev/udp`.
pub(crate) const DATAGRAMS: [&str; 3] = [NO_DATAGRAMS, "enabled", "all"];
pub(crate) const NO_DATAGRAMS: &str = "off";
/// The only value of `leno.dev/spiffe-endpoint-socket` in a cluster.
pub(crate) const NO_SOCKET: &str = "off";
const SIDECAR: &str = "sidecar";
const NODE: &str = "node";

/// The settings of a namespace for the proxies of its pods, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxiesOfNamespace {
    /// Its `leno.dev/mode`.
    pub mode: Option<String>,
    /// Its `leno.dev/share`.
    pub share: Option<String>,
    /// Its `leno.dev/workload-api`.
    pub workload_api: Option<String>,
    /// Its `leno.dev/promote-after`.
    pub promote_after: Option<String>,
    /// Its `leno.dev/udp`.
    pub udp: Option<String>,
    /// Its `leno.dev/spiffe-endpoint-socket`.
    pub spiffe_socket: Option<String>,
}

impl ProxiesOfNamespace {
    /// Picks the settings for proxies from all settings of a namespace.
    #[must_use]
    pub fn new(settings: &BTreeMap<String, String>) -> Self {
        let of = |name: &str| settings.get(name).cloned();
        Self {
            mode: of(MODE_ANNOTATION),
            share: of(SHARE_ANNOTATION),
            workload_api: of(WORKLOAD_API_ANNOTATION),
            promote_after: of(PROMOTE_AFTER_ANNOTATION),
            udp: of(UDP_ANNOTATION),
            spiffe_socket: of(SPIFFE_SOCKET_ANNOTATION),
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The reason for which pods without their own settings are rejected.
    pub fn check(&self) -> Result<(), InjectError> {
        is_node(&JsonValue::map(), self)?;
        self.declines_certificates()?;
        self.serves_workload_api().map(|_| ())
    }

    /// Whether the proxies of its pods serve the Workload API by default.
    pub(crate) fn serves_workload_api(&self) -> Result<bool, InjectError> {
        let of_namespace = self.workload_api.as_deref();
        let said = one_of(None, of_namespace, WORKLOAD_API_ANNOTATION, &workload_api::VALUES)?;
        Ok(said == Some(workload_api::ENABLED))
    }

    /// Whether the control plane issues the certificates of the namespace's pods that set nothing else, although
    /// in the rest of the mesh a Workload API issues them.
    pub(crate) fn declines_certificates(&self) -> Result<bool, InjectError> {
        let of_namespace = self.spiffe_socket.as_deref();
        Ok(one_of(None, of_namespace, SPIFFE_SOCKET_ANNOTATION, &[NO_SOCKET])?.is_some())
    }
}

/// Whether a pod is in node mode.
///
/// # Errors
/// If the pod or its namespace has an invalid value. The pod is then not given a sidecar, because its author
/// relies on a certain way of sharing a process.
pub(crate) fn is_node(
    pod: &JsonValue,
    namespace: &ProxiesOfNamespace,
) -> Result<bool, InjectError> {
    one_of(setting(pod, SHARE_ANNOTATION), namespace.share.as_deref(), SHARE_ANNOTATION, &SHARES)?;
    one_of(setting(pod, UDP_ANNOTATION), namespace.udp.as_deref(), UDP_ANNOTATION, &DATAGRAMS)?;
    check_promotion(setting(pod, PROMOTE_AFTER_ANNOTATION), namespace.promote_after.as_deref())?;
    let own = setting(pod, MODE_ANNOTATION);
    let mode = one_of(own, namespace.mode.as_deref(), MODE_ANNOTATION, &MODES)?;
    Ok(mode == Some(NODE))
}

/// Checks the time after which a busy pod gets its own proxy process.
fn check_promotion(own: Option<&JsonValue>, of_namespace: Option<&str>) -> Result<(), InjectError> {
    let wrong =
        |reason| InjectError::Annotation { name: PROMOTE_AFTER_ANNOTATION.to_owned(), reason };
    match (own, of_namespace) {
        (Some(own), _) => {
            let text = own.text().map_or_else(|| said(own), str::to_owned);
            promote_after(&text).map_err(wrong)?;
        }
        (None, Some(text)) => {
            let remedy = "its namespace sets it: correct it there, or set it on the pod";
            promote_after(text).map_err(|reason| wrong(format!("{reason}; {remedy}")))?;
        }
        (None, None) => {}
    }
    Ok(())
}

/// The value that applies. The pod's own value takes precedence over that of its namespace, even if it is invalid.
fn one_of<'v>(
    own: Option<&'v JsonValue>,
    of_namespace: Option<&'v str>,
    name: &str,
    allowed: &[&str],
) -> Result<Option<&'v str>, InjectError> {
    let wrong = |text: &str, remedy: &str| InjectError::Annotation {
        name: name.to_owned(),
        reason: format!("{text} is not one of {}{remedy}", allowed.join(", ")),
    };
    match (own, of_namespace) {
        (Some(own), _) => {
            let text = own.text().filter(|text| allowed.contains(text));
            text.ok_or_else(|| wrong(&said(own), "")).map(Some)
        }
        (None, Some(text)) if allowed.contains(&text) => Ok(Some(text)),
        (None, Some(text)) => {
            let text = format!("{text:?}, which its namespace sets,");
            Err(wrong(&text, ": correct it there, or set it on the pod"))
        }
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(own: &str, mode: Option<&str>, share: Option<&str>) -> Result<bool, String> {
        let pod: JsonValue = serde_json::from_str(&format!(r#"{{"metadata":{{{own}}}}}"#)).unwrap();
        let (mode, share) = (mode.map(str::to_owned), share.map(str::to_owned));
        let of_namespace = ProxiesOfNamespace { mode, share, ..ProxiesOfNamespace::default() };
        is_node(&pod, &of_namespace).map_err(|error| error.to_string())
    }

    #[test]
    fn a_pod_decides_its_mode_and_else_its_namespace_does() {
        let sidecar = r#""labels":{"leno.dev/mode":"sidecar"}"#;
        let node = r#""annotations":{"leno.dev/mode":"node"}"#;
        for (own, mode, expected) in [
            ("", None, false),
            ("", Some("sidecar"), false),
            ("", Some("node"), true),
            (sidecar, Some("node"), false),
            (node, None, true),
            (node, Some("sidecar"), true),
            // The pod's own value is used, so the invalid value of the namespace does not matter.
            (sidecar, Some("nod"), false),
        ] {
            assert_eq!(checked(own, mode, None), Ok(expected), "{own} {mode:?}");
        }
    }

    #[test]
    fn a_misspelt_value_is_refused_where_it_stands() {
        let rows = [
            (
                r#""labels":{"leno.dev/mode":"Node"}"#,
                None,
                None,
                "leno.dev/mode: \"Node\" is not one of",
            ),
            (
                r#""labels":{"leno.dev/share":"pod"}"#,
                None,
                None,
                "leno.dev/share: \"pod\" is not one of",
            ),
            (r#""annotations":{"leno.dev/mode":1}"#, None, None, "leno.dev/mode: 1 is not one of"),
            (
                "",
                Some("nod"),
                None,
                "\"nod\", which its namespace sets, is not one of sidecar, node: correct",
            ),
            ("", None, Some("pods"), "\"pods\", which its namespace sets, is not one of workload,"),
        ];
        for (own, mode, share, part) in rows {
            let refused = checked(own, mode, share).unwrap_err();
            assert!(refused.contains(part), "{own} {mode:?} {share:?}: {refused}");
        }
        let promotion = |own: &str, of_namespace: Option<&str>| {
            let pod: JsonValue =
                serde_json::from_str(&format!(r#"{{"metadata":{{{own}}}}}"#)).unwrap();
            let promote_after = of_namespace.map(str::to_owned);
            let of_namespace =
                ProxiesOfNamespace { promote_after, ..ProxiesOfNamespace::default() };
            is_node(&pod, &of_namespace).map_err(|error| error.to_string())
        };
        let own = |value: &str| format!(r#""annotations":{{"leno.dev/promote-after":{value}}}"#);
        for (own, of_namespace, part) in [
            (own(r#""soon""#), None, "leno.dev/promote-after: \"soon\" is not a duration"),
            (
                own("30"),
                Some("30s"),
                "\"30\" is not a duration from 1s to 24h: use for example 30s, or off",
            ),
            (String::new(), Some("0s"), "or off; its namespace sets it: correct it there"),
        ] {
            let refused = promotion(&own, of_namespace).unwrap_err();
            assert!(refused.contains(part), "{own} {of_namespace:?}: {refused}");
        }
        assert_eq!(promotion(&own(r#""off""#), Some("soon")), Ok(false), "the pod decides");
        let share = r#""labels":{"leno.dev/share":"namespace"}"#;
        assert_eq!(checked(share, None, Some("pods")), Ok(false), "the pod decides");
        let misspelt = Some("true".to_owned());
        let of_namespace = ProxiesOfNamespace { workload_api: misspelt, ..Default::default() };
        let refused = of_namespace.check().unwrap_err().to_string();
        let part =
            "leno.dev/workload-api: \"true\", which its namespace sets, is not one of enabled,";
        assert!(refused.contains(part), "{refused}");
        let of_namespace = ProxiesOfNamespace { udp: Some("on".to_owned()), ..Default::default() };
        let refused = of_namespace.check().unwrap_err().to_string();
        let part =
            "leno.dev/udp: \"on\", which its namespace sets, is not one of off, enabled, all";
        assert!(refused.contains(part), "{refused}");
    }
}
