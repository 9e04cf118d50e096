//! Resolves the names that users give to clients and servers.

use std::collections::BTreeSet;

use anyhow::Result;

use super::proxies::TappedProxy;

/// Prefixes of names, as in kubectl. The rest of such a name is the name of a workload, an instance or a service.
const KINDS: [&str; 16] = [
    "deploy",
    "deployment",
    "sts",
    "statefulset",
    "ds",
    "daemonset",
    "rs",
    "replicaset",
    "job",
    "cj",
    "cronjob",
    "pod",
    "po",
    "workload",
    "svc",
    "service",
];

/// The workloads of a mesh with their instances.
#[derive(Debug, Default)]
pub(super) struct WorkloadInstances(pub(super) Vec<(String, TappedProxy)>);

impl WorkloadInstances {
    /// The only namespace that has a workload or an instance with this name.
    pub(super) fn namespace_of(&self, namespace: Option<&str>, name: &str) -> Option<String> {
        let all = self.instances(namespace, name).into_iter().map(|one| one.namespace);
        let all: BTreeSet<String> = all.collect();
        let mut all = all.into_iter();
        all.next().filter(|_| all.next().is_none())
    }

    /// The names of the workloads, each as `namespace/name`.
    pub(super) fn workloads(&self) -> BTreeSet<String> {
        self.0.iter().map(|(workload, one)| format!("{}/{workload}", one.namespace)).collect()
    }

    /// The instances of the workload with this name; if there is no such workload, the instance with this name.
    pub(super) fn instances(&self, namespace: Option<&str>, name: &str) -> BTreeSet<TappedProxy> {
        let here = |(_, one): &&(String, TappedProxy)| {
            namespace.is_none_or(|wanted| wanted == one.namespace)
        };
        let select = |is: &dyn Fn(&(String, TappedProxy)) -> bool| -> BTreeSet<TappedProxy> {
            let found = self.0.iter().filter(here).filter(|known| is(known));
            found.map(|(_, one)| one.clone()).collect()
        };
        // If `web-0` is a workload, it does not also mean the first instance of `web`.
        let of_workload = select(&|(workload, _)| workload == name);
        if of_workload.is_empty() { select(&|(_, one)| one.name == name) } else { of_workload }
    }

    /// The names under which proxies know a client or a server: `namespace/name` of its instances, or of a service
    /// or service account.
    pub(super) fn parties(&self, namespace: Option<&str>, wanted: &str) -> Result<Vec<String>> {
        let (said, name) = split(wanted);
        let namespace = said.or(namespace);
        let instances = self.instances(namespace, name);
        let namespaces: BTreeSet<String> = match (namespace, instances.is_empty()) {
            (Some(namespace), _) => [namespace.to_owned()].into(),
            (None, false) => instances.iter().map(|one| one.namespace.clone()).collect(),
            // A service may have a different name than its workloads.
            (None, true) => self.0.iter().map(|(_, one)| one.namespace.clone()).collect(),
        };
        let named = namespaces.into_iter().map(|namespace| format!("{namespace}/{name}"));
        let all: BTreeSet<String> =
            named.chain(instances.iter().map(ToString::to_string)).collect();
        Ok(all.into_iter().collect())
    }
}

/// Splits `web`, `deploy/web` or `shop/web` into namespace and name.
pub(super) fn split(text: &str) -> (Option<&str>, &str) {
    match text.split_once('/') {
        Some((kind, name)) if KINDS.contains(&kind) => (None, name),
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    }
}

/// A value, encoded for a query.
pub(super) fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let one = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> WorkloadInstances {
        let of = |namespace: &str, workload: &str, number: u32| {
            let name = format!("{workload}-{number}");
            (workload.to_owned(), TappedProxy { namespace: namespace.to_owned(), name })
        };
        WorkloadInstances(vec![
            of("shop", "web", 0),
            of("shop", "web", 1),
            of("shop", "cart", 0),
            of("bank", "web", 0),
            of("bank", "web-0", 0),
        ])
    }

    #[test]
    fn a_name_may_have_its_kind_or_its_namespace() {
        assert_eq!(split("web"), (None, "web"));
        assert_eq!(split("deploy/web"), (None, "web"));
        assert_eq!(split("shop/web"), (Some("shop"), "web"));
    }

    #[test]
    fn parties_are_the_instances_and_the_name_itself() {
        let parties =
            |namespace, wanted: &str| names().parties(namespace, wanted).unwrap().join(" ");
        assert_eq!(parties(Some("shop"), "svc/web"), "shop/web shop/web-0 shop/web-1");
        assert_eq!(parties(None, "cart"), "shop/cart shop/cart-0");
        assert_eq!(parties(Some("shop"), "bank/web"), "bank/web bank/web-0");
        assert_eq!(parties(Some("bank"), "web-0"), "bank/web-0 bank/web-0-0");
        assert_eq!(parties(None, "api"), "bank/api shop/api");
        assert_eq!(names().namespace_of(None, "web"), None);
        assert_eq!(names().namespace_of(Some("bank"), "web-0").as_deref(), Some("bank"));
    }

    #[test]
    fn values_are_encoded() {
        assert_eq!(encoded("/a b&c=ä"), "/a%20b%26c%3D%C3%A4");
    }
}
