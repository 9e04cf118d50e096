//! The network of a mesh: one bridge in a separate network namespace, and a veth pair to every instance.
//!
//! Because of the separate namespace, the host's interfaces, routes and firewall are not changed.
//! [`crate::uplink`] adds a way out if the user requests it.
//!
//! Instances share no link. The bridge forwards no frame from one port to another (its ports are isolated), learns
//! no hardware addresses, and does not flood unicast frames. An instance has a route only to the gateway, which
//! routes its packets to other instances by static entries. So an instance can neither answer for the address of
//! another one nor send a frame to it (docs/decisions/189-isolated-ports.md). Packets whose source address is not
//! the instance's own are dropped at its port of the bridge (docs/decisions/197-sources.md).
//!
//! ```text
//!  leno-<mesh>                      leno-<mesh>.<ns>.web-0
//!  ┌───────────────────────┐        ┌──────────────────────┐
//!  │ bridge leno0   v2 ────┼────────┼─ eth0  10.89.0.2     │
//!  │ 10.89.0.1  fd89::1    │        │        fd89::2       │
//!  │ routes between ports  │        │ all by 10.89.0.1     │
//!  └───────────────────────┘        └──────────────────────┘
//! ```

mod sources;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use futures_util::TryStreamExt;
use leno_types::ports;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::packet_route::neighbour::{NeighbourFlags, NeighbourState};
use rtnetlink::packet_route::route::{RouteMessage, RouteScope, RouteType};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute};
use rtnetlink::{
    Handle, LinkBridge, LinkBridgePort, LinkMessageBuilder, LinkUnspec, LinkVeth,
    RouteMessageBuilder,
};

use crate::addresses::{Addresses, Subnet};
use crate::error::{Attempt, Error, Result};
use crate::netns::Netns;

use sources::Sources;

/// The bridge's name in its namespace.
pub(crate) const BRIDGE: &str = "leno0";
/// An instance's interface in its namespace.
const INTERFACE: &str = "eth0";
/// The range of local ports of outgoing connections. It is nearly all ports, because captured connections have few
/// different destinations and need many local ports. Ports below 10000 are left out, because programs usually
/// listen there.
const LOCAL_PORTS: (u16, u16) = (10_000, 65_535);

/// The bridge with its namespace.
#[derive(Debug)]
pub struct Switch {
    netns: Netns,
    subnet: Subnet,
    netlink: Handle,
    bridge: u32,
    sources: Sources,
    /// The task that drives the netlink socket. It ends when the switch is dropped.
    connection: tokio::task::JoinHandle<()>,
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Switch {
    /// Creates the bridge in `netns`, with the gateway's addresses.
    ///
    /// # Errors
    /// When the kernel refuses a link, an address or a setting.
    pub async fn create(netns: Netns, subnet: Subnet) -> Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        let (connection, netlink, _) = netns.within(|| {
            prepare_settings(&[])?;
            prepare_forwarding()?;
            let _context = runtime.enter();
            rtnetlink::new_connection().attempt(|| "cannot open a netlink socket".into())
        })?;
        let connection = tokio::spawn(connection);
        let hardware = hardware_address(subnet.number_of(&subnet.gateway()));
        let message = LinkBridge::new(BRIDGE).mcast_snooping(false).address(hardware).up().build();
        let what = || format!("cannot create bridge {BRIDGE} in {}", netns.name());
        netlink.link().add(message).execute().await.attempt(what)?;
        let bridge = link_index(&netlink, BRIDGE).await?;
        // Drops packets of an instance whose source is an address of the gateway or outside of the mesh (RFC 3704).
        netns.within(|| write_setting(&format!("net/ipv4/conf/{BRIDGE}/rp_filter"), "1"))?;
        check_ipv6_sources(&netlink, &subnet).await?;
        set_up_loopback(&netlink).await?;
        add_addresses(&netlink, bridge, &subnet.gateway()).await?;
        for route in refusing_routes(&subnet) {
            let what = || "cannot add the route for unassigned addresses".to_owned();
            netlink.route().add(route).execute().await.attempt(what)?;
        }
        let sources = Sources::new(&netns)?;
        Ok(Self { netns, subnet, netlink, bridge, sources, connection })
    }

    /// A note for the operator about a protection that this kernel does not support, if there is one.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.sources.refused.as_deref()
    }

    /// The namespace of the bridge.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The addresses of workloads.
    #[must_use]
    pub fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// A netlink handle for the links, addresses and routes of the bridge's namespace.
    pub(crate) fn netlink(&self) -> &Handle {
        &self.netlink
    }

    /// Connects an instance's namespace to the bridge, and sets up its interface, addresses, default route and
    /// settings. The instance's `listening` ports are excluded from the local ports of outgoing connections.
    ///
    /// # Errors
    /// When the kernel refuses a link, an address, a route or a setting.
    pub async fn connect(
        &self,
        instance: &Netns,
        addresses: &Addresses,
        listening: &[u16],
    ) -> Result<()> {
        let subnet = &self.subnet;
        let port = port_name(subnet, addresses);
        let runtime = tokio::runtime::Handle::current();
        let (connection, netlink, _) = instance.within(|| {
            prepare_settings(listening)?;
            let _context = runtime.enter();
            rtnetlink::new_connection().attempt(|| "cannot open a netlink socket".into())
        })?;
        let connection = tokio::spawn(connection);
        let hardware = hardware_address(subnet.number_of(addresses));
        let linked = async {
            let interface = self.link(instance, &netlink, (&port, addresses), &hardware).await?;
            self.lead_to(addresses, &hardware).await?;
            configure(&netlink, interface, addresses, &subnet.gateway()).await
        };
        let result = linked.await;
        connection.abort();
        result
    }

    /// Removes an instance's link at once. The kernel would remove the link later, together with the namespace,
    /// but the next instance needs the same name and addresses. Succeeds if the link does not exist.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub async fn disconnect(&self, addresses: &Addresses) -> Result<()> {
        let port = port_name(&self.subnet, addresses);
        let message = LinkUnspec::new_with_name(&port).build();
        let removed = match self.netlink.link().del_with_message(message).execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ENODEV => {
                Ok(())
            }
            other => other.attempt(|| format!("cannot remove link {port}")),
        };
        self.sources.forget(&port);
        removed
    }

    /// Creates the veth pair with one end in each namespace, and sets both up.
    async fn link(
        &self,
        instance: &Netns,
        netlink: &Handle,
        (port, addresses): (&str, &Addresses),
        hardware: &[u8],
    ) -> Result<u32> {
        let peer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(port)
            .setns_by_fd(self.netns.as_fd().as_raw_fd())
            .build();
        let pair = LinkVeth::new(INTERFACE, port)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .address(hardware.to_vec())
            .up()
            .build();
        let what = || format!("cannot link {} to the bridge", instance.name());
        netlink.link().add(pair).execute().await.attempt(what)?;
        self.isolate((port, addresses), hardware).await?;
        link_index(netlink, INTERFACE).await
    }

    /// Attaches a port to the bridge, so isolated that it exchanges frames only with the bridge itself, then
    /// enables it.
    async fn isolate(&self, (port, addresses): (&str, &Addresses), hardware: &[u8]) -> Result<()> {
        let what = || format!("cannot make {port} an isolated port of the bridge");
        let index = link_index(&self.netlink, port).await?;
        let member = LinkUnspec::new_with_index(index).controller(self.bridge).build();
        self.netlink.link().set(member).execute().await.attempt(what)?;
        // Without learning, an instance cannot attract another one's frames by using its hardware address. Without
        // flooding, frames to an instance that no longer exists do not reach other instances.
        let isolated = LinkBridgePort::new(index).isolated(true).learning(false).flood(false);
        self.netlink.link().change(isolated.build()).execute().await.attempt(what)?;
        let entry = self.netlink.neighbours().add_bridge(index, hardware);
        // Equivalent to `bridge fdb add ADDRESS dev PORT master static`.
        let entry = entry.flags(NeighbourFlags::Controller).state(NeighbourState::Noarp);
        entry.replace().execute().await.attempt(what)?;
        self.sources.check(&self.netns, port, addresses)?;
        // The port is enabled last, so that it passes no frame before it is isolated.
        let up = LinkUnspec::new_with_index(index).up().build();
        self.netlink.link().set(up).execute().await.attempt(what)
    }

    /// Adds the routes to an instance's addresses on the gateway, and static neighbour entries, which ARP and
    /// neighbour discovery do not change. Both stay when the instance ends. So a client that connects while the
    /// next instance of that address is created waits instead of failing, and no other instance receives its
    /// packets.
    async fn lead_to(&self, addresses: &Addresses, hardware: &[u8]) -> Result<()> {
        for address in addresses.iter() {
            let what = || format!("cannot add the route to {address}");
            let neighbour = self.netlink.neighbours().add(self.bridge, address);
            let neighbour = neighbour.link_layer_address(hardware).replace();
            neighbour.execute().await.attempt(what)?;
            let route = direct_route(address, self.bridge);
            self.netlink.route().add(route).replace().execute().await.attempt(what)?;
        }
        Ok(())
    }
}

/// The name of the bridge's end of an instance's veth pair. It contains the instance's number in the subnet,
/// because the instance's name may exceed the 15 characters of an interface name.
pub(crate) fn port_name(subnet: &Subnet, addresses: &Addresses) -> String {
    format!("v{}", subnet.number_of(addresses))
}

/// The hardware address for a number. It is the same after a restart of the instance. Otherwise clients would have
/// the old address in their neighbour tables for many seconds, and not reach it. The first octet marks it as
/// locally administered (IEEE 802c).
fn hardware_address(number: u16) -> Vec<u8> {
    let [high, low] = number.to_be_bytes();
    vec![0x02, b'l', b'e', b'n', high, low]
}

async fn configure(
    netlink: &Handle,
    interface: u32,
    addresses: &Addresses,
    gateway: &Addresses,
) -> Result<()> {
    set_up_loopback(netlink).await?;
    add_addresses(netlink, interface, addresses).await?;
    let direct = gateway.iter().map(|address| direct_route(address, interface));
    for route in direct.chain(default_routes(gateway, interface)) {
        let what = || "cannot add the default route".to_owned();
        netlink.route().add(route).execute().await.attempt(what)?;
    }
    Ok(())
}

/// A route that reaches one address directly over an interface.
fn direct_route(address: IpAddr, interface: u32) -> RouteMessage {
    match address {
        IpAddr::V4(address) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(address, 32)
            .scope(RouteScope::Link)
            .output_interface(interface)
            .build(),
        IpAddr::V6(address) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(address, 128)
            .output_interface(interface)
            .build(),
    }
}

/// The routes to all other addresses through the gateway.
fn default_routes(gateway: &Addresses, interface: u32) -> impl Iterator<Item = RouteMessage> {
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway.v4);
    let v4 = v4.output_interface(interface).build();
    let v6 = gateway.v6.map(|gateway| {
        let route = RouteMessageBuilder::<Ipv6Addr>::new().gateway(gateway);
        route.output_interface(interface).build()
    });
    std::iter::once(v4).chain(v6)
}

/// Makes the gateway drop IPv6 packets from instances if their source is the gateway's address or an address
/// outside of the mesh. IPv4 uses `rp_filter` for this, which IPv6 does not have. Packets to the gateway itself
/// are not routed, so link-local addresses still reach it.
async fn check_ipv6_sources(netlink: &Handle, subnet: &Subnet) -> Result<()> {
    /// The priority of the kernel's rule for the main routing table.
    const MAIN: u32 = 32_766;
    let (gateway, all) = (subnet.gateway().v6, subnet.addresses(0).v6);
    let Some((gateway, all)) = gateway.zip(all) else { return Ok(()) };
    let rule = |priority: u32| {
        let rule = netlink.rule().add().v6().input_interface(BRIDGE).priority(priority);
        // An error reply would go to the forged address.
        rule.action(RuleAction::Blackhole)
    };
    let own = rule(1).source_prefix(gateway, 128);
    let mut inside = rule(2).source_prefix(all, subnet.v6_prefix()).action(RuleAction::Goto);
    inside.message_mut().attributes.push(RuleAttribute::Goto(MAIN));
    let outside = rule(3);
    for rule in [own, inside, outside] {
        let what = || "cannot add the rule against forged IPv6 source addresses".to_owned();
        rule.execute().await.attempt(what)?;
    }
    Ok(())
}

/// Routes for addresses of the subnet that no instance has. Connections to these are refused at once instead of
/// being sent to the uplink.
fn refusing_routes(subnet: &Subnet) -> impl Iterator<Item = RouteMessage> {
    let all = subnet.addresses(0);
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().kind(RouteType::Unreachable);
    let v4 = v4.destination_prefix(all.v4, subnet.v4_prefix()).build();
    let v6 = all.v6.map(|all| {
        let route = RouteMessageBuilder::<Ipv6Addr>::new().kind(RouteType::Unreachable);
        route.destination_prefix(all, subnet.v6_prefix()).build()
    });
    std::iter::once(v4).chain(v6)
}

async fn add_addresses(netlink: &Handle, interface: u32, addresses: &Addresses) -> Result<()> {
    for address in addresses.iter() {
        let prefix = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        let what = || format!("cannot add address {address}");
        let mut request = netlink.address().add(interface, address, prefix);
        if address.is_ipv6() {
            // Without this flag, a new address is tentative and cannot be bound until a kernel worker has
            // processed it, even if duplicate address detection is off.
            let flags = AddressAttribute::Flags(AddressFlags::Nodad);
            request.message_mut().attributes.push(flags);
        }
        request.execute().await.attempt(what)?;
    }
    Ok(())
}

async fn set_up_loopback(netlink: &Handle) -> Result<()> {
    let what = || "cannot set lo up".to_owned();
    let message = LinkUnspec::new_with_name("lo").up().build();
    netlink.link().set(message).execute().await.attempt(what)
}

pub(crate) async fn link_index(netlink: &Handle, name: &str) -> Result<u32> {
    let what = || format!("cannot find interface {name}");
    let mut links = Box::pin(netlink.link().get().match_name(name).execute());
    let found = links.try_next().await.attempt(what)?;
    found.map(|link| link.header.index).ok_or_else(|| Error::Refused(what()))
}

/// Writes the settings of an instance's namespace. The calling thread must be inside the namespace, which must not
/// have an interface yet.
fn prepare_settings(listening: &[u16]) -> Result<()> {
    let mesh_ports = [ports::OUTBOUND, ports::INBOUND, ports::HBONE, ports::ADMIN];
    let reserved = mesh_ports.iter().chain(listening).map(u16::to_string);
    let reserved = reserved.collect::<Vec<_>>().join(",");
    write_setting("net/ipv4/ip_local_reserved_ports", &reserved)?;
    let (low, high) = LOCAL_PORTS;
    write_setting("net/ipv4/ip_local_port_range", &format!("{low} {high}"))?;
    // Applications need no root for ports below 1024 or for ping, because no other program uses the namespace.
    write_setting("net/ipv4/ip_unprivileged_port_start", "0")?;
    write_setting("net/ipv4/ping_group_range", "0 2147483647")?;
    // When a listener closes, the kernel moves its pending connections to another listener of the same port (Linux
    // 5.14). The next process of a proxy has such a listener.
    write_setting("net/ipv4/tcp_migrate_req", "1")?;
    // Addresses are unique, so duplicate address detection is off (RFC 4862 section 5.4). It would make IPv6 unusable
    // for the first second.
    for scope in ["all", "default"] {
        // If IPv6 is disabled on the machine, new namespaces may inherit that (net.core.devconf_inherit_init_net).
        // Inside the mesh it is enabled if the kernel supports it.
        write_setting(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "0")?;
        write_setting(&format!("net/ipv6/conf/{scope}/accept_dad"), "0")?;
        write_setting(&format!("net/ipv6/conf/{scope}/dad_transmits"), "0")?;
        write_setting(&format!("net/ipv6/conf/{scope}/accept_ra"), "0")?;
        // All packets must go through the gateway. The gateway sends IPv6 redirects, which the kernel cannot
        // disable, and applications could forge redirects, so instances ignore them.
        write_setting(&format!("net/ipv6/conf/{scope}/accept_redirects"), "0")?;
        write_setting(&format!("net/ipv4/conf/{scope}/accept_redirects"), "0")?;
    }
    // Random link-local addresses (IN6_ADDR_GEN_MODE_RANDOM, Linux 4.5). If they were derived from the hardware
    // address, other instances could compute them from the instance's number.
    write_setting("net/ipv6/conf/default/addr_gen_mode", "3")
}

/// Writes the settings of the bridge's namespace, which routes between the bridge's ports.
fn prepare_forwarding() -> Result<()> {
    // With forwarding on and no uplink, packets out of the mesh are refused at once instead of being dropped.
    write_setting("net/ipv4/ip_forward", "1")?;
    write_setting("net/ipv6/conf/all/forwarding", "1")?;
    // A hundred ICMP errors a second for each instance. With IPv6's default of one a second, most connections to
    // addresses without an instance would only time out. Without a limit, an instance could make the gateway send
    // another instance an error for each forged packet. IPv4 has an additional kernel limit: a burst of five, then
    // one a second.
    write_setting("net/ipv4/icmp_ratelimit", "10")?;
    write_setting("net/ipv6/icmp/ratelimit", "10")?;
    for scope in ["all", "default"] {
        // Packets between instances leave by the interface on which they arrived, so the kernel would send
        // redirects, but there is no shorter path.
        write_setting(&format!("net/ipv4/conf/{scope}/send_redirects"), "0")?;
    }
    Ok(())
}

/// Writes one `/proc/sys` file. A file that this kernel does not have is skipped.
fn write_setting(name: &str, value: &str) -> Result<()> {
    let path = Path::new("/proc/sys").join(name);
    match fs::write(&path, value) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.attempt(|| format!("cannot write {value:?} to {}", path.display())),
    }
}

/// Whether this machine has IPv6 at all.
#[must_use]
pub fn has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}
