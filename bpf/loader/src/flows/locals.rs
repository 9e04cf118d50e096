//! The IPv6 addresses of workloads; flows contain only a number for each.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use leno_bpf_abi::flow::{FlowLocal, local_of};

use super::{Flows, Maps};
use crate::batch;
use crate::error::Error;

/// Finds a workload's IPv6 address by the number that its flows contain, a hash.
///
/// Programs store the address of every frame. As a workload may send from any address, it can fill that map, or find an
/// address with the same hash as another workload's. So that map is only used for addresses that are not known from the
/// names of workloads.
#[derive(Clone, Debug, Default)]
pub struct WorkloadAddresses {
    /// The addresses of named workloads, and the loopback and unspecified addresses.
    certain: BTreeMap<u32, IpAddr>,
    /// The addresses that programs have stored.
    noted: BTreeMap<u32, IpAddr>,
}

impl WorkloadAddresses {
    /// The address; `None` if it is not known, or if its entry was evicted.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<IpAddr> {
        self.certain.get(&number).or_else(|| self.noted.get(&number)).copied()
    }

    /// Whether the address for this number is certain, so that no frame can have forged it.
    #[must_use]
    pub fn is_certain(&self, number: u32) -> bool {
        self.certain.contains_key(&number)
    }
}

impl Flows {
    /// The IPv6 addresses of workloads by their numbers in flows.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn locals(&self) -> Result<WorkloadAddresses, Error> {
        let everywhere = [Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST].map(IpAddr::from);
        let named = self.addresses()?.into_iter().map(|address| FlowLocal { ip: address.ip }.ip());
        let certain = everywhere
            .into_iter()
            .chain(named.filter(IpAddr::is_ipv6))
            .map(|ip| (local_of(ip), ip))
            .collect();
        let mut noted = BTreeMap::new();
        let locals = Maps::open_one(&self.directory, "locals")?;
        batch::for_each(&locals, "read the addresses of flows", |key, value| {
            let number = key.try_into().map(u32::from_ne_bytes).ok();
            noted.extend(number.zip(FlowLocal::from_bytes(value).map(|local| local.ip())));
        })?;
        Ok(WorkloadAddresses { certain, noted })
    }
}

#[cfg(test)]
mod tests {
    use leno_bpf_abi::flow::FlowName;
    use libbpf_rs::{MapCore as _, MapFlags};

    use super::*;
    use crate::flows::FlowSizes;
    use crate::flows::self_test::apart;

    #[test]
    fn frames_from_made_up_addresses_hide_none_of_a_workload() {
        apart("locals", |group, root| {
            let sizes = FlowSizes::new(64, 64).unwrap();
            let (flows, _) = Flows::attach(root, "locals", group, sizes).unwrap();
            let ip = |text: &str| text.parse::<IpAddr>().unwrap();
            let note = |number: u32, at: IpAddr| {
                let locals = Maps::open_one(&flows.directory, "locals").unwrap();
                let (key, value) = (number.to_ne_bytes(), FlowLocal::new(at).to_bytes());
                locals.update(&key, &value, MapFlags::ANY).unwrap();
            };
            let [victim, link, forged] = ["fd89::2", "fe80::2", "2001:db8::1"].map(ip);
            // Before the workload is named, only the stored addresses of frames are known.
            note(local_of(victim), forged);
            note(local_of(link), link);
            note(local_of(ip("::1")), forged);
            let locals = flows.locals().unwrap();
            assert_eq!(locals.get(local_of(victim)), Some(forged));
            assert!(!locals.is_certain(local_of(victim)));
            let addresses = [victim, ip("10.9.0.2")];
            flows.name(3, &FlowName::new("default", "victim"), &addresses).unwrap();
            let locals = flows.locals().unwrap();
            for (at, certain) in
                [(victim, true), (ip("::1"), true), (ip("::"), true), (link, false)]
            {
                assert_eq!(locals.get(local_of(at)), Some(at));
                assert_eq!(locals.is_certain(local_of(at)), certain, "{at}");
            }
            // IPv4 addresses have no number.
            assert_eq!(locals.get(local_of(ip("10.9.0.2"))), None);
            // More made-up addresses than the map can store.
            for sender in 0..8_192u32 {
                let at = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 1, sender as u16]);
                note(local_of(at), at);
            }
            let locals = flows.locals().unwrap();
            assert_eq!(locals.get(local_of(victim)), Some(victim));
            flows.detach().unwrap();
        });
    }
}
