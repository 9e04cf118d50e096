//! The kubelet's probes: led to the proxy, which asks the application in their stead.
//!
//! Under strict mTLS the inbound listener takes no plaintext, and the kubelet speaks nothing else. So
//! its probes go to the proxy's admin server, which knows from `LENO_PROBES` what they were and asks
//! the application from within the pod. A probe that runs a command stays as it is.

use std::collections::BTreeMap;

use leno_types::ports::ADMIN;
use serde::{Deserialize, Serialize};

use crate::inject::InjectError;
use crate::ports;
use crate::value::JsonValue;

/// The variable in which the proxy finds what the probes were.
pub(crate) const VARIABLE: &str = "LENO_PROBES";

/// The probes of a container, as its fields and as paths of the proxy call them.
const KINDS: [(&str, &str); 3] =
    [("livenessProbe", "liveness"), ("readinessProbe", "readiness"), ("startupProbe", "startup")];
/// What a probe may ask, the application's command aside.
const HANDLERS: [&str; 3] = ["httpGet", "tcpSocket", "grpc"];
/// How long a probe waits where it does not say, in seconds (Kubernetes' own).
const DEFAULT_TIMEOUT_S: u64 = 1;

/// What probes were, by container and kind: `web/liveness`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct Probes(BTreeMap<String, Probe>);

/// What one of them was: `{"httpGet": {...}, "port": 8080, "timeoutSeconds": 1}`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Probe {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    http_get: Option<JsonValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tcp_socket: Option<JsonValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grpc: Option<JsonValue>,
    /// The number of the port, which the handler may name.
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
    /// Leads the probes of a container to the proxy, and keeps what they were.
    pub(crate) fn take(&mut self, container: &mut JsonValue) -> Result<(), InjectError> {
        let name = container.name().unwrap_or_default().to_owned();
        for (field, kind) in KINDS {
            let Some(probe) = container.get(field) else { continue };
            let handler = HANDLERS.into_iter().find_map(|one| Some((one, probe.get(one)?)));
            let Some((handler, given)) = handler else { continue };
            if given.get("host").and_then(JsonValue::text).is_some_and(|host| !host.is_empty()) {
                // It is not this pod that is asked.
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

    /// Puts back what `take` took from a container.
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

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The variable's value. Kubernetes replaces `$(NAME)` in it, so that it has no dollar sign.
    pub(crate) fn text(&self) -> String {
        let text = serde_json::to_string(self).expect("a map of texts and values is JSON");
        // Only texts have one, and in a text this is the same.
        text.replace('$', "\\u0024")
    }

    /// What a variable's value says.
    pub(crate) fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

/// Puts one field in the place of another.
fn exchange(probe: &mut JsonValue, from: &str, (to, value): (&str, JsonValue)) {
    let JsonValue::Map(fields) = probe else { return };
    if let Some(field) = fields.iter_mut().find(|(name, _)| name == from) {
        *field = (to.to_owned(), value);
    }
}
