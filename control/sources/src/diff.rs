//! Computes the changes between two states.

use std::collections::BTreeMap;

use leno_index::ObjectChange;
use leno_resources::{Object, ObjectKey};

/// The changes that turn `old` into `new`: first deletions, then new and modified objects, each ordered by key.
/// Each state must have at most one object for a key.
#[must_use]
pub fn diff(old: &[Object], new: &[Object]) -> Vec<ObjectChange> {
    let (old, new) = (by_key(old), by_key(new));
    let gone = old.keys().filter(|key| !new.contains_key(key)).cloned().map(ObjectChange::Delete);
    let differs = |(key, object): &(&ObjectKey, &&Object)| old.get(key) != Some(object);
    let put = new.iter().filter(differs).map(|(_, object)| ObjectChange::Upsert((*object).clone()));
    gone.chain(put).collect()
}

fn by_key(objects: &[Object]) -> BTreeMap<ObjectKey, &Object> {
    objects.iter().map(|object| (object.key(), object)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(text: &str) -> Vec<Object> {
        let documents = leno_resources::parse("test.yaml", text).unwrap();
        documents.objects.into_iter().map(|located| located.value).collect()
    }

    fn namespaces(names: &[(&str, &str)]) -> Vec<Object> {
        let document = |(name, mode)| {
            format!(
                "{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, annotations: \
                 {{leno.dev/mtls: {mode}}}}}}}\n"
            )
        };
        let all: Vec<String> = names.iter().copied().map(document).collect();
        objects(&all.join("---\n"))
    }

    #[test]
    fn what_went_comes_before_what_is_new_and_equals_are_left_out() {
        let old = namespaces(&[("a", "strict"), ("b", "strict"), ("c", "strict")]);
        let new = namespaces(&[("d", "strict"), ("c", "permissive"), ("b", "strict")]);
        let changes = diff(&old, &new);
        assert_eq!(
            changes,
            [
                ObjectChange::Delete(old[0].key()),
                ObjectChange::Upsert(new[1].clone()),
                ObjectChange::Upsert(new[0].clone()),
            ]
        );
        assert_eq!(diff(&new, &new), []);
    }

    #[test]
    fn one_name_in_two_kinds_is_two_objects() {
        let account = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: a, namespace: b}}";
        let service = "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: b}, \
                       spec: {ports: [{port: 80}]}}";
        let (old, new) = (objects(account), objects(service));
        let expected = [ObjectChange::Delete(old[0].key()), ObjectChange::Upsert(new[0].clone())];
        assert_eq!(diff(&old, &new), expected);
    }
}
