//! The ports of a pod on which the proxy listens, and the named ports of containers.

use leno_types::ports::{ADMIN, INBOUND, OUTBOUND};

use crate::value::JsonValue;

/// The ports on which every proxy listens.
const OWN: [u16; 3] = [OUTBOUND, INBOUND, ADMIN];

/// A port of this container on which the proxy has to listen, if there is one.
pub(crate) fn taken(container: &JsonValue) -> Option<u16> {
    let numbers = container.list("ports").iter().filter(is_tcp).filter_map(number);
    numbers.into_iter().find(|port| OWN.contains(port))
}

/// The number of a port that is given as a number or by its name in the container.
pub(crate) fn resolve(container: &JsonValue, port: &JsonValue) -> Option<u16> {
    if let Some(number) = port.number() {
        return u16::try_from(number).ok().filter(|port| *port > 0);
    }
    let wanted = port.text()?;
    // Kubernetes treats a number in quotes as a number.
    if let Ok(number) = wanted.parse() {
        return Some(number);
    }
    let named = |port: &&JsonValue| port.name() == Some(wanted);
    container.list("ports").iter().find(named).and_then(number)
}

fn number(port: &JsonValue) -> Option<u16> {
    u16::try_from(port.get("containerPort")?.number()?).ok().filter(|port| *port > 0)
}

fn is_tcp(port: &&JsonValue) -> bool {
    port.get("protocol").and_then(JsonValue::text).is_none_or(|protocol| protocol == "TCP")
}
