//! The services that a proxy has received, for `/config`.

use leno_types::mesh::{Endpoint, Service, ServicePort, WireForm};
use serde_json::{Value, json};

/// How many endpoints of one port are shown. They are enough to see what kind they are, and the page stays within the
/// limit of its readers even for many services.
const MAX_SHOWN: usize = 16;

/// A service as JSON, with the first [`MAX_SHOWN`] endpoints of each port.
pub(crate) fn service(service: &Service) -> Value {
    let port = |port: &ServicePort| {
        json!({
            "port": port.port,
            "protocol": port.protocol.as_str(),
            "endpoints": port.endpoints.len(),
            "first_endpoints": port.endpoints.iter().take(MAX_SHOWN).map(endpoint).collect::<Vec<_>>(),
        })
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
        "wire": match endpoint.wire {
            WireForm::Leno => "leno",
            WireForm::Hbone => "hbone",
            WireForm::Waypoint => "waypoint",
        },
    })
}
