//! Checks the meaning of an object, beyond what its types require.

mod authorization;
mod external;
mod gateway;
mod kubernetes;
mod objective;
mod own;
mod process;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_types::authorization::PathReading;
use leno_types::{check_label, check_subdomain};

use crate::flow_settings::{cpu_share, flow_size};
use crate::metadata::{
    FLOW_CPU_BUDGET_ANNOTATION, FLOW_MAP_SIZE_ANNOTATION, FLOW_RING_SIZE_ANNOTATION,
    KEYS_FROM_ANNOTATION, PATHS_ANNOTATION, PROMOTE_AFTER_ANNOTATION, SETTINGS,
    SPIFFE_SOCKET_ANNOTATION, USE_WAYPOINT_LABEL, USE_WAYPOINT_NAMESPACE_LABEL, WAYPOINT_LABEL,
    allowed_values, keys_from, spiffe_socket,
};
use crate::node_mode::promote_after;
use crate::object::Object;
use crate::origin::Origin;
use crate::problem::{Position, Problem};
use crate::tree::{TreeNode, TreeValue};

/// The prefix of Leno's own annotations and labels.
const OWN_PREFIX: &str = "leno.dev/";
/// Settings whose value is the name of an object.
const NAMES: [&str; 3] = [USE_WAYPOINT_LABEL, USE_WAYPOINT_NAMESPACE_LABEL, WAYPOINT_LABEL];

/// Checks one object. `node` is the document from which it was decoded. `whole` is false if parts of the document were
/// rejected. Then only values that are present are checked, because a field that seems to be missing may be one of the
/// rejected parts.
pub(crate) fn object(
    object: &Object,
    file: &Arc<str>,
    node: &TreeNode,
    whole: bool,
) -> Vec<Problem> {
    let mut check = Check { file, problems: Vec::new(), whole };
    let at = Cursor { node: Some(node), place: node.place, path: String::new() };
    match object {
        Object::Namespace(object) => kubernetes::namespace(&mut check, &at, object),
        Object::Service(object) => kubernetes::service(&mut check, &at, object),
        Object::ServiceAccount(object) => {
            kubernetes::metadata(&mut check, &at, &object.metadata, Name::Subdomain);
        }
        Object::EndpointSlice(object) => kubernetes::endpoint_slice(&mut check, &at, object),
        Object::ConfigMap(object) => kubernetes::config_map(&mut check, &at, object),
        Object::Secret(object) => {
            kubernetes::metadata(&mut check, &at, &object.metadata, Name::Subdomain);
        }
        Object::HttpRoute(object) => gateway::http_route(&mut check, &at, object),
        Object::GrpcRoute(object) => gateway::grpc_route(&mut check, &at, object),
        Object::TlsRoute(object) => gateway::tls_route(&mut check, &at, object),
        Object::TcpRoute(object) => gateway::tcp_route(&mut check, &at, object),
        Object::ReferenceGrant(object) => gateway::reference_grant(&mut check, &at, object),
        Object::BackendTlsPolicy(object) => gateway::backend_tls_policy(&mut check, &at, object),
        Object::TrafficPolicy(object) => traffic::traffic_policy(&mut check, &at, object),
        Object::RateLimitPolicy(object) => traffic::rate_limit_policy(&mut check, &at, object),
        Object::AuthorizationPolicy(object) => authorization::policy(&mut check, &at, object),
        Object::Workload(object) => own::workload(&mut check, &at, object),
        Object::PodExemption(object) => own::pod_exemption(&mut check, &at, object),
        Object::ServiceLevelObjective(object) => objective::check(&mut check, &at, object),
        Object::Proxy(object) => own::proxy(&mut check, &at, object),
    }
    check.problems
}

/// The form that a name must have.
#[derive(Clone, Copy)]
enum Name {
    /// One DNS label.
    Label,
    /// Parts joined by dots.
    Subdomain,
}

/// Collects the problems of one document.
struct Check<'a> {
    file: &'a Arc<str>,
    problems: Vec<Problem>,
    whole: bool,
}

/// A field of the document. A field that is not written has the position of its parent.
struct Cursor<'a> {
    node: Option<&'a TreeNode>,
    place: Position,
    path: String,
}

impl<'a> Cursor<'a> {
    fn key(&self, key: &str) -> Cursor<'a> {
        let node = self.node.and_then(|node| node.get(key));
        let path =
            if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) };
        self.child(node, path)
    }

    fn index(&self, index: usize) -> Cursor<'a> {
        let node = self.node.and_then(|node| node.at(index));
        self.child(node, format!("{}[{index}]", self.path))
    }

    fn child(&self, node: Option<&'a TreeNode>, path: String) -> Cursor<'a> {
        Cursor { node, place: node.map_or(self.place, |node| node.place), path }
    }

    /// Whether the document has a string, a number or a boolean here.
    fn is_value(&self) -> bool {
        self.node.is_some_and(|node| {
            matches!(
                node.value,
                TreeValue::Bool(_)
                    | TreeValue::Unsigned(_)
                    | TreeValue::Signed(_)
                    | TreeValue::Float(_)
                    | TreeValue::Text(_)
            )
        })
    }

    /// Whether the document has a value here.
    fn written(&self) -> bool {
        self.node.is_some_and(|node| !matches!(node.value, TreeValue::Null))
    }
}

impl Check<'_> {
    fn fail(&mut self, at: &Cursor<'_>, reason: impl Into<String>) {
        if !self.whole && !at.is_value() {
            return;
        }
        self.problems.push(Problem {
            file: self.file.clone(),
            place: at.place,
            path: at.path.clone(),
            reason: reason.into(),
        });
    }

    fn label(&mut self, at: &Cursor<'_>, what: &'static str, text: &str) {
        if !at.written() && text.is_empty() {
            self.fail(at, "is missing");
        } else if let Err(error) = check_label(what, text) {
            self.fail(at, error.to_string());
        }
    }

    fn name(&mut self, at: &Cursor<'_>, text: &str, form: Name) {
        match form {
            Name::Label => self.label(at, "name", text),
            Name::Subdomain if text.is_empty() => self.fail(at, "is missing"),
            Name::Subdomain => {
                if let Err(error) = check_subdomain("name", text) {
                    self.fail(at, error.to_string());
                }
            }
        }
    }

    fn port(&mut self, at: &Cursor<'_>, number: i32) {
        if !(1..=65535).contains(&number) {
            self.fail(at, format!("{number} is not a port: use 1 to 65535"));
        }
    }

    /// Checks a port's name like Kubernetes: a DNS label; unique; required if there are several
    /// ports.
    fn port_name(&mut self, at: &Cursor<'_>, name: &str, seen: &mut BTreeSet<String>, of: usize) {
        if name.is_empty() {
            if of > 1 {
                self.fail(at, "is missing: each of several ports needs a name");
            }
            return;
        }
        self.label(at, "port name", name);
        if !seen.insert(name.to_owned()) {
            self.fail(at, format!("{name:?} is used by an earlier port"));
        }
    }

    fn address(&mut self, at: &Cursor<'_>, text: &str) -> Option<IpAddr> {
        let address: Option<IpAddr> = text.parse().ok();
        match address {
            None => self.fail(at, format!("{text:?} is not an IP address")),
            Some(ip) if ip.is_unspecified() || ip.is_multicast() => {
                self.fail(at, format!("{ip} is not the address of one machine"));
            }
            Some(_) => {}
        }
        address
    }

    /// Checks Leno's own annotations and labels: known keys with known values.
    fn own_settings(&mut self, at: &Cursor<'_>, settings: &BTreeMap<String, String>) {
        let own = |(key, _): &(&String, &String)| key.starts_with(OWN_PREFIX);
        for (key, value) in settings.iter().filter(own) {
            let at = at.key(key);
            if key == KEYS_FROM_ANNOTATION {
                let origins = keys_from(value).map(str::parse::<Origin>);
                for error in origins.filter_map(Result::err) {
                    self.fail(&at, error.to_string());
                }
                continue;
            }
            if key == FLOW_CPU_BUDGET_ANNOTATION {
                if cpu_share(value).is_none() {
                    let reason = "is not a share of the machine's CPU: use for example 0.2%";
                    self.fail(&at, format!("{value:?} {reason}"));
                }
                continue;
            }
            if [FLOW_MAP_SIZE_ANNOTATION, FLOW_RING_SIZE_ANNOTATION].contains(&key.as_str()) {
                if let Err(reason) = flow_size(key, value) {
                    self.fail(&at, reason);
                }
                continue;
            }
            if key == PROMOTE_AFTER_ANNOTATION {
                if let Err(reason) = promote_after(value) {
                    self.fail(&at, reason);
                }
                continue;
            }
            if key == PATHS_ANNOTATION {
                if let Err(error) = value.parse::<PathReading>() {
                    self.fail(&at, error.to_string());
                }
                continue;
            }
            if NAMES.contains(&key.as_str()) {
                self.label(&at, "name", value);
                continue;
            }
            if key == SPIFFE_SOCKET_ANNOTATION {
                if let Err(error) = spiffe_socket(value) {
                    self.fail(&at, format!("{error}, or off"));
                }
                continue;
            }
            match allowed_values(key) {
                None => {
                    // The prefix is not compared, because it would make all short names seem similar.
                    let own = |key: &'static str| key.strip_prefix(OWN_PREFIX);
                    let known = SETTINGS.iter().copied().filter_map(own);
                    let meant = leno_types::nearest(&key[OWN_PREFIX.len()..], known)
                        .map(|meant| format!(": did you mean {OWN_PREFIX}{meant}?"));
                    let meant = meant.unwrap_or_default();
                    self.fail(&at, format!("is not a setting of Leno{meant}"));
                }
                Some(allowed) if !allowed.contains(&value.as_str()) => {
                    let meant = did_you_mean(value, allowed.iter().copied());
                    self.fail(
                        &at,
                        format!("{value:?} is not one of {}{meant}", allowed.join(", ")),
                    );
                }
                Some(_) => {}
            }
        }
    }
}

/// The end of an error message that rejects `text`: the most similar known name, if there is one.
pub(crate) fn did_you_mean<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let meant = leno_types::nearest(text, known);
    meant.map(|meant| format!(": did you mean {meant}?")).unwrap_or_default()
}
