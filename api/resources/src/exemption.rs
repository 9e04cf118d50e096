//! `PodExemption`: pods that may have less strict settings than their namespace requires.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metadata::Metadata;

/// The largest number of exemptions per namespace that take effect, in the order of their names. Each is compared with
/// every pod that is created.
pub const MAX_EXEMPTIONS: usize = 64;

/// Lets pods of its namespace set less than the namespace says, `leno.dev/v1alpha1`. Who may write it is decided by
/// RBAC: Kubernetes' own roles `edit` and `admin` do not include it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodExemption {
    /// Its name, labels and annotations.
    pub metadata: Metadata,
    /// What it says.
    pub spec: PodExemptionSpec,
}

/// The parts of a [`PodExemption`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodExemptionSpec {
    /// Which pods of the namespace.
    pub selector: PodSelector,
    /// What they may set for themselves.
    pub settings: Vec<ExemptSetting>,
}

/// Pods by their labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct PodSelector {
    /// All of them; every pod of the namespace where empty.
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
    /// Whether it serves plaintext.
    Mtls,
    /// Whether it may call what the mesh does not know.
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
