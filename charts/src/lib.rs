//! The Helm chart of Leno, rendered without Helm: the output of `leno install`.
//!
//! `charts/leno` is an ordinary chart, and the only description of an installation. It uses a small part of
//! Helm's template language, so that [`render`] can make the same documents from it; `tests/helm.rs` compares the
//! two.
//!
//! ```text
//! values.yaml <- files <- NAME=VALUE   =  Values
//! templates/*.yaml + Values            -> documents, as text
//! ```
//!
//! This crate does not connect to a cluster.

#[cfg(test)]
mod schema;
mod template;
mod values;

use serde_json::json;

pub use template::TemplateError;
pub use values::{
    Agent, Controller, Digests, Egress, FailurePolicy, Identity, Image, Mtls, Proxy, PullPolicy,
    PullSecret, Shape, TlsProfile, Values, Webhook, WorkloadApi, WorkloadApiVolume,
};

/// The default namespace of Leno.
pub const NAMESPACE: &str = "leno-system";

/// The chart's default values, with their documentation.
pub const VALUES: &str = include_str!("../leno/values.yaml");
/// The ConfigMap in which an installation keeps its values ([`INSTALLED_VALUES`]), for the next upgrade.
pub const INSTALLED: &str = "leno-installed";
/// The pod of the history, and its service account, in the control plane's namespace.
pub const OBSERVER_POD: &str = "leno-observer-0";
/// The service account of [`OBSERVER_POD`].
pub const OBSERVER_ACCOUNT: &str = "observer";
/// The key of the values, as JSON, in [`INSTALLED`].
pub const INSTALLED_VALUES: &str = "values.json";

/// The chart's templates, in the order in which they are printed.
const TEMPLATES: [(&str, &str); 8] = [
    ("definitions.yaml", include_str!("../leno/templates/definitions.yaml")),
    ("installed.yaml", include_str!("../leno/templates/installed.yaml")),
    ("controller-rights.yaml", include_str!("../leno/templates/controller-rights.yaml")),
    ("controller.yaml", include_str!("../leno/templates/controller.yaml")),
    ("webhook.yaml", include_str!("../leno/templates/webhook.yaml")),
    ("agent.yaml", include_str!("../leno/templates/agent.yaml")),
    ("node.yaml", include_str!("../leno/templates/node.yaml")),
    ("observer.yaml", include_str!("../leno/templates/observer.yaml")),
];

/// The template that only Helm reads: the hook by which `helm uninstall` is refused.
const HOOK: &str = include_str!("../leno/templates/uninstall.yaml");

/// Why the chart cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file, setting or value is invalid.
    #[error("{0}: {1}")]
    Values(String, String),
    /// The chart is broken.
    #[error("templates/{0}, {1}")]
    Template(&'static str, TemplateError),
}

/// The documents of an installation in `namespace`, the namespace itself first.
///
/// # Errors
/// A template uses an unsupported construct: the chart is broken.
pub fn render(values: &Values, namespace: &str) -> Result<String, Error> {
    let names = json!({
        "Values": values,
        "Release": {"Namespace": namespace},
        "Chart": {"AppVersion": env!("CARGO_PKG_VERSION")},
    });
    let mut out = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {namespace}\n  labels:\n    \
         app.kubernetes.io/part-of: leno\n    leno.dev/inject: disabled\n    \
         # The node agent enters other pods' namespaces; the control plane keeps to `restricted` by itself.\n    \
         pod-security.kubernetes.io/enforce: privileged\n"
    );
    for (name, template) in TEMPLATES {
        let rendered =
            template::render(template, &names).map_err(|error| Error::Template(name, error))?;
        if rendered.trim().is_empty() {
            continue;
        }
        if !rendered.trim_start().starts_with("---") {
            out.push_str("---\n");
        }
        out.push_str(rendered.trim_start());
    }
    Ok(out)
}

/// The hook by which `helm uninstall` of a release is refused, as Helm renders it.
///
/// # Errors
/// A template that is not understood: the chart is broken.
pub fn helm_hook(namespace: &str, release: &str) -> Result<String, Error> {
    let names = json!({"Release": {"Namespace": namespace, "Name": release}});
    template::render(HOOK, &names).map_err(|error| Error::Template("uninstall.yaml", error))
}
