//! Reads the addresses in a workload's network namespace, and the interface whose outer end is on this machine.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use futures_util::TryStreamExt as _;
use leno_bpf::Error;
use leno_bpf::flows::WorkloadInterface;
use rtnetlink::packet_route::address::{AddressAttribute, AddressScope};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::{Handle, new_connection};

/// The file of this process's own namespace.
const OWN: &str = "/proc/self/ns/net";
/// The interface that CNI gives a pod. Further interfaces belong to other networks.
const FIRST: &str = "eth0";

/// The addresses and the interface of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// The addresses of its interfaces, except loopback and link-local ones.
    pub addresses: Vec<IpAddr>,
    /// The outer end of the namespace's interface, in the namespace of this process; `None` if it does not exist.
    pub port: Option<WorkloadInterface>,
}

impl Namespace {
    /// Reads the addresses and the interface from the kernel.
    ///
    /// # Errors
    /// If the namespace cannot be entered, or the kernel refuses.
    pub fn read(netns: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Io { action: format!("read {}", netns.display()), source };
        let file = File::open(netns).map_err(failed)?;
        let (addresses, ends) =
            leno_bpf::within(&file, || asked(inside)).and_then(|read| read).map_err(failed)?;
        let name = match ends {
            Some(ends) => asked(async |netlink| name_of(&netlink, ends).await).map_err(failed)?,
            None => None,
        };
        let port = name.map(|name| WorkloadInterface { netns: PathBuf::from(OWN), name });
        Ok(Self { addresses, port })
    }
}

/// Sends a request to the kernel from this thread, which decides the namespace.
fn asked<T>(ask: impl AsyncFnOnce(Handle) -> io::Result<T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let (connection, netlink, _) = new_connection()?;
        // The task ends with the runtime.
        tokio::spawn(connection);
        ask(netlink).await
    })
}

/// An interface in the workload's namespace and its other end, each by its index in its own namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InterfaceEnds {
    inner: u32,
    outer: u32,
}

/// The addresses in this namespace, and both ends of its interface.
async fn inside(netlink: Handle) -> io::Result<(Vec<IpAddr>, Option<InterfaceEnds>)> {
    let mut addresses = Vec::new();
    let mut all = netlink.address().get().execute();
    while let Some(message) = all.try_next().await.map_err(io::Error::other)? {
        if message.header.scope == AddressScope::Universe {
            addresses.extend(message.attributes.iter().find_map(|one| match one {
                AddressAttribute::Address(ip) => Some(*ip),
                _ => None,
            }));
        }
    }
    let links: Vec<LinkMessage> =
        netlink.link().get().execute().try_collect().await.map_err(io::Error::other)?;
    let is_first = |link: &&LinkMessage| name(link) == Some(FIRST);
    let ends = |link: &LinkMessage| {
        other_end(link).map(|outer| InterfaceEnds { inner: link.header.index, outer })
    };
    let first = links.iter().find(is_first).and_then(ends);
    Ok((addresses, first.or_else(|| links.iter().find_map(ends))))
}

/// The name of the outer end, if it is in this namespace. It is only accepted if its other end is the inner one:
/// the outer end may be in a third namespace, and this namespace may have another interface with the same index.
async fn name_of(netlink: &Handle, ends: InterfaceEnds) -> io::Result<Option<String>> {
    match netlink.link().get().match_index(ends.outer).execute().try_next().await {
        Ok(link) => {
            let link = link.filter(|link| other_end(link) == Some(ends.inner));
            Ok(link.as_ref().and_then(name).map(ToOwned::to_owned))
        }
        // ENODEV: there is no such interface here.
        Err(rtnetlink::Error::NetlinkError(_)) => Ok(None),
        Err(error) => Err(io::Error::other(error)),
    }
}

fn name(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|one| match one {
        LinkAttribute::IfName(name) => Some(&**name),
        _ => None,
    })
}

/// The index of the other end in another namespace.
fn other_end(link: &LinkMessage) -> Option<u32> {
    let in_another = |one: &LinkAttribute| matches!(one, LinkAttribute::LinkNetNsId(_));
    link.attributes.iter().find(|one| in_another(one))?;
    link.attributes.iter().find_map(|one| match one {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    })
}
