//! Checks of `TLSRoute` and `TCPRoute`.

use std::net::IpAddr;

use leno_types::check_subdomain;

use super::{backend, most, parents, rule_names};
use crate::check::kubernetes::metadata;
use crate::check::{Check, Cursor, Name};
use crate::gateway::{StreamRule, TcpRoute, TlsRoute};

/// Most names of one route, as upstream.
const MAX_HOSTNAMES: usize = 1024;
/// Most backends of one rule, as upstream.
const MAX_BACKENDS: usize = 16;
/// Largest weight of a backend, as upstream.
const MAX_WEIGHT: i32 = 1_000_000;

pub(in crate::check) fn tls_route(check: &mut Check<'_>, at: &Cursor<'_>, route: &TlsRoute) {
    metadata(check, at, &route.metadata, Name::Subdomain);
    let spec = at.key("spec");
    parents(check, &spec, route.spec.parent_refs.as_deref().unwrap_or_default());
    let names = spec.key("hostnames");
    if route.spec.hostnames.is_empty() {
        check.fail(&names, "is empty: name the servers, or use a TCPRoute");
    }
    most(check, &names, route.spec.hostnames.len(), MAX_HOSTNAMES);
    for (index, name) in route.spec.hostnames.iter().enumerate() {
        let at = names.index(index);
        let whole = name.strip_prefix("*.").unwrap_or(name);
        if name.parse::<IpAddr>().is_ok() {
            check.fail(&at, "is an address: clients of TLS ask for names (RFC 6066 section 3)");
        } else if let Err(error) = check_subdomain("host name", whole) {
            check.fail(&at, error.to_string());
        }
    }
    rules(check, &spec.key("rules"), &route.spec.rules);
}

pub(in crate::check) fn tcp_route(check: &mut Check<'_>, at: &Cursor<'_>, route: &TcpRoute) {
    metadata(check, at, &route.metadata, Name::Subdomain);
    let spec = at.key("spec");
    parents(check, &spec, route.spec.parent_refs.as_deref().unwrap_or_default());
    rules(check, &spec.key("rules"), &route.spec.rules);
}

/// One rule, for there is nothing that could tell two of them apart.
fn rules(check: &mut Check<'_>, at: &Cursor<'_>, rules: &[StreamRule]) {
    if rules.len() != 1 {
        let reason = format!("has {} rules: a route of connections has one", rules.len());
        check.fail(at, reason);
    }
    rule_names(check, at, rules.iter().map(|rule| rule.name.as_deref()));
    for (index, rule) in rules.iter().enumerate() {
        let at = at.index(index).key("backendRefs");
        if rule.backend_refs.is_empty() {
            check.fail(&at, "is empty: say where connections go");
        }
        most(check, &at, rule.backend_refs.len(), MAX_BACKENDS);
        for (index, given) in rule.backend_refs.iter().enumerate() {
            let at = at.index(index);
            backend(check, &at, &given.object());
            if let Some(weight) = given.weight
                && !(0..=MAX_WEIGHT).contains(&weight)
            {
                let reason = format!("{weight} is not a weight: use 0 to {MAX_WEIGHT}");
                check.fail(&at.key("weight"), reason);
            }
            if given.filters.is_some() {
                check.fail(&at.key("filters"), "filters change requests, which are not seen here");
            }
        }
    }
}
