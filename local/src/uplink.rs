//! The uplink of a mesh: a veth pair between the switch and the namespace in which leno runs.
//!
//! ```text
//!  leno-<mesh>                               where leno was started
//!  ┌────────────────────────────────┐        ┌───────────────────────────────────────────┐
//!  │ leno0 ── masquerade ── uplink ─┼────────┼─ leno-1f2e3d4c ── masquerade ── its routes │
//!  │            169.254.96.2/30     │        │  169.254.96.1/30                           │
//!  └────────────────────────────────┘        └───────────────────────────────────────────┘
//! ```
//!
//! In the namespace in which leno was started, the uplink adds only that interface and one nftables table of the
//! same name, and enables `net.ipv4.ip_forward` if it is off. All of it is undone at the end. Forwarding, and the
//! settings that the kernel changes with it, are restored by the last mesh that needs them. IPv6 is only routed
//! out if the machine forwards it already. If IPv6 forwarding were enabled, the kernel would ignore the router
//! advertisements that the machine's own address may depend on.

mod forwarding;
mod home_namespace;
mod machine;

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};

use futures_util::TryStreamExt;
use nix::fcntl::{Flock, FlockArg};
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};
use serde::{Deserialize, Serialize};

use crate::addresses::Subnet;
use crate::error::{Attempt, Error, Result};
use crate::layout;
use crate::network::{BRIDGE, Switch, link_index};
use crate::record::{self, MeshRecord, MeshResource};

use forwarding::ForwardingBefore;
use home_namespace::HomeNamespace;

/// The prefix of the names of the interface and the table where leno was started; eight hexadecimal digits follow.
const PREFIX: &str = "leno-";
/// The interface's name in the namespace of the switch.
const INTERFACE: &str = "uplink";
/// The range of the pairs' IPv4 addresses. It is link-local (RFC 3927), so no route of the machine leads there.
const RANGE: Ipv4Addr = Ipv4Addr::new(169, 254, 96, 0);
/// The range of the pairs' IPv6 addresses (RFC 4193).
const RANGE_V6: Ipv6Addr = Ipv6Addr::new(0xfd89, 0x7570, 0x6c69, 0x6e6b, 0, 0, 0, 0);
/// How many pairs of addresses the range has: it is a /20, and each pair takes four addresses.
const PAIRS: u32 = 1024;
/// The prefix lengths of a pair, IPv4 and IPv6.
const PREFIXES: (u8, u8) = (30, 126);

/// An uplink, as it is in the record of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// The name of the interface and of the table in the namespace in which leno was started.
    name: String,
    /// The namespace in which leno was started.
    home: HomeNamespace,
    /// The settings before the first mesh enabled forwarding. The last mesh restores them.
    before: Option<ForwardingBefore>,
}

/// The result of creating an uplink.
#[derive(Debug)]
pub struct UplinkState {
    /// Whether IPv6 is routed out as well.
    pub ipv6: bool,
    /// Notes for the operator, one per line.
    pub notes: Vec<String>,
}

impl Uplink {
    /// The name of the interface and of the table in the namespace in which leno was started.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The addresses of the two ends of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LinkEnds {
    /// The addresses of the end in the namespace in which leno was started.
    near: (Ipv4Addr, Option<Ipv6Addr>),
    /// The addresses of the end in the bridge's namespace.
    far: (Ipv4Addr, Option<Ipv6Addr>),
}

/// Creates the uplink of a mesh, from the namespace of the calling thread. What is created is recorded first.
///
/// # Errors
/// When the kernel refuses a link, an address or a route; when `nft` is missing or fails; when an interface or a table
/// of this name exists already; or when forwarding cannot be enabled.
pub async fn make(switch: &Switch, mesh: &str, record: &mut MeshRecord) -> Result<UplinkState> {
    let _turn = turn()?;
    let home = HomeNamespace::of_thread()?;
    let name = name_of(mesh);
    let opened = rtnetlink::new_connection().attempt(|| "cannot open a netlink socket".into());
    let (connection, near, _) = opened?;
    let connection = tokio::spawn(connection);
    // If the interface or table exists, it must not be recorded, because it belongs to another mesh. Two
    // containers may share a network but not their files, and each may run a mesh of this name.
    let tables = machine::tables().await?;
    if tables.contains(&name) || link_index(&near, &name).await.is_ok() {
        return Err(taken(mesh, &name));
    }
    let before = match forwarding::is_on()? {
        false => Some(ForwardingBefore::read()?),
        true => inherited(&name, home, &tables),
    };
    let ipv6 = machine::forwards_ipv6() && machine::has_ipv6_route();
    record.add(MeshResource::Uplink(Uplink { name: name.clone(), home, before }))?;
    let laid = lay(switch, &near, (&name, mesh), ipv6).await;
    connection.abort();
    let ends = laid?;
    machine::nft(Some(switch.netns()), &inside_rules(switch.subnet())).await?;
    machine::nft(None, &outside_rules(&name, &ends)).await?;
    forwarding::switch_on()?;
    let mut notes = vec![format!("workloads reach other networks through interface {name}")];
    notes.extend(machine::firewall().await.map(|chain| refused_by(&chain, &name)));
    if machine::has_ipv6_route() && !ipv6 {
        let off = "workloads cannot reach other networks over IPv6, because this machine does not \
                   forward it: set net.ipv6.conf.all.forwarding=1";
        notes.push(off.to_owned());
    }
    Ok(UplinkState { ipv6, notes })
}

/// The settings that another mesh found before it enabled forwarding. This mesh needs them, in case it ends last.
fn inherited(
    name: &str,
    home: HomeNamespace,
    tables: &BTreeSet<String>,
) -> Option<ForwardingBefore> {
    let others = record::uplinks(name).into_iter();
    let mut here = others.filter(|other| other.home == home && tables.contains(&other.name));
    here.find_map(|other| other.before)
}

fn taken(mesh: &str, name: &str) -> Error {
    Error::Refused(format!(
        "interface or table {name} exists already: another container that shares this network runs \
         a mesh named {mesh:?} with --uplink, so choose another name with --name; if there is no \
         such mesh: nft delete table inet {name}; ip link delete {name}"
    ))
}

/// Removes an uplink. Succeeds if the uplink or its namespace does not exist. After an error it still removes the rest.
///
/// # Errors
/// When the kernel or `nft` refuses; the first reason.
pub fn remove(uplink: &Uplink) -> Result<()> {
    let _turn = turn()?;
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.attempt(|| "cannot start the runtime".to_owned())?;
        runtime.block_on(async {
            let closed = close(uplink).await;
            closed.and(unlink(&uplink.name).await)
        })
    };
    uplink.home.within(work).map(|_found| ())
}

/// Restores forwarding, then removes the table. The table is created after everything else, so if it is missing,
/// this mesh has not changed forwarding.
async fn close(uplink: &Uplink) -> Result<()> {
    let tables = match machine::tables().await {
        Ok(tables) => tables,
        // If `nft` is missing now, the table was probably never created, because `nft` creates it.
        Err(error) if machine::is_missing(&error) => {
            tracing::warn!(table = uplink.name, "{}", error.chain());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if !tables.contains(&uplink.name) {
        return Ok(());
    }
    // Each mesh creates and removes its table under a lock, but not its record. So the tables show which other
    // meshes use forwarding.
    let is_last = !tables.iter().any(|table| *table != uplink.name && is_ours(table));
    if is_last && let Some(before) = &uplink.before {
        before.restore()?;
    }
    machine::nft(None, &format!("delete table inet {}\n", uplink.name)).await
}

/// Takes a lock under which meshes choose free addresses and determine which one is the last. The lock is released
/// when the file is dropped, also when the process ends.
fn turn() -> Result<Flock<File>> {
    let what = || format!("cannot lock {}", layout::ROOT);
    let file = File::open(layout::ROOT).attempt(what)?;
    // The process that holds the lock releases it after a few commands, which have a time limit.
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno).attempt(what)
}

/// The name of a mesh's interface and table. An interface name has at most 15 characters, so the name of a mesh
/// may not fit. The result is always the same for a mesh, so that firewall rules can refer to it.
fn name_of(mesh: &str) -> String {
    format!("{PREFIX}{:08x}", digest(mesh))
}

/// Whether a table has a name of the form that [`name_of`] makes.
fn is_ours(table: &str) -> bool {
    let digits = table.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == 8 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// The FNV-1a hash.
fn digest(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Creates the links, their addresses and the routes of an uplink.
async fn lay(
    switch: &Switch,
    near: &Handle,
    (name, mesh): (&str, &str),
    ipv6: bool,
) -> Result<LinkEnds> {
    let what = || format!("cannot make interface {name}");
    let peer = LinkMessageBuilder::<LinkUnspec>::new()
        .name(INTERFACE)
        .setns_by_fd(switch.netns().as_fd().as_raw_fd())
        .build();
    let pair =
        LinkVeth::new(name, INTERFACE).set_info_data(InfoData::Veth(InfoVeth::Peer(peer))).up();
    near.link().add(pair.build()).execute().await.attempt(what)?;
    let far = switch.netlink();
    let member = LinkUnspec::new_with_name(INTERFACE).up().build();
    far.link().set(member).execute().await.attempt(what)?;
    let taken: BTreeSet<u32> = addresses(near).await?.into_iter().map(u32::from).collect();
    let ends = LinkEnds::free(digest(mesh), &taken, ipv6).ok_or_else(|| {
        Error::Refused(format!("all of {RANGE}/20 is in use: no address is left for {name}"))
    })?;
    let (near_index, far_index) =
        (link_index(near, name).await?, link_index(far, INTERFACE).await?);
    for (netlink, index, addresses) in [(near, near_index, ends.near), (far, far_index, ends.far)] {
        let (v4, v6) = addresses;
        let both = [Some((IpAddr::V4(v4), PREFIXES.0)), v6.map(|v6| (v6.into(), PREFIXES.1))];
        for (address, prefix) in both.into_iter().flatten() {
            let mut request = netlink.address().add(index, address, prefix);
            if address.is_ipv6() {
                let flags = AddressAttribute::Flags(AddressFlags::Nodad);
                request.message_mut().attributes.push(flags);
            }
            request.execute().await.attempt(|| format!("cannot add address {address}"))?;
        }
    }
    let (v4, v6) = ends.near;
    let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(v4).output_interface(far_index);
    let what = || "cannot add the default route".to_owned();
    far.route().add(route.build()).execute().await.attempt(what)?;
    if let Some(v6) = v6 {
        let route = RouteMessageBuilder::<Ipv6Addr>::new().gateway(v6).output_interface(far_index);
        far.route().add(route.build()).execute().await.attempt(what)?;
    }
    Ok(ends)
}

/// The IPv4 addresses in a namespace.
async fn addresses(netlink: &Handle) -> Result<Vec<Ipv4Addr>> {
    let mut found = Vec::new();
    let mut all = Box::pin(netlink.address().get().execute());
    while let Some(message) = all.try_next().await.attempt(|| "cannot list addresses".to_owned())? {
        found.extend(message.attributes.iter().filter_map(|attribute| match attribute {
            AddressAttribute::Address(IpAddr::V4(address)) => Some(*address),
            _ => None,
        }));
    }
    Ok(found)
}

async fn unlink(name: &str) -> Result<()> {
    let what = || format!("cannot remove interface {name}");
    let (connection, netlink, _) = rtnetlink::new_connection().attempt(what)?;
    let connection = tokio::spawn(connection);
    let message = LinkUnspec::new_with_name(name).build();
    let removed = netlink.link().del_with_message(message).execute().await;
    connection.abort();
    match removed {
        Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ENODEV => Ok(()),
        other => other.attempt(what),
    }
}

/// The rules inside the mesh. Instances leave the mesh with one common address, because the machine has no route
/// to their own addresses, which other meshes use as well. Packets between instances pass through these rules,
/// too. They are excluded from connection tracking, which would take time for each packet and could fill its
/// table.
fn inside_rules(subnet: &Subnet) -> String {
    let all = subnet.addresses(0);
    let within = |direction: &str| {
        let v4 = format!(
            "    {direction} {BRIDGE} ip daddr {}/{} notrack\n",
            all.v4,
            subnet.v4_prefix()
        );
        let v6 = all.v6.map(|all| {
            format!("    {direction} {BRIDGE} ip6 daddr {all}/{} notrack\n", subnet.v6_prefix())
        });
        v4 + &v6.unwrap_or_default()
    };
    format!(
        "table inet {INTERFACE} {{
  chain within {{
    type filter hook prerouting priority raw; policy accept;
{}  }}
  chain own {{
    type filter hook output priority raw; policy accept;
{}  }}
  chain out {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname {INTERFACE} masquerade
  }}
}}
",
        within("iifname"),
        within("oifname"),
    )
}

/// The rules where leno was started. Outgoing traffic gets the machine's own addresses, and new connections from
/// outside are dropped.
fn outside_rules(name: &str, ends: &LinkEnds) -> String {
    let (v4, v6) = ends.far;
    let v6 = v6.map(|v6| format!("    oifname != \"{name}\" ip6 saddr {v6} masquerade\n"));
    let v6 = v6.unwrap_or_default();
    format!(
        "table inet {name} {{
  chain in {{
    type filter hook forward priority filter; policy accept;
    oifname \"{name}\" ct state != {{ established, related }} drop
  }}
  chain out {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname != \"{name}\" ip saddr {v4} masquerade
{v6}  }}
}}
"
    )
}

fn refused_by(chain: &str, name: &str) -> String {
    format!(
        "the firewall of this machine drops forwarded packets by default ({chain}); to let the \
         mesh out: iptables -I FORWARD -i {name} -j ACCEPT; iptables -I FORWARD -o {name} -m \
         conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
    )
}

impl LinkEnds {
    /// The first pair, from number `start` on, whose addresses are not `taken`.
    fn free(start: u32, taken: &BTreeSet<u32>, ipv6: bool) -> Option<Self> {
        let free = |pair: &u32| {
            let first = u32::from(RANGE) + pair * 4;
            taken.range(first..first + 4).next().is_none()
        };
        let pair = (0..PAIRS).map(|offset| start.wrapping_add(offset) % PAIRS).find(free)?;
        let end = |number: u32| {
            let v6 = u128::from(RANGE_V6) + u128::from(pair * 4 + number);
            let v6 = ipv6.then(|| Ipv6Addr::from(v6));
            (Ipv4Addr::from(u32::from(RANGE) + pair * 4 + number), v6)
        };
        Some(Self { near: end(1), far: end(2) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_a_name_that_the_kernel_takes() {
        let (long, other) = ("m".repeat(32), "default");
        assert!(name_of(&long).len() <= 15);
        assert_ne!(name_of(&long), name_of(other));
        assert_eq!(name_of("default"), name_of(other));
        assert!(is_ours(&name_of(other)));
        assert!(!is_ours("leno-capture") && !is_ours("filter"));
    }

    #[test]
    fn a_pair_that_is_taken_is_passed_over() {
        let first = LinkEnds::free(5, &BTreeSet::new(), true).unwrap();
        assert_eq!(first.near.0, Ipv4Addr::new(169, 254, 96, 21));
        assert_eq!(first.far.0, Ipv4Addr::new(169, 254, 96, 22));
        assert_eq!(first.near.1.unwrap().to_string(), "fd89:7570:6c69:6e6b::15");
        let taken = BTreeSet::from([u32::from(first.far.0)]);
        let second = LinkEnds::free(5, &taken, false).unwrap();
        assert_eq!(second.near, (Ipv4Addr::new(169, 254, 96, 25), None));
        let last = LinkEnds::free(PAIRS - 1, &BTreeSet::new(), false).unwrap();
        assert_eq!(last.far.0, Ipv4Addr::new(169, 254, 111, 254));
        let all = (0..PAIRS).map(|pair| u32::from(RANGE) + pair * 4 + 1).collect();
        assert_eq!(LinkEnds::free(0, &all, true), None);
    }
}
