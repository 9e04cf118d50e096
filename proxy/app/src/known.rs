//! What a proxy knows of services, for `/config`.

use leno_types::mesh::{Endpoint, Service, ServicePort};
use serde_json::{Value, json};

/// Most endpoints of one port that are shown: enough to see which sort they are of, and the services that
/// one proxy uses stay within what its readers take.
const MAX_SHOWN: usize = 16;

/// A service in numbers, and where `detailed` with its endpoints: whom a workload can call is nobody's
/// business but that of whoever administers it.
pub(crate) fn service(service: &Service, detailed: bool) -> Value {
    let port = |port: &ServicePort| {
        let mut shown = json!({
            "port": port.port,
            "protocol": port.protocol.as_str(),
            "endpoints": port.endpoints.len(),
        });
        if detailed {
            let first = port.endpoints.iter().take(MAX_SHOWN).map(endpoint);
            shown["first_endpoints"] = first.collect();
        }
        shown
    };
    json!({
        "name": service.name.to_string(),
        "routes": service.routes.len(),
        "policies": service.traffic.len(),
        "ports": service.ports.iter().map(port).collect::<Vec<_>>(),
    })
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let addresses = endpoint.addresses.iter().map(ToString::to_string);
    json!({
        "workload": endpoint.workload.as_ref().map(ToString::to_string),
        "addresses": addresses.collect::<Vec<_>>(),
        "port": endpoint.port,
        "identity": endpoint.identity.as_ref().map(ToString::to_string),
        "zone": &*endpoint.place.zone,
    })
}
