//! What a reader of a mesh may see: everything, or only some namespaces.
//!
//! Every answer is computed from what the reader may see (`view.rs`), so that no rule, sum or sentence reveals more.

use std::collections::BTreeMap;

use leno_observe::stat::{NamespacedName, RouteName};

use crate::api::{MeshState, SignKind};
use crate::history::{Mark, MarkKind};
use crate::series::SeriesKey;

/// The port of the page and the interface of a cluster's observer, on loopback in its pod.
pub const PORT: u16 = 15024;
/// The audience of tokens that are meant only for the observer of a cluster.
pub const AUDIENCE: &str = "leno-observer";
/// The name that stands for all workloads in namespaces that a reader may not see.
pub const HIDDEN: &str = "(other namespaces)";

/// The namespaces that a reader may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VisibleNamespaces {
    /// All of them.
    All,
    /// Only these. Of each, the reader may see only what was observed since the namespace was created, given in
    /// milliseconds since 1970, because an earlier namespace with the same name may have had another owner.
    Namespaces(BTreeMap<String, u64>),
}

impl VisibleNamespaces {
    /// Whether a namespace may be seen.
    #[must_use]
    pub fn has(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespaces(seen) => seen.contains_key(namespace),
        }
    }

    /// Whether nothing is hidden.
    #[must_use]
    pub fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }

    /// Restricts what the reader may see to these namespaces.
    #[must_use]
    pub fn within(&self, namespaces: &[&str]) -> Self {
        let since = |name: &&str| match self {
            Self::All => Some(((*name).to_owned(), 0)),
            Self::Namespaces(seen) => seen.get(*name).map(|since| ((*name).to_owned(), *since)),
        };
        Self::Namespaces(namespaces.iter().filter_map(since).collect())
    }

    /// Whether the reader may see what existed in a namespace at this time.
    pub(crate) fn has_at(&self, namespace: &str, at_ms: u64) -> bool {
        match self {
            Self::All => true,
            Self::Namespaces(seen) => {
                seen.get(namespace).is_some_and(|since_ms| *since_ms <= at_ms)
            }
        }
    }

    /// The time since which the reader may see a subject.
    pub(crate) fn since_ms(&self, subject: &SeriesKey) -> u64 {
        let Self::Namespaces(seen) = self else { return 0 };
        let since = |namespace: &str| seen.get(namespace).copied().unwrap_or(0);
        match subject {
            SeriesKey::Workload(name) => since(&name.0),
            SeriesKey::Edge { client, server, .. } => since(&client.0).max(since(&server.0)),
            SeriesKey::Route(RouteName { service, route, .. }) => {
                since(&service.0).max(namespace_in(route).map_or(0, since))
            }
        }
    }

    /// A subject as the reader may see it; `None` if all of it is hidden. The hidden end of an edge gets the name
    /// [`HIDDEN`].
    pub(crate) fn of(&self, subject: &SeriesKey) -> Option<SeriesKey> {
        let end = |name: &NamespacedName| match name.0.is_empty() || self.has(&name.0) {
            true => name.clone(),
            false => (String::new(), HIDDEN.to_owned()),
        };
        Some(match subject {
            SeriesKey::Workload(name) => {
                self.has(&name.0).then(|| SeriesKey::Workload(name.clone()))?
            }
            SeriesKey::Edge { client, server, encrypted } => {
                if !self.has(&client.0) && !self.has(&server.0) {
                    return None;
                }
                SeriesKey::Edge { client: end(client), server: end(server), encrypted: *encrypted }
            }
            SeriesKey::Route(RouteName { service, route, rule }) => {
                self.has(&service.0).then_some(())?;
                // The form is `HTTPRoute shop/cart`; the text is empty for requests that match no rule.
                let is_seen =
                    route.is_empty() || namespace_in(route).is_some_and(|of| self.has(of));
                let (route, rule) = match is_seen {
                    true => (route.clone(), rule.clone()),
                    false => (HIDDEN.to_owned(), String::new()),
                };
                SeriesKey::Route(RouteName { service: service.clone(), route, rule })
            }
        })
    }

    /// The state of the mesh as the reader may see it.
    pub(crate) fn state(&self, state: &MeshState) -> MeshState {
        let mut seen = state.clone();
        if matches!(self, Self::All) {
            return seen;
        }
        // The form is `shop/web-0` or `shop/web-0: reason`.
        let line = |line: &String| line.split_once('/').is_some_and(|(of, _)| self.has(of));
        seen.detached.retain(line);
        seen.silent.retain(line);
        seen.unready.retain(|one| self.has(&one.namespace));
        seen.deaf.retain(|one| self.has(&one.namespace));
        seen.restarted.retain(|one| self.has_at(&one.namespace, one.at_ms));
        seen.ended.retain(|one| self.has_at(&one.namespace, one.at_ms));
        seen.signs.retain(|one| {
            // For lost segments, the subject is the workload at the other end.
            let other = one.subject.split_once('/').filter(|_| one.kind == SignKind::Lossy);
            self.has_at(&one.namespace, one.at_ms)
                && other.is_none_or(|(namespace, _)| self.has_at(namespace, one.at_ms))
        });
        // The edit may concern documents of any namespace, so the reader does not see it.
        seen.refused_edit = None;
        seen
    }

    /// A change as the reader may see it; `None` if all of it is hidden.
    pub(crate) fn mark(&self, mark: &Mark) -> Option<Mark> {
        if matches!(self, Self::All) || mark.kind == MarkKind::ControlPlane {
            return Some(mark.clone());
        }
        let is_seen =
            |line: &&String| namespace_in(line).is_some_and(|of| self.has_at(of, mark.at_ms));
        let lines: Vec<String> = mark.lines.iter().filter(is_seen).cloned().collect();
        (!lines.is_empty()).then_some(Mark { at_ms: mark.at_ms, kind: mark.kind, lines })
    }
}

/// The namespace of the object at the beginning of a text, such as `Service shop/cart changed` or `shop/cart-0 was
/// started again`.
#[must_use]
pub fn namespace_in(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix("Namespace ") {
        return Some(rest.split([' ', ',', ';']).next().unwrap_or(rest));
    }
    text.split(' ').take(2).find_map(|word| word.split_once('/')).map(|(namespace, _)| namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ControlPlane, Sign, Unready};

    fn shop() -> VisibleNamespaces {
        VisibleNamespaces::Namespaces([("shop".to_owned(), 0)].into())
    }

    fn name(namespace: &str, name: &str) -> NamespacedName {
        (namespace.to_owned(), name.to_owned())
    }

    fn edge(client: NamespacedName, server: NamespacedName) -> SeriesKey {
        SeriesKey::Edge { client, server, encrypted: true }
    }

    #[test]
    fn the_other_end_of_an_edge_has_no_name() {
        let hidden = || name("", HIDDEN);
        let (web, vault) = (name("shop", "web"), name("bank", "vault"));
        let outside = name("", "(outside)");
        for (client, server, seen) in [
            (web.clone(), web.clone(), Some((web.clone(), web.clone()))),
            (web.clone(), vault.clone(), Some((web.clone(), hidden()))),
            (vault.clone(), web.clone(), Some((hidden(), web.clone()))),
            (web.clone(), outside.clone(), Some((web.clone(), outside.clone()))),
            (vault.clone(), vault.clone(), None),
            (vault.clone(), outside.clone(), None),
            (outside, vault.clone(), None),
        ] {
            let wanted = seen.map(|(client, server)| edge(client, server));
            assert_eq!(shop().of(&edge(client, server)), wanted);
        }
        assert_eq!(shop().of(&SeriesKey::Workload(vault.clone())), None);
        assert_eq!(
            VisibleNamespaces::All.of(&SeriesKey::Workload(vault.clone())),
            Some(SeriesKey::Workload(vault))
        );
    }

    #[test]
    fn a_route_of_another_namespace_has_no_name() {
        let route = |service: &str, route: &str| {
            let (rule, route) = ("0".to_owned(), route.to_owned());
            let of = RouteName { service: name(service, "cart"), route, rule };
            shop().of(&SeriesKey::Route(of)).map(|seen| match seen {
                SeriesKey::Route(seen) => (seen.route, seen.rule),
                other => panic!("{other:?}"),
            })
        };
        let own = ("HTTPRoute shop/cart".to_owned(), "0".to_owned());
        assert_eq!(route("shop", "HTTPRoute shop/cart"), Some(own));
        let hidden = (HIDDEN.to_owned(), String::new());
        assert_eq!(route("shop", "HTTPRoute bank/cart"), Some(hidden));
        assert_eq!(route("bank", "HTTPRoute shop/cart"), None);
        assert_eq!(route("shop", "").unwrap().0, "");
    }

    #[test]
    fn state_and_changes_are_those_of_the_namespaces() {
        let unready = |namespace: &str| Unready {
            namespace: namespace.to_owned(),
            workload: "web".to_owned(),
            instance: "web-0".to_owned(),
            reason: "x".to_owned(),
            of: 1,
            starting: false,
        };
        let sign = |namespace: &str, kind, subject: &str| Sign {
            kind,
            namespace: namespace.to_owned(),
            workload: "web".to_owned(),
            subject: subject.to_owned(),
            at_ms: 1,
            line: "x".to_owned(),
        };
        let state = MeshState {
            control_plane: ControlPlane::Away,
            detached: vec!["shop/web-0".to_owned(), "bank/web-0".to_owned()],
            silent: vec!["bank/web-0: timed out".to_owned(), "shop/web-0: timed out".to_owned()],
            unready: vec![unready("shop"), unready("bank")],
            signs: vec![
                sign("shop", SignKind::Outlier, "web-0"),
                sign("shop", SignKind::Lossy, "bank/vault"),
                sign("bank", SignKind::Outlier, "web-0"),
            ],
            refused_edit: Some("bank".to_owned()),
            ..MeshState::default()
        };
        let seen = shop().state(&state);
        let text = serde_json::to_string(&seen).unwrap();
        assert!(!text.contains("bank") && text.contains("shop/web-0: timed out"), "{text}");
        assert_eq!((seen.unready.len(), seen.signs.len()), (1, 1));
        assert_eq!(seen.control_plane, ControlPlane::Away);
        assert_eq!(VisibleNamespaces::All.state(&state), state);

        let mark = |kind, lines: &[&str]| Mark {
            at_ms: 5,
            kind,
            lines: lines.iter().map(|&line| line.to_owned()).collect(),
        };
        let both =
            ["HTTPRoute bank/a changed", "Service shop/b added", "bank/a-0 was started again"];
        let seen = shop().mark(&mark(MarkKind::Documents, &both)).unwrap();
        assert_eq!(seen.lines, ["Service shop/b added"]);
        assert_eq!(shop().mark(&mark(MarkKind::Documents, &["HTTPRoute bank/a changed"])), None);
        assert_eq!(shop().mark(&mark(MarkKind::Refused, &["unknown field"])), None);
        assert!(shop().mark(&mark(MarkKind::ControlPlane, &["it went away"])).is_some());

        // A namespace that was created again reveals nothing about the earlier one.
        let again = VisibleNamespaces::Namespaces([("shop".to_owned(), 6)].into());
        assert_eq!(again.mark(&mark(MarkKind::Documents, &both)), None);
        let seen = again.state(&state);
        assert_eq!((seen.signs.len(), seen.unready.len()), (0, 1));
        let subject = |of: SeriesKey| again.since_ms(&of);
        let (web, vault) = (name("shop", "web"), name("bank", "vault"));
        assert_eq!(subject(edge(web.clone(), vault.clone())), 6);
        assert_eq!(subject(edge(vault.clone(), web)), 6);
        assert_eq!(subject(SeriesKey::Workload(vault)), 0);
    }
}
