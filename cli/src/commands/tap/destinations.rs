//! The servers that a mesh knows. They are used to refuse a misspelt name instead of waiting for it.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use leno_types::nearest;

use super::MAX_NAMED;
use super::parties::split;

/// The names of workloads, instances and services, each as `namespace/name`.
#[derive(Debug, Default)]
pub(super) struct Destinations(BTreeSet<String>);

impl Destinations {
    pub(super) fn new(all: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(all.into_iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect())
    }

    /// Checks that there is a server with this name; if a namespace is given, in that namespace.
    ///
    /// # Errors
    /// There is no such server. The message contains the most similar name, or the existing names.
    pub(super) fn check(&self, namespace: Option<&str>, wanted: &str) -> Result<()> {
        let (said, name) = split(wanted);
        let namespace = said.or(namespace);
        let is_meant = |one: &&String| {
            one.split_once('/').is_some_and(|(of, own)| {
                namespace.is_none_or(|namespace| namespace == of) && (own == name || name == "*")
            })
        };
        if self.0.iter().any(|one| is_meant(&one)) {
            return Ok(());
        }
        let full = namespace.map_or_else(|| name.to_owned(), |of| format!("{of}/{name}"));
        let names = self.0.iter().filter_map(|one| match namespace {
            Some(_) => Some(one.as_str()),
            None => Some(one.split_once('/')?.1),
        });
        if let Some(meant) = nearest(&full, names.collect::<BTreeSet<_>>()) {
            bail!("there is no workload and no service {full}: did you mean {meant}?");
        }
        let more = match self.0.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let known: Vec<&str> = self.0.iter().take(MAX_NAMED).map(String::as_str).collect();
        bail!("there is no workload and no service {full}: use one of {}{more}", known.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_there_is_not_is_refused_with_the_nearest_name() {
        let all = [("shop", "web"), ("shop", "web-0"), ("shop", "catalog"), ("bank", "vault")];
        let all = Destinations::new(all.map(|(of, name)| (of.to_owned(), name.to_owned())));
        let check = |namespace, wanted| match all.check(namespace, wanted) {
            Ok(()) => "ok".to_owned(),
            Err(error) => error.to_string(),
        };
        for known in ["web", "web-0", "svc/catalog", "bank/vault", "shop/*"] {
            assert_eq!(check(None, known), "ok");
        }
        assert_eq!(
            check(Some("shop"), "catalgo"),
            "there is no workload and no service shop/catalgo: did you mean shop/catalog?"
        );
        assert!(check(None, "valut").ends_with(" valut: did you mean vault?"));
        let none = check(Some("shop"), "vault");
        assert!(
            none.ends_with(": use one of bank/vault, shop/catalog, shop/web, shop/web-0"),
            "{none}"
        );
    }
}
