//! Where the proxy of a pod runs: as the pod says, else as its namespace says.

use std::collections::BTreeMap;
use std::fmt;

use leno_resources::{MODE_ANNOTATION, SHARE_ANNOTATION};

use crate::inject::{InjectError, said, setting};
use crate::value::Value;

/// What `leno.dev/mode` may say.
const MODES: [&str; 2] = [SIDECAR, NODE];
/// What `leno.dev/share` may say.
const SHARES: [&str; 4] = ["workload", "service-account", "namespace", "node"];
const SIDECAR: &str = "sidecar";
const NODE: &str = "node";

/// What says where a proxy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The pod, which decides.
    Pod,
    /// Its namespace.
    Namespace,
}

/// What a namespace says of where the proxies of its pods run, as it is written there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModeOfNamespace {
    /// Its `leno.dev/mode`.
    pub mode: Option<String>,
    /// Its `leno.dev/share`.
    pub share: Option<String>,
}

impl ModeOfNamespace {
    /// What a namespace says by its settings, of which only those of this are read.
    #[must_use]
    pub fn new(settings: &BTreeMap<String, String>) -> Self {
        let of = |name: &str| settings.get(name).cloned();
        Self { mode: of(MODE_ANNOTATION), share: of(SHARE_ANNOTATION) }
    }

    /// Whether pods that set neither themselves get a proxy.
    ///
    /// # Errors
    /// Why they are refused.
    pub fn check(&self) -> Result<(), InjectError> {
        check(&Value::map(), self)
    }
}

/// Checks that a pod gets the proxy that it and its namespace ask for. A pod that asks for node mode gets no sidecar in
/// its place: who shares a process with it would not be what its author relies on.
pub(crate) fn check(pod: &Value, namespace: &ModeOfNamespace) -> Result<(), InjectError> {
    one_of(setting(pod, SHARE_ANNOTATION), namespace.share.as_deref(), SHARE_ANNOTATION, &SHARES)?;
    let own = setting(pod, MODE_ANNOTATION);
    match one_of(own, namespace.mode.as_deref(), MODE_ANNOTATION, &MODES)? {
        Some((NODE, origin)) => Err(InjectError::NodeMode(origin)),
        _ => Ok(()),
    }
}

/// The value that holds, and what says it. The pod's hides its namespace's, also a wrong one.
fn one_of<'v>(
    own: Option<&'v Value>,
    of_namespace: Option<&'v str>,
    name: &str,
    allowed: &[&str],
) -> Result<Option<(&'v str, Origin)>, InjectError> {
    let wrong = |text: &str, remedy: &str| InjectError::Annotation {
        name: name.to_owned(),
        reason: format!("{text} is none of {}{remedy}", allowed.join(", ")),
    };
    match (own, of_namespace) {
        (Some(own), _) => {
            let text = own.text().filter(|text| allowed.contains(text));
            let text = text.ok_or_else(|| wrong(&said(own), ""))?;
            Ok(Some((text, Origin::Pod)))
        }
        (None, Some(text)) if allowed.contains(&text) => Ok(Some((text, Origin::Namespace))),
        (None, Some(text)) => {
            let text = format!("{text:?}, which its namespace says,");
            Err(wrong(&text, ": correct it there, or set it on the pod"))
        }
        (None, None) => Ok(None),
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pod => "it says",
            Self::Namespace => "its namespace says",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(own: &str, mode: Option<&str>, share: Option<&str>) -> Result<(), String> {
        let pod: Value = serde_json::from_str(&format!(r#"{{"metadata":{{{own}}}}}"#)).unwrap();
        let of_namespace =
            ModeOfNamespace { mode: mode.map(str::to_owned), share: share.map(str::to_owned) };
        check(&pod, &of_namespace).map_err(|error| error.to_string())
    }

    #[test]
    fn a_pod_decides_its_mode_and_else_its_namespace_does() {
        let sidecar = r#""labels":{"leno.dev/mode":"sidecar"}"#;
        let node = r#""annotations":{"leno.dev/mode":"node"}"#;
        for (own, mode) in [("", None), ("", Some("sidecar")), (sidecar, Some("node"))] {
            assert_eq!(checked(own, mode, None), Ok(()), "{own} {mode:?}");
        }
        // The value of the namespace is not read.
        assert_eq!(checked(sidecar, Some("nod"), None), Ok(()));
        for (own, mode, who) in
            [("", Some("node"), "its namespace says"), (node, Some("sidecar"), "it says")]
        {
            let refused = checked(own, mode, None).unwrap_err();
            assert!(refused.starts_with(&format!("{who} leno.dev/mode: node")), "{refused}");
            assert!(refused.contains("leno.dev/mode: sidecar on the pod"), "{refused}");
        }
    }

    #[test]
    fn a_misspelt_value_is_refused_where_it_stands() {
        let rows = [
            (
                r#""labels":{"leno.dev/mode":"Node"}"#,
                None,
                None,
                "leno.dev/mode: \"Node\" is none of",
            ),
            (
                r#""labels":{"leno.dev/share":"pod"}"#,
                None,
                None,
                "leno.dev/share: \"pod\" is none of",
            ),
            (r#""annotations":{"leno.dev/mode":1}"#, None, None, "leno.dev/mode: 1 is none of"),
            (
                "",
                Some("nod"),
                None,
                "\"nod\", which its namespace says, is none of sidecar, node: correct",
            ),
            ("", None, Some("pods"), "\"pods\", which its namespace says, is none of workload,"),
        ];
        for (own, mode, share, part) in rows {
            let refused = checked(own, mode, share).unwrap_err();
            assert!(refused.contains(part), "{own} {mode:?} {share:?}: {refused}");
        }
        let share = r#""labels":{"leno.dev/share":"namespace"}"#;
        assert_eq!(checked(share, None, Some("pods")), Ok(()), "the pod decides");
    }
}
