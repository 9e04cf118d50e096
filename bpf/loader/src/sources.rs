//! The program that drops what a workload sends from an address that is not its own.
//!
//! It is at the outer end of the workload's interface, which the workload cannot reach. Its link is not pinned: who has made the
//! interface holds it.

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

/// Checks the sources of one interface until it is dropped, or the interface is gone.
#[derive(Debug)]
pub struct SourceCheck {
    /// `None`: a filter, which stays with its interface (before Linux 6.6).
    _link: Option<RawLink>,
}

impl SourceCheck {
    /// Begins, at a new interface of this thread's network namespace, with the addresses of the workload at its other end.
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

    /// Whether the kernel takes the program, and has it at an interface: for a moment at the loopback interface of this thread's
    /// network namespace, whose own packets pass. A kernel may take it and lack what it is attached by.
    ///
    /// # Errors
    /// Why it does not.
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

/// Attaches the program by a link, or by a filter where the kernel has none.
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
