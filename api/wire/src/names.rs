//! Names of resources, in subscriptions and in responses.

use std::net::IpAddr;

use leno_types::mesh::Subject;
use leno_types::{InstanceName, ServiceName};

/// The name that subscribes to the service or workload at an address.
#[must_use]
pub fn of_address(ip: IpAddr) -> String {
    format!("ip/{ip}")
}

/// The address of an `ip/<address>` name.
#[must_use]
pub fn address(name: &str) -> Option<IpAddr> {
    name.strip_prefix("ip/")?.parse().ok()
}

/// The name that subscribes to a service or a workload.
#[must_use]
pub fn of_subject(subject: &Subject) -> String {
    match subject {
        Subject::Address(ip) => of_address(*ip),
        Subject::Service(name) => of_service(name),
    }
}

/// The service or workload of a name; a subscription to a service uses the name of its resource.
#[must_use]
pub fn subject(name: &str) -> Option<Subject> {
    match name.strip_prefix("service/") {
        Some(service) => service.parse().ok().map(Subject::Service),
        None => address(name).map(Subject::Address),
    }
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
            assert_eq!(subject(&of_address(ip)), Some(Subject::Address(ip)));
        }
        for name in ["", "*", "ip/", "ip/web", "10.96.0.1", "service/shop/web"] {
            assert_eq!(address(name), None, "{name}");
        }
        let service = Subject::Service("shop/web".parse().unwrap());
        assert_eq!(subject(&of_subject(&service)), Some(service));
        for name in ["", "*", "service/web", "service/", "workload/shop/web-0"] {
            assert_eq!(subject(name), None, "{name}");
        }
    }
}
