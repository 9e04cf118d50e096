//! `PodExemption`: pods that may have less strict settings than their namespace requires.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metadata::Metadata;

/// The largest number of exemptions per namespace that take effect, in the order of their names. Each is compared with
/// every pod that is created.
pub const MAX_EXEMPTIONS: usize = 64;

/// Permits pods of its namespace to set less than the namespace or the mesh requires, `leno.dev/v1alpha1`. RBAC
/// decides who may write it: Kubernetes' own roles `edit` and `admin` do not include it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodExemption {
    /// Its name, labels and annotations.
    pub metadata: Metadata,
    /// The pods and the settings.
    pub spec: PodExemptionSpec,
}

/// The pods that are exempt, and the settings that they may loosen. The first 64 exemptions of a namespace take
/// effect, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodExemptionSpec {
    /// The pods of the namespace that are exempt.
    pub selector: PodSelector,
    /// The settings that these pods may loosen by their own annotation or label `leno.dev/<setting>`. `inject`: have
    /// no proxy. `capture`: use another capture than the namespace. `mtls`: accept plaintext. `egress`: connect to
    /// destinations outside of the mesh. At least one, and each once. `inject` and `capture` apply to pods that are
    /// created later, `mtls` and `egress` also to running pods.
    pub settings: Vec<ExemptSetting>,
}

/// Pods by their labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct PodSelector {
    /// The labels that a pod must have, with these values. `{}` selects all pods of the namespace.
    pub match_labels: BTreeMap<String, String>,
}

/// A setting of a pod, the annotation or label `leno.dev/<setting>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ExemptSetting {
    /// Whether the pod gets a proxy.
    Inject,
    /// How its connections are captured.
    Capture,
    /// Whether it accepts plaintext.
    Mtls,
    /// Whether it may connect to destinations outside of the mesh.
    Egress,
}

impl PodExemption {
    /// Whether a pod with these labels may use this setting for itself.
    #[must_use]
    pub fn exempts<'a>(
        &self,
        setting: ExemptSetting,
        label: impl Fn(&str) -> Option<&'a str>,
    ) -> bool {
        let mut wanted = self.spec.selector.match_labels.iter();
        self.spec.settings.contains(&setting)
            && wanted.all(|(key, value)| label(key) == Some(value.as_str()))
    }
}
