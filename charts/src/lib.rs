//! The Helm chart of Leno, rendered without Helm: what `leno install` prints.
//!
//! `charts/leno` is an ordinary chart and the only place where an installation is described. It keeps to
//! a small part of Helm's template language, so that [`render`] can make the same documents of it;
//! `tests/helm.rs` holds both against each other.
//!
//! ```text
//! values.yaml <- files <- NAME=VALUE   =  Values
//! templates/*.yaml + Values            -> documents, as text
//! ```
//!
//! Nothing here talks to a cluster.

#[cfg(test)]
mod schema;
mod template;
mod values;

use serde_json::json;

pub use template::TemplateError;
pub use values::{
    Agent, Controller, Egress, FailurePolicy, Image, Mtls, Proxy, PullPolicy, Shape, Values,
    Webhook,
};

/// The namespace that Leno is installed in, if nobody says otherwise.
pub const NAMESPACE: &str = "leno-system";

/// The chart's values, with what each is for.
pub const VALUES: &str = include_str!("../leno/values.yaml");
/// The ConfigMap in which an installation keeps what it was told ([`INSTALLED_VALUES`]), for the next one.
pub const INSTALLED: &str = "leno-installed";
/// The key of the values, as JSON, in [`INSTALLED`].
pub const INSTALLED_VALUES: &str = "values.json";

/// The chart's templates, in the order in which they are printed.
const TEMPLATES: [(&str, &str); 6] = [
    ("definitions.yaml", include_str!("../leno/templates/definitions.yaml")),
    ("installed.yaml", include_str!("../leno/templates/installed.yaml")),
    ("controller-rights.yaml", include_str!("../leno/templates/controller-rights.yaml")),
    ("controller.yaml", include_str!("../leno/templates/controller.yaml")),
    ("webhook.yaml", include_str!("../leno/templates/webhook.yaml")),
    ("agent.yaml", include_str!("../leno/templates/agent.yaml")),
];

/// Why there are no documents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// What was asked for is not of the chart.
    #[error("{0}: {1}")]
    Values(String, String),
    /// The chart is broken.
    #[error("templates/{0}, {1}")]
    Template(&'static str, TemplateError),
}

/// The documents of an installation in `namespace`, the namespace itself first.
///
/// # Errors
/// A template that is not understood: the chart is broken.
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
        if !rendered.trim_start().starts_with("---") {
            out.push_str("---\n");
        }
        out.push_str(rendered.trim_start());
    }
    Ok(out)
}
