//! Attaches the program that drops frames that a workload sends from an address that is not its own.
//!
//! It is attached to the outer end of the workload's interface, which the workload cannot change. The link is not
//! pinned: the process that has created the interface holds it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, BorrowedFd};

use libbpf_rs::Object;

use crate::error::Error;
use crate::flows::{RawLink, index_of, link_to_sent, put_source_filter, remove_source_filter};
use crate::{features, object};

/// The compiled program.
pub(crate) const SOURCES_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sources.bpf.o"));
const ACTION: &str = "check the sources of an interface";

/// The check of one interface's sources; it ends when this is dropped, or when the interface is removed.
#[derive(Debug)]
pub struct SourceCheck {
    /// `None` on kernels before Linux 6.6: a filter, which stays as long as the interface.
    _link: Option<RawLink>,
}

impl SourceCheck {
    /// Attaches the check to a new interface of this thread's network namespace. The arguments are the addresses of the
    /// workload at the other end.
    ///
    /// # Errors
    /// The kernel refuses the program or its attachment, or there is no such interface.
    pub fn attach(interface: &str, v4: Ipv4Addr, v6: Option<Ipv6Addr>) -> Result<Self, Error> {
        let object = load(v4, v6)?;
        let program = object.progs().next().expect("the object has one program");
        let index = index_of(interface).map_err(Error::io(ACTION))?;
        let link = put(program.as_fd(), index).map_err(Error::io(ACTION))?;
        Ok(Self { _link: link })
    }

    /// Tests whether the kernel accepts the program, and can attach it to an interface: for a moment to the loopback
    /// interface of this thread's network namespace, whose own packets pass. A kernel may accept the program but not
    /// have the hook.
    ///
    /// # Errors
    /// Why the kernel does not.
    pub fn try_it() -> Result<(), Error> {
        let object = load(Ipv4Addr::LOCALHOST, Some(Ipv6Addr::LOCALHOST))?;
        let program = object.progs().next().expect("the object has one program");
        let tried = index_of("lo").and_then(|index| match put(program.as_fd(), index)? {
            Some(_link) => Ok(()),
            None => remove_source_filter(program.as_fd(), index),
        });
        tried.map_err(Error::io(ACTION))
    }
}

/// Attaches the program by a link, or by a filter if the kernel has no such links.
fn put(program: BorrowedFd<'_>, interface: u32) -> io::Result<Option<RawLink>> {
    match features::has_tcx() {
        true => link_to_sent(program, interface).map(Some),
        false => put_source_filter(program, interface).map(|()| None),
    }
}

/// Loads the program for these addresses.
pub(crate) fn load(v4: Ipv4Addr, v6: Option<Ipv6Addr>) -> Result<Object, Error> {
    let mut object = object::open(SOURCES_OBJECT)?;
    let v6 = v6.unwrap_or(Ipv6Addr::UNSPECIFIED).octets();
    object::configure(&mut object, &[&v6[..], &v4.octets()].concat())?;
    object::verify(object)
}
