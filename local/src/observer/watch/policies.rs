//! Reads the policies of a mesh from the documents that its control plane reads.

use std::time::SystemTime;

use leno_dashboard::policies::{Labels, MatchedPolicies, PolicyDocument, SelectableObjects};
use leno_resources::Object;
use serde::Serialize;
use serde_json::Value;

use crate::layout::Layout;

/// Reads the policies, and reads them again whenever their file has changed.
#[derive(Default)]
pub(super) struct PolicyReader {
    /// The modification time of the file that was last read; `Some(None)` if there was no file.
    written: Option<Option<SystemTime>>,
}

impl PolicyReader {
    /// The policies, or why they are not known; `None` if the file was not written since the last call.
    pub(super) fn look(&mut self, layout: &Layout) -> Option<Result<MatchedPolicies, String>> {
        let path = layout.state().join("state.yaml");
        // The file is only written once a workload has a proxy.
        let written = std::fs::metadata(&path).and_then(|file| file.modified()).ok();
        if self.written.replace(written) == Some(written) {
            return None;
        }
        if written.is_none() {
            return Some(Err(
                "no workload of the mesh has a proxy that applies policies".to_owned()
            ));
        }
        let documents = leno_resources::load(&[path]).map_err(|problems| {
            let problem = problems.first().map(ToString::to_string).unwrap_or_default();
            format!("cannot read the state of the mesh: {problem}")
        });
        Some(documents.map(|documents| {
            let objects: Vec<Object> =
                documents.objects.into_iter().map(|located| located.value).collect();
            policies(&objects)
        }))
    }
}

fn policies(objects: &[Object]) -> MatchedPolicies {
    let none = Labels::new();
    let mut of = SelectableObjects::default();
    for object in objects {
        match object {
            Object::Workload(workload) => {
                let own = &workload.metadata;
                of.add((own.namespace.clone(), own.name.clone()), &own.labels);
            }
            Object::Service(service) => {
                let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                let key = object.key();
                let name = (key.namespace, key.name);
                of.services.insert(name, selector.unwrap_or(&none));
            }
            _ => {}
        }
    }
    let document = |object: &Object| {
        let spec = match object {
            Object::AuthorizationPolicy(policy) => spec(&policy.spec),
            Object::RateLimitPolicy(policy) => spec(&policy.spec),
            Object::TrafficPolicy(policy) => spec(&policy.spec),
            Object::BackendTlsPolicy(policy) => spec(policy)["spec"].take(),
            _ => return None,
        };
        let key = object.key();
        Some(PolicyDocument::new(key.kind.as_str(), (&key.namespace, &key.name), &spec))
    };
    let documents: Vec<PolicyDocument> = objects.iter().filter_map(document).collect();
    MatchedPolicies::of(documents.iter(), &of)
}

/// A part of a document as JSON; these types have text keys only.
fn spec(of: &impl Serialize) -> Value {
    serde_json::to_value(of).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leno_dashboard::inventory::Policy;

    use super::*;

    #[test]
    fn policies_select_workloads_of_the_documents() {
        let text = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {command: [run]}
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: own, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, action: Deny, rules: [{from: [{serviceAccounts: [x]}]}]}
---
apiVersion: leno.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: few, namespace: shop}
spec: {targetRefs: [{group: '', kind: Service, name: front}], limits: [{requests: 5}]}
";
        let read = leno_resources::parse("policies.yaml", text).unwrap();
        let objects: Vec<Object> = read.objects.into_iter().map(|one| one.value).collect();
        let found: BTreeMap<String, Policy> =
            policies(&objects).policies.into_iter().map(|one| (one.name.clone(), one)).collect();
        let web = vec![("shop".to_owned(), "web".to_owned())];
        let own = &found["own"];
        assert_eq!((&*own.kind, &*own.action, own.rules), ("AuthorizationPolicy", "Deny", 1));
        assert_eq!(
            (own.selection.selects[0].as_str(), &own.selection.workloads),
            ("workloads with app=web", &web)
        );
        let few = &found["few"];
        assert_eq!(
            (few.selection.selects[0].as_str(), &few.selection.workloads),
            ("Service front", &web)
        );
    }
}
