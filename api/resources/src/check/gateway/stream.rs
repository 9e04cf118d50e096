//! Checks of `TLSRoute` and `TCPRoute`.

use std::net::IpAddr;

use leno_types::check_subdomain;

use super::{attached, each_backend, most, rule_names};
use crate::check::{Check, Cursor};
use crate::gateway::{StreamRule, TcpRoute, TlsRoute};

/// The largest number of host names of one route, as in the Gateway API.
const MAX_HOSTNAMES: usize = 1024;

pub(in crate::check) fn tls_route(check: &mut Check<'_>, at: &Cursor<'_>, route: &TlsRoute) {
    let spec = attached(check, at, &route.metadata, route.spec.parent_refs.as_deref());
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
    let spec = attached(check, at, &route.metadata, route.spec.parent_refs.as_deref());
    rules(check, &spec.key("rules"), &route.spec.rules);
}

/// Checks that there is exactly one rule. Rules have no conditions, so nothing would distinguish several.
fn rules(check: &mut Check<'_>, at: &Cursor<'_>, rules: &[StreamRule]) {
    if rules.len() != 1 {
        let reason = format!("has {} rules: a route of connections has one", rules.len());
        check.fail(at, reason);
    }
    rule_names(check, at, rules.iter().map(|rule| rule.name.as_deref()));
    for (index, rule) in rules.iter().enumerate() {
        let at = at.index(index).key("backendRefs");
        if rule.backend_refs.is_empty() {
            check.fail(&at, "is empty: name the backends of the connections");
        }
        each_backend(check, &at, &rule.backend_refs, |check, at, given| {
            if given.filters.is_some() {
                check.fail(
                    at,
                    "filters change requests, which this route does not see: remove them",
                );
            }
        });
    }
}
