//! Builds what clients need to reach endpoints outside of the mesh behind a port of a service.

use std::sync::Arc;

use leno_types::ServiceName;
use leno_types::mesh::{ExternalEndpoints, NamedEndpoint};

use super::policies::is_named;
use super::{slice_port, target_number};
use crate::facts::Facts;
use crate::rows::{ServicePortRow, ServiceRow, TargetPort};

/// The external part of a port. `None` if no endpoint of the port is known by its DNS name and no policy sets TLS
/// origination.
pub(super) fn external(
    facts: &Facts,
    name: &ServiceName,
    service: &ServiceRow,
    port: &ServicePortRow,
) -> Option<Arc<ExternalEndpoints>> {
    let mut names = Vec::new();
    if let (Some(host), TargetPort::Number(number)) = (&service.external_name, &port.target) {
        names.push(NamedEndpoint { host: Arc::clone(host), port: *number });
    }
    for slice in facts.slices(name) {
        let served = slice_port(slice, port);
        let Some(number) = served.and_then(|served| target_number(port, served, None)) else {
            continue;
        };
        for host in &slice.names {
            let one = NamedEndpoint { host: Arc::clone(host), port: number };
            if !names.contains(&one) {
                names.push(one);
            }
        }
    }
    let tls = facts.origination(name, |section| is_named(port, section));
    (!names.is_empty() || tls.is_some()).then(|| Arc::new(ExternalEndpoints { names, tls }))
}
