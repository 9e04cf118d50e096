//! Chooses the IPv4 ranges of a mesh: those that the user requests, else the first pair that overlaps no route of
//! the machine. An overlap would hide destinations, such as those behind a VPN, from workloads.

use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::addresses::Subnet;

/// The prefix length of a range.
const PREFIX: u32 = 16;
/// The network mask of a range.
const MASK: u32 = u32::MAX << (32 - PREFIX);
/// Pairs of ranges in the order of preference. In each pair, the range of workloads comes first.
const PAIRS: [MeshRanges; 3] = [
    MeshRanges::of([10, 89], [10, 96]),
    MeshRanges::of([172, 29], [172, 30]),
    // In the shared address space (RFC 6598).
    MeshRanges::of([100, 89], [100, 96]),
];
/// The file that lists the routes in the calling thread's network namespace, one per line.
const ROUTES: &str = "/proc/thread-self/net/route";

/// A /16 range of IPv4, such as 10.89.0.0/16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshRange(Ipv4Addr);

/// The ranges that the user requests; the range of workloads comes first.
pub type RequestedRanges = (Option<MeshRange>, Option<MeshRange>);

/// The address ranges of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshRanges {
    workloads: MeshRange,
    services: MeshRange,
}

/// A route of the machine that is not a default route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineRoute {
    to: Ipv4Addr,
    mask: u32,
    interface: String,
}

impl Default for MeshRanges {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl MeshRanges {
    /// The default ranges.
    pub const DEFAULT: Self = PAIRS[0];

    const fn of(workloads: [u8; 2], services: [u8; 2]) -> Self {
        Self { workloads: MeshRange::of(workloads), services: MeshRange::of(services) }
    }

    /// Chooses the ranges of a mesh whose machine has these routes. Also returns a note for the operator.
    ///
    /// # Errors
    /// When both requested ranges are the same.
    pub fn choose(
        (workloads, services): RequestedRanges,
        routes: &[MachineRoute],
    ) -> Result<(Self, Option<String>), String> {
        let given = |pair: &Self| Self {
            workloads: workloads.unwrap_or(pair.workloads),
            services: services.unwrap_or(pair.services),
        };
        let candidates = PAIRS.iter().map(given).filter(|pair| pair.workloads != pair.services);
        let candidates: Vec<Self> = candidates.collect();
        let Some(first) = candidates.first().copied() else {
            let range = workloads.unwrap_or(PAIRS[0].workloads);
            return Err(format!(
                "workloads and services have the same address range, {range}: \
                 choose different ranges with --workload-range and --service-range"
            ));
        };
        let hidden = |pair: &Self| routes.iter().find(|route| pair.hides(route));
        let Some(route) = hidden(&first) else { return Ok((first, None)) };
        Ok(match candidates.into_iter().find(|pair| hidden(pair).is_none()) {
            Some(free) => {
                let Self { workloads, services } = free;
                (
                    free,
                    Some(format!(
                        "this machine has a route to {route}: workloads have addresses of \
                         {workloads} and services of {services}, so that workloads can reach what \
                         is behind the route"
                    )),
                )
            }
            None => {
                let Self { workloads, services } = first;
                (
                    first,
                    Some(format!(
                        "this machine has a route to {route}: workloads cannot reach {workloads} \
                         and {services} behind it, which are the mesh's own addresses: choose \
                         others with --workload-range and --service-range"
                    )),
                )
            }
        })
    }

    /// The addresses of workloads. They exist only inside a mesh's own namespaces, so several meshes on a machine
    /// may use the same ones.
    #[must_use]
    pub fn workloads(self, ipv6: bool) -> Subnet {
        Subnet::new(self.workloads.0, ipv6.then_some(0xfd89))
    }

    /// The VIPs of services.
    #[must_use]
    pub fn services(self, ipv6: bool) -> Subnet {
        Subnet::new(self.services.0, ipv6.then_some(0xfd96))
    }

    /// The IPv4 VIPs of services.
    #[must_use]
    pub fn services_v4(self) -> MeshRange {
        self.services
    }

    fn hides(self, route: &MachineRoute) -> bool {
        [self.workloads, self.services].into_iter().any(|range| {
            let common = route.mask & MASK;
            u32::from(route.to) & common == u32::from(range.0) & common
        })
    }
}

impl MeshRange {
    const fn of([a, b]: [u8; 2]) -> Self {
        Self(Ipv4Addr::new(a, b, 0, 0))
    }
}

impl FromStr for MeshRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let written = text.strip_suffix("/16").and_then(|address| address.parse().ok());
        let whole = written.filter(|address: &Ipv4Addr| u32::from(*address) & !MASK == 0);
        let range = whole.ok_or_else(|| {
            format!(
                "{text:?} is not an address range: write for example \
                 10.89.0.0/16"
            )
        })?;
        // Only private ranges are allowed: proxies would otherwise treat addresses of the internet as addresses of
        // the mesh.
        let [a, b, ..] = range.octets();
        if range.is_private() || (a == 100 && b & 0xc0 == 64) {
            return Ok(Self(range));
        }
        Err(format!(
            "{text} is not private: choose a range in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or \
             100.64.0.0/10"
        ))
    }
}

impl fmt::Display for MeshRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{PREFIX}", self.0)
    }
}

impl MachineRoute {
    /// The routes of the namespace that the calling thread is in.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let text = fs::read_to_string(ROUTES).unwrap_or_default();
        text.lines().filter_map(Self::of_line).collect()
    }

    /// Parses a line of the file. Its fields are interface, destination, gateway, flags, two counters, metric and
    /// mask; addresses are numbers in this machine's byte order.
    fn of_line(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |field: usize| {
            let number = u32::from_str_radix(fields.get(field)?, 16).ok()?;
            Some(u32::from_be_bytes(number.to_ne_bytes()))
        };
        let (to, mask) = (Ipv4Addr::from(number(1)?), number(7)?);
        (mask != 0).then(|| Self { to, mask, interface: fields[0].to_owned() })
    }
}

impl fmt::Display for MachineRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} through {}", self.to, self.mask.leading_ones(), self.interface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn routes_are_read_the_default_route_aside() {
        let of = |to: &str, mask: &str| {
            let line = format!("tun0\t{to}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0");
            MachineRoute::of_line(&line).map(|route| route.to_string())
        };
        assert_eq!(of("0000000A", "000000FF").as_deref(), Some("10.0.0.0/8 through tun0"));
        assert_eq!(of("0005600A", "00FFFFFF").as_deref(), Some("10.96.5.0/24 through tun0"));
        assert_eq!(of("00000000", "00000000"), None);
        assert_eq!(of("Destination", "Mask"), None);
    }

    fn route(to: &str, prefix: u32) -> MachineRoute {
        MachineRoute {
            to: to.parse().unwrap(),
            mask: u32::MAX << (32 - prefix),
            interface: "tun0".into(),
        }
    }

    #[test]
    fn ranges_that_a_route_leads_to_are_left_out() {
        let chosen = |routes: &[MachineRoute]| MeshRanges::choose((None, None), routes).unwrap();
        let elsewhere = [route("10.8.0.0", 24), route("192.168.0.0", 16)];
        assert_eq!(chosen(&elsewhere), (MeshRanges::default(), None));
        let (ranges, note) = chosen(&[route("10.0.0.0", 8)]);
        assert_eq!(ranges, PAIRS[1]);
        assert_eq!(
            note.unwrap(),
            "this machine has a route to 10.0.0.0/8 through tun0: workloads have addresses of 172.29.0.0/16 and services of 172.30.0.0/16, so that workloads can reach what is behind the route"
        );
        // A range is skipped even if it overlaps a route only partly.
        let docker = [route("10.96.5.0", 24), route("172.30.0.0", 16)];
        assert_eq!(chosen(&docker).0, PAIRS[2]);
        let all = [route("10.0.0.0", 8), route("172.16.0.0", 12), route("100.64.0.0", 10)];
        let (ranges, note) = chosen(&all);
        assert_eq!(ranges, MeshRanges::default());
        assert_eq!(
            note.unwrap(),
            "this machine has a route to 10.0.0.0/8 through tun0: workloads cannot reach 10.89.0.0/16 and 10.96.0.0/16 behind it, which are the mesh's own addresses: choose others with \
             --workload-range and --service-range"
        );
    }

    #[test]
    fn ranges_that_are_asked_for_are_kept() {
        let range = |text: &str| text.parse::<MeshRange>();
        let workloads = range("192.168.0.0/16").unwrap();
        let (ranges, note) =
            MeshRanges::choose((Some(workloads), None), &[route("10.96.0.0", 16)]).unwrap();
        assert_eq!((ranges.workloads, ranges.services), (workloads, PAIRS[1].services));
        assert!(note.is_some());
        assert_eq!(
            MeshRanges::choose((Some(workloads), Some(workloads)), &[]),
            Err("workloads and services have the same address range, 192.168.0.0/16: choose different ranges with --workload-range and --service-range".to_owned())
        );
        for text in ["10.89.0.0", "10.89.1.0/16", "10.89.0.0/8", "fd89::/16"] {
            let expected = format!(
                "{text:?} is not an address range: write for example \
                 10.89.0.0/16"
            );
            assert_eq!(range(text), Err(expected));
        }
        assert_eq!(
            range("11.0.0.0/16"),
            Err("11.0.0.0/16 is not private: choose a range in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or \
                 100.64.0.0/10"
                .to_owned())
        );
    }
}
