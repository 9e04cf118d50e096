//! The targets of routes, which are ports of services, identified by name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};

use leno_discovery::Directory;
use leno_types::ServiceName;

use crate::Worker;
use crate::destination::Destination;

/// The targets of all routes of a worker. Routes share them, with their pools and estimates. A target is dropped when
/// the last route that uses it is dropped.
#[derive(Debug)]
pub(crate) struct Targets {
    directory: Directory,
    known: RefCell<HashMap<(ServiceName, u16), Weak<Destination>>>,
}

impl Targets {
    pub(crate) fn new(directory: Directory) -> Self {
        Self { directory, known: RefCell::default() }
    }

    /// A port of a service. The first use starts a watch in discovery.
    pub(crate) fn get(
        &self,
        shared: &Rc<Worker>,
        name: &ServiceName,
        port: u16,
    ) -> Rc<Destination> {
        let key = (name.clone(), port);
        if let Some(known) = self.known.borrow().get(&key).and_then(Weak::upgrade) {
            return known;
        }
        let resolution = self.directory.watch_service(name);
        let target = Rc::new(Destination::of_route(port, resolution, Rc::clone(shared)));
        let mut known = self.known.borrow_mut();
        known.retain(|_, target| target.strong_count() > 0);
        known.insert(key, Rc::downgrade(&target));
        target
    }
}
