//! Redirects the kubelet's probes to the proxy, which probes the application instead.
//!
//! Under strict mTLS the inbound listener accepts no plaintext, but the kubelet only sends plaintext. So its
//! probes are redirected to the proxy's admin server, which reads the original probes from `LENO_PROBES` and runs
//! them from within the pod. A probe that runs a command is not changed.

use std::collections::BTreeMap;

use leno_types::ports::ADMIN;
use serde::{Deserialize, Serialize};

use crate::inject::InjectError;
use crate::ports;
use crate::value::JsonValue;

/// The environment variable that contains the original probes.
pub(crate) const VARIABLE: &str = "LENO_PROBES";

/// The kinds of probes: the name of each field in a container, and the name of that kind in paths of the proxy's
/// admin server.
const KINDS: [(&str, &str); 3] =
    [("livenessProbe", "liveness"), ("readinessProbe", "readiness"), ("startupProbe", "startup")];
/// The kinds of handlers that are redirected: all except a command.
const HANDLERS: [&str; 3] = ["httpGet", "tcpSocket", "grpc"];
/// The default timeout of a probe in Kubernetes, in seconds.
const DEFAULT_TIMEOUT_S: u64 = 1;

/// The original probes, by container and kind, such as `web/liveness`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct Probes(BTreeMap<String, Probe>);

/// One original probe: `{"httpGet": {...}, "port": 8080, "timeoutSeconds": 1}`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Probe {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    http_get: Option<JsonValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tcp_socket: Option<JsonValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grpc: Option<JsonValue>,
    /// The number of the port. The handler may contain the port's name instead.
    port: u16,
    timeout_seconds: u64,
}

impl Probe {
    fn new(handler: &str, given: JsonValue, (port, timeout_seconds): (u16, u64)) -> Self {
        let of = |name: &str| (handler == name).then(|| given.clone());
        let [http_get, tcp_socket, grpc] = HANDLERS.map(of);
        Self { http_get, tcp_socket, grpc, port, timeout_seconds }
    }

    fn handler(self) -> Option<(&'static str, JsonValue)> {
        let handlers = [self.http_get, self.tcp_socket, self.grpc];
        HANDLERS.into_iter().zip(handlers).find_map(|(name, given)| Some((name, given?)))
    }
}

impl Probes {
    /// Redirects the probes of a container to the proxy, and records the original ones.
    pub(crate) fn take(&mut self, container: &mut JsonValue) -> Result<(), InjectError> {
        let name = container.name().unwrap_or_default().to_owned();
        for (field, kind) in KINDS {
            let Some(probe) = container.get(field) else { continue };
            let handler = HANDLERS.into_iter().find_map(|one| Some((one, probe.get(one)?)));
            let Some((handler, given)) = handler else { continue };
            if given.get("host").and_then(JsonValue::text).is_some_and(|host| !host.is_empty()) {
                // A probe of another host is not redirected.
                continue;
            }
            let port = given.get("port").and_then(|port| ports::resolve(container, port));
            let port = port.ok_or_else(|| InjectError::ProbePort {
                container: name.clone(),
                probe: field,
                port: given.get("port").cloned().unwrap_or(JsonValue::Null),
            })?;
            let timeout = probe.get("timeoutSeconds").and_then(JsonValue::number);
            let timeout = timeout.and_then(|seconds| u64::try_from(seconds).ok());
            let timeout = timeout.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_TIMEOUT_S);
            let path = format!("{name}/{kind}");
            let led = JsonValue::from([
                ("path", format!("/probe/{path}").into()),
                ("port", u32::from(ADMIN).into()),
            ]);
            let kept = Probe::new(handler, given.clone(), (port, timeout));
            self.0.insert(path, kept);
            if let Some(probe) = container.get_mut(field) {
                exchange(probe, handler, ("httpGet", led));
            }
        }
        Ok(())
    }

    /// Restores the probes of a container that `take` has redirected.
    pub(crate) fn put_back(&mut self, container: &mut JsonValue) {
        let name = container.name().unwrap_or_default().to_owned();
        for (field, kind) in KINDS {
            let path = format!("{name}/{kind}");
            let Some(probe) = container.get_mut(field) else { continue };
            let led = probe.at(&["httpGet", "path"]).and_then(JsonValue::text);
            if led != Some(&*format!("/probe/{path}")) {
                continue;
            }
            if let Some((handler, given)) = self.0.remove(&path).and_then(Probe::handler) {
                exchange(probe, "httpGet", (handler, given));
            }
        }
    }

    /// Whether there are no probes.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of the environment variable. It contains no dollar sign, because Kubernetes would replace
    /// `$(NAME)` in it.
    pub(crate) fn text(&self) -> String {
        let text = serde_json::to_string(self).expect("a map of texts and values is JSON");
        // A dollar sign can only occur inside a JSON string, where this escape means the same.
        text.replace('$', "\\u0024")
    }

    /// Parses the value of the environment variable.
    pub(crate) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

/// Replaces a field by another one.
fn exchange(probe: &mut JsonValue, from: &str, (to, value): (&str, JsonValue)) {
    let JsonValue::Map(fields) = probe else { return };
    if let Some(field) = fields.iter_mut().find(|(name, _)| name == from) {
        *field = (to.to_owned(), value);
    }
}
