//! The certificate authorities for TLS origination, and which policy applies to a port.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_resources::{ConfigMap, ObjectKey};
use leno_types::ServiceName;
use leno_types::mesh::{Origination, Roots};

use super::{AffectedNames, Facts};
use crate::rows::external::{self, BackendTlsRow};
use crate::rows::policies::TargetRow;

/// The authorities in each `ConfigMap`, or why it has none.
pub(super) type Authorities = BTreeMap<ObjectKey, Result<Vec<Vec<u8>>, &'static str>>;

impl Facts {
    /// Inserts the authorities of a `ConfigMap`, or why it has none. Every `ConfigMap` is kept, because a later
    /// policy may refer to it.
    pub(super) fn put_authorities(
        &mut self,
        key: &ObjectKey,
        object: &ConfigMap,
        touched: &mut AffectedNames,
    ) {
        self.authorities.insert(key.clone(), external::authorities(object));
        self.touch_referring_to(key, touched);
    }

    pub(super) fn remove_authorities(&mut self, key: &ObjectKey, touched: &mut AffectedNames) {
        if self.authorities.remove(key).is_some() {
            self.touch_referring_to(key, touched);
        }
    }

    fn touch_referring_to(&self, key: &ObjectKey, touched: &mut AffectedNames) {
        let refers = |row: &&BackendTlsRow| {
            row.namespace == key.namespace && row.authorities.contains(&key.name)
        };
        for row in self.backend_tls.rows().filter(refers) {
            self.touch_targets(&row.targets, touched);
        }
    }

    /// How clients originate TLS to a port of a service: according to the policy of the port, or else of the
    /// service. Of two policies for the same target, the older one takes precedence, then the first by name.
    pub(crate) fn origination(
        &self,
        service: &ServiceName,
        is_port: impl Fn(&str) -> bool,
    ) -> Option<Origination> {
        let rank = |row: &BackendTlsRow| {
            let of_targets = row.targets.iter().filter_map(|target| match target {
                TargetRow::Service(of, Some(section)) if of == service => {
                    is_port(section).then_some(0)
                }
                TargetRow::Service(of, None) if of == service => Some(1),
                _ => None,
            });
            of_targets.min()
        };
        let ranked = self.backend_tls.of_service(service);
        let ranked = ranked.filter_map(|row| Some((rank(row)?, &row.precedence, row)));
        let (_, _, row) = ranked.min_by_key(|(rank, precedence, _)| (*rank, *precedence))?;
        Some(Origination {
            source: format!("BackendTLSPolicy {}/{}", row.namespace, row.precedence.1).into(),
            hostname: Arc::clone(&row.hostname),
            roots: self.roots(row),
            names: Arc::clone(&row.names),
        })
    }

    fn roots(&self, row: &BackendTlsRow) -> Roots {
        if row.authorities.is_empty() {
            return Roots::System;
        }
        let mut all = Vec::new();
        for name in &row.authorities {
            let kind = leno_resources::Kind::ConfigMap;
            let key = ObjectKey { kind, namespace: row.namespace.clone(), name: name.clone() };
            match self.authorities.get(&key) {
                Some(Ok(certificates)) => all.extend(certificates.iter().cloned()),
                Some(Err(why)) => return Roots::Missing(format!("{key}: {why}").into()),
                None => return Roots::Missing(format!("there is no {key} with ca.crt").into()),
            }
        }
        Roots::Given(all.into())
    }
}
