//! The stand-in address in a workload's network namespace: the source address of the proxy's
//! connections to its application (`leno_types::source`).
//!
//! It is a local route and not an address of an interface. So a proxy can bind it, answers to it stay in the
//! namespace, the kernel drops packets with this source from other machines (as martians), and programs that list
//! interfaces do not show it. When the workload is released, the route stays, because open connections of the
//! proxy use it. It ends with the namespace.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use leno_types::source::{PLACEHOLDERS_V6, STAND_IN_V4, STAND_IN_V6};
use leno_types::{Datagrams, ports};
use rtnetlink::packet_route::route::{RouteMessage, RouteScope, RouteType};
use rtnetlink::packet_route::rule::RuleAction;
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};

use crate::command::inside;
use crate::error::Error;

/// `lo` has this index in every network namespace (LOOPBACK_IFINDEX).
const LOOPBACK: u32 = 1;
/// The number of the routing table that the kernel searches first (RT_TABLE_LOCAL). It also decides whether an
/// address can be bound.
const LOCAL_TABLE: u32 = 255;
/// The number of the routing table for the placeholders, and the priority of the rule that leads to it. It is the
/// same as that of the proxy's outbound port.
const PLACEHOLDER_TABLE: u32 = ports::OUTBOUND as u32;
/// This file contains 1 if IPv6 is disabled in the namespace. It is missing if the kernel has no IPv6.
const NO_IPV6: &str = "/proc/sys/net/ipv6/conf/lo/disable_ipv6";

/// Routes the stand-in addresses to `lo` in this namespace, and also the IPv6 placeholders if datagrams are captured.
/// Succeeds if the routes exist. The IPv4 placeholders are loopback addresses and need no route.
pub(crate) fn route(netns: &Path, datagrams: Datagrams) -> Result<(), Error> {
    inside(netns, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(Error::io("start a runtime for netlink"))?;
        runtime.block_on(async {
            let (connection, netlink, _) =
                rtnetlink::new_connection().map_err(Error::io("open a netlink socket"))?;
            // The task ends with the runtime.
            tokio::spawn(connection);
            add_routes(&netlink, datagrams).await.map_err(|error| {
                Error::io("route the stand-in address to lo")(std::io::Error::other(error))
            })
        })
    })
}

async fn add_routes(netlink: &Handle, datagrams: Datagrams) -> Result<(), rtnetlink::Error> {
    // The route needs lo to be up, and container runtimes may only bring it up after they have created the pod's
    // network.
    netlink.link().set(LinkUnspec::new_with_index(LOOPBACK).up().build()).execute().await?;
    add(netlink, v4()).await?;
    match fs::read_to_string(NO_IPV6) {
        Ok(disabled) if disabled.trim() == "0" => {
            if datagrams.is_on() {
                add_placeholders(netlink).await?;
            }
            add(netlink, v6((STAND_IN_V6, 128), LOCAL_TABLE)).await
        }
        _ => Ok(()),
    }
}

async fn add(netlink: &Handle, route: RouteMessage) -> Result<(), rtnetlink::Error> {
    unless_there(netlink.route().add(route).execute().await)
}

/// Routes the IPv6 placeholders to `lo`, but only for packets that this namespace sends. Otherwise the proxy would
/// receive packets from elsewhere as if its workload had sent them.
async fn add_placeholders(netlink: &Handle) -> Result<(), rtnetlink::Error> {
    add(netlink, v6(PLACEHOLDERS_V6, PLACEHOLDER_TABLE)).await?;
    let rule = netlink.rule().add().input_interface("lo").table_id(PLACEHOLDER_TABLE);
    let rule = rule.priority(PLACEHOLDER_TABLE).action(RuleAction::ToTable).v6();
    unless_there(rule.execute().await)
}

fn unless_there(added: Result<(), rtnetlink::Error>) -> Result<(), rtnetlink::Error> {
    match added {
        Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -nix::libc::EEXIST => {
            Ok(())
        }
        other => other,
    }
}

fn v4() -> RouteMessage {
    RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(STAND_IN_V4, 32)
        .kind(RouteType::Local)
        .scope(RouteScope::Host)
        .table_id(LOCAL_TABLE)
        .output_interface(LOOPBACK)
        .build()
}

fn v6((address, length): (Ipv6Addr, u8), table: u32) -> RouteMessage {
    RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(address, length)
        .kind(RouteType::Local)
        .table_id(table)
        .output_interface(LOOPBACK)
        .build()
}
