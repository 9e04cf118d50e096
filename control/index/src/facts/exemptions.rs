//! Determines which pods may have a less strict setting than their namespace.

use std::collections::BTreeMap;

use leno_resources::{ExemptSetting, MAX_EXEMPTIONS, ObjectKey, PodExemption};

/// The exemptions of each namespace, by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Exemptions(BTreeMap<String, BTreeMap<ObjectKey, PodExemption>>);

impl Exemptions {
    pub(super) fn put(&mut self, key: &ObjectKey, exemption: &PodExemption) {
        let of_namespace = self.0.entry(key.namespace.clone()).or_default();
        of_namespace.insert(key.clone(), exemption.clone());
    }

    /// Removes an exemption. Returns whether it existed.
    pub(super) fn remove(&mut self, key: &ObjectKey) -> bool {
        let Some(of_namespace) = self.0.get_mut(&key.namespace) else { return false };
        let was_there = of_namespace.remove(key).is_some();
        if of_namespace.is_empty() {
            self.0.remove(&key.namespace);
        }
        was_there
    }

    /// Whether a pod of a namespace, with these labels, may choose this setting itself. Only the first
    /// [`MAX_EXEMPTIONS`] exemptions of a namespace count.
    pub(super) fn exempt(
        &self,
        namespace: &str,
        setting: ExemptSetting,
        labels: &BTreeMap<String, String>,
    ) -> bool {
        let label = |key: &str| labels.get(key).map(String::as_str);
        let all = self.0.get(namespace).into_iter().flat_map(BTreeMap::values);
        all.take(MAX_EXEMPTIONS).any(|one| one.exempts(setting, label))
    }
}
