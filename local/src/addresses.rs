//! The addresses of a mesh's instances and service VIPs. Each owner has one number, which gives its IPv4 and its
//! IPv6 address. Numbers are assigned in a fixed order and kept as long as the owner exists.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Highest number in a subnet: the last address of an IPv4 /16 is its broadcast address.
const MAX_NUMBER: u16 = u16::MAX - 1;

/// The addresses of one instance or service: one number in both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Addresses {
    /// IPv4.
    pub v4: Ipv4Addr,
    /// IPv6; `None` on a machine without IPv6.
    pub v6: Option<Ipv6Addr>,
}

/// A range of addresses: an IPv4 /16 and an IPv6 /64 side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    v4: Ipv4Addr,
    v6: Option<Ipv6Addr>,
}

/// The assigned number of each owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    taken: BTreeMap<(String, String), u16>,
    /// Where the search for the next number begins: a freed number is reused as late as possible, because clients may
    /// still use its address.
    next: u16,
}

impl Addresses {
    /// Each address, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        [Some(IpAddr::V4(self.v4)), self.v6.map(IpAddr::V6)].into_iter().flatten()
    }
}

impl Subnet {
    /// The IPv4 /16 that begins with `v4`, and the IPv6 /64 whose first 16 bits are `v6`.
    #[must_use]
    pub fn new(v4: Ipv4Addr, v6: Option<u16>) -> Self {
        Self { v4, v6: v6.map(|first| Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0)) }
    }

    /// The first address, which the bridge, the DNS server and the control plane use.
    #[must_use]
    pub fn gateway(&self) -> Addresses {
        self.addresses(1)
    }

    /// The addresses that have this number.
    #[must_use]
    pub fn addresses(&self, number: u16) -> Addresses {
        Addresses {
            v4: Ipv4Addr::from(u32::from(self.v4) | u32::from(number)),
            v6: self.v6.map(|base| Ipv6Addr::from(u128::from(base) | u128::from(number))),
        }
    }

    /// The number that these addresses have in this subnet.
    #[must_use]
    pub fn number_of(&self, addresses: &Addresses) -> u16 {
        let [_, _, high, low] = addresses.v4.octets();
        u16::from_be_bytes([high, low])
    }

    /// The number of an address; `None` if it is not in the range or not usable.
    #[must_use]
    pub fn number(&self, address: IpAddr) -> Option<u16> {
        let number = match (address, self.v6) {
            (IpAddr::V4(address), _) => {
                let offset = u32::from(address).checked_sub(u32::from(self.v4))?;
                u16::try_from(offset).ok()?
            }
            (IpAddr::V6(address), Some(base)) => {
                let offset = u128::from(address).checked_sub(u128::from(base))?;
                u16::try_from(offset).ok()?
            }
            (IpAddr::V6(_), None) => return None,
        };
        (1..=MAX_NUMBER).contains(&number).then_some(number)
    }

    /// Length of the IPv4 prefix.
    #[must_use]
    pub const fn v4_prefix(&self) -> u8 {
        16
    }

    /// Length of the IPv6 prefix.
    #[must_use]
    pub const fn v6_prefix(&self) -> u8 {
        64
    }
}

impl Allocation {
    /// Gives each name in `wanted` a number: the one it had, or else the next free one, in the order of the names.
    /// `reserved` numbers are never assigned. Numbers of names that are no longer wanted become free. `None` if the
    /// range is exhausted.
    #[must_use]
    pub fn assign(
        &self,
        wanted: impl IntoIterator<Item = (String, String)>,
        reserved: &[u16],
    ) -> Option<Self> {
        let mut wanted: Vec<_> = wanted.into_iter().collect();
        wanted.sort();
        wanted.dedup();
        let mut assigned = Self { taken: BTreeMap::new(), next: self.next };
        let mut used: std::collections::BTreeSet<u16> = reserved.iter().copied().collect();
        let mut missing = Vec::new();
        for owner in wanted {
            match self.taken.get(&owner).filter(|number| !used.contains(number)) {
                Some(number) => {
                    used.insert(*number);
                    assigned.taken.insert(owner, *number);
                }
                None => missing.push(owner),
            }
        }
        for owner in missing {
            let number = free_from(assigned.next, &used)?;
            used.insert(number);
            assigned.next = number.wrapping_add(1);
            assigned.taken.insert(owner, number);
        }
        Some(assigned)
    }

    /// The number of `owner`.
    #[must_use]
    pub fn number(&self, owner: &(String, String)) -> Option<u16> {
        self.taken.get(owner).copied()
    }
}

/// The first free number at or after `start`, wrapping around once.
fn free_from(start: u16, used: &std::collections::BTreeSet<u16>) -> Option<u16> {
    let in_order = (start..=MAX_NUMBER).chain(1..start.min(MAX_NUMBER));
    in_order.into_iter().find(|number| *number > 0 && !used.contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> (String, String) {
        ("shop".into(), name.into())
    }

    #[test]
    fn numbers_follow_the_names_not_the_order_of_the_file() {
        let one = Allocation::default().assign([owner("b"), owner("a")], &[1]).unwrap();
        let two = Allocation::default().assign([owner("a"), owner("b")], &[1]).unwrap();
        assert_eq!(one, two);
        assert_eq!(one.number(&owner("a")), Some(2));
        assert_eq!(one.number(&owner("b")), Some(3));
    }

    #[test]
    fn an_edit_moves_no_address_and_a_freed_number_rests() {
        let before = Allocation::default().assign([owner("b"), owner("c")], &[1]).unwrap();
        let after = before.assign([owner("a"), owner("c")], &[1]).unwrap();
        assert_eq!(after.number(&owner("c")), before.number(&owner("c")));
        assert_eq!(after.number(&owner("a")), Some(4));
        assert_eq!(after.number(&owner("b")), None);
    }

    #[test]
    fn a_number_that_becomes_reserved_is_given_up() {
        let before = Allocation::default().assign([owner("a")], &[]).unwrap();
        assert_eq!(before.number(&owner("a")), Some(1));
        let after = before.assign([owner("a")], &[1]).unwrap();
        assert_eq!(after.number(&owner("a")), Some(2));
    }

    #[test]
    fn the_range_has_an_end_and_goes_round() {
        let all: Vec<u16> = (1..MAX_NUMBER).collect();
        let last = Allocation::default().assign([owner("a")], &all).unwrap();
        assert_eq!(last.number(&owner("a")), Some(MAX_NUMBER));
        assert_eq!(last.assign([owner("a"), owner("b")], &all), None);
        let round = last.assign([owner("a"), owner("b")], &[]).unwrap();
        assert_eq!(round.number(&owner("b")), Some(1));
    }

    #[test]
    fn both_families_have_the_same_number() {
        let subnet = crate::ranges::MeshRanges::default().workloads(true);
        let addresses = subnet.addresses(258);
        assert_eq!(addresses.v4, Ipv4Addr::new(10, 89, 1, 2));
        assert_eq!(addresses.v6, Some("fd89::102".parse().unwrap()));
        for address in addresses.iter() {
            assert_eq!(subnet.number(address), Some(258));
        }
        assert_eq!(subnet.number("10.90.0.0".parse().unwrap()), None);
        assert_eq!(subnet.number("10.89.0.0".parse().unwrap()), None);
        assert_eq!(subnet.number("10.89.255.255".parse().unwrap()), None);
        assert_eq!(subnet.number("fd8a::1".parse().unwrap()), None);
    }
}
