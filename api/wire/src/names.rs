//! Names of resources: what is subscribed to and what comes back.

use std::net::IpAddr;

use leno_types::{InstanceName, ServiceName};

/// Subscribes to the workload's own namespace.
pub const WILDCARD: &str = "*";

/// The name under which whatever is at an address is subscribed to.
#[must_use]
pub fn of_address(ip: IpAddr) -> String {
    format!("ip/{ip}")
}

/// The address of an `ip/<address>` name.
#[must_use]
pub fn address(name: &str) -> Option<IpAddr> {
    name.strip_prefix("ip/")?.parse().ok()
}

/// The name of a service's resource.
#[must_use]
pub fn of_service(name: &ServiceName) -> String {
    format!("service/{name}")
}

/// The name of a workload's resource.
#[must_use]
pub fn of_workload(name: &InstanceName) -> String {
    format!("workload/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_name() {
        for text in ["10.96.0.1", "fd00::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(address(&of_address(ip)), Some(ip));
        }
        for name in ["", "*", "ip/", "ip/web", "10.96.0.1", "service/shop/web"] {
            assert_eq!(address(name), None, "{name}");
        }
    }
}
