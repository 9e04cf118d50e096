//! Rows of requests that proxies have counted. They are kept in a kernel map, so that they outlive processes; no
//! program writes them.

use std::path::Path;

use leno_bpf_abi::flow::{FlowRequestKey, FlowRequests};
use libbpf_rs::MapHandle;

use super::{Flows, Maps, delete, update};
use crate::batch;
use crate::error::Error;

impl Flows {
    /// The rows of requests; none if the pins are of a version without such rows.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn requests(&self) -> Result<Vec<(FlowRequestKey, FlowRequests)>, Error> {
        let mut all = Vec::new();
        if !crate::pins::map_path(&self.directory, "requests").exists() {
            return Ok(all);
        }
        batch::for_each(
            &opened(&self.directory)?,
            "read the requests of proxies",
            |key, value| {
                all.extend(FlowRequestKey::from_bytes(key).zip(FlowRequests::from_bytes(value)));
            },
        )?;
        Ok(all)
    }

    /// Writes a row of requests, or replaces the one with this key.
    ///
    /// # Errors
    /// If the kernel refuses, for example because the map is full.
    pub fn set_requests(&self, key: &FlowRequestKey, row: &FlowRequests) -> Result<(), Error> {
        let action = "keep the requests of a proxy";
        update(&opened(&self.directory)?, &key.to_bytes(), &row.to_bytes(), action)
    }

    /// Removes a row of requests, if it is there.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove_requests(&self, key: &FlowRequestKey) -> Result<(), Error> {
        let action = "remove the requests of a proxy";
        delete(&opened(&self.directory)?, &key.to_bytes(), action)
    }
}

fn opened(directory: &Path) -> Result<MapHandle, Error> {
    Maps::open_one(directory, "requests")
}
