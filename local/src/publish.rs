//! Serves published ports: distributes connections to each port over the instances of a workload that take
//! traffic.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::forward::{self, ForwardTarget};
use crate::output::LineOutput;

/// The published addresses, with the instances behind each.
pub type PublishedPorts = BTreeMap<SocketAddr, Vec<ForwardTarget>>;

/// The listeners of all published ports of a mesh.
#[derive(Debug)]
pub struct Publisher {
    output: LineOutput,
    ports: BTreeMap<SocketAddr, Port>,
}

#[derive(Debug)]
struct Port {
    targets: watch::Sender<Vec<ForwardTarget>>,
    task: JoinHandle<()>,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Publisher {
    /// Creates a publisher without listeners; errors are printed on `output`.
    #[must_use]
    pub fn new(output: LineOutput) -> Self {
        Self { output, ports: BTreeMap::new() }
    }

    /// Listens on exactly the `wanted` addresses, and closes all other listeners.
    ///
    /// # Errors
    /// The first address on which it cannot listen, with the reason. The other addresses are published anyway.
    pub async fn listen(&mut self, wanted: &PublishedPorts) -> Result<(), (SocketAddr, Error)> {
        self.ports.retain(|address, _| wanted.contains_key(address));
        let mut failed = Ok(());
        for address in wanted.keys() {
            if self.ports.contains_key(address) {
                continue;
            }
            match forward::bind(*address).await {
                Ok(listener) => {
                    let (targets, behind) = watch::channel(Vec::new());
                    let (address, output) = (*address, self.output.clone());
                    let turn = Rc::new(Cell::new(0));
                    let next = move || next(&behind.borrow(), &turn, address);
                    let report = move |text: String| output.say(&text);
                    let task = tokio::task::spawn_local(forward::serve(listener, next, report));
                    self.ports.insert(address, Port { targets, task });
                }
                Err(error) => failed = failed.and(Err((*address, error))),
            }
        }
        failed
    }

    /// Updates which instances get the connections to each address.
    pub fn follow(&self, published: &PublishedPorts) {
        for (address, port) in &self.ports {
            let targets = published.get(address).cloned().unwrap_or_default();
            port.targets.send_if_modified(|now| {
                let changed = *now != targets;
                *now = targets;
                changed
            });
        }
    }
}

fn next(
    targets: &[ForwardTarget],
    turn: &Cell<usize>,
    address: SocketAddr,
) -> Result<ForwardTarget> {
    if targets.is_empty() {
        return Err(Error::Refused(format!(
            "a connection to {address} was closed, because no instance is ready"
        )));
    }
    let number = turn.get();
    turn.set(number.wrapping_add(1));
    Ok(targets[number % targets.len()].clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_take_turns() {
        let target = |number: u8| ForwardTarget {
            instance: format!("shop/web-{number}"),
            netns: String::new(),
            addresses: Vec::new(),
            port: 80,
        };
        let (turn, address) = (Cell::new(0), SocketAddr::from(([127, 0, 0, 1], 8080)));
        let two = [target(0), target(1)];
        let chosen: Vec<String> =
            (0..3).map(|_| next(&two, &turn, address).unwrap().instance).collect();
        assert_eq!(chosen, ["shop/web-0", "shop/web-1", "shop/web-0"]);
        assert_eq!(
            next(&[], &turn, address).unwrap_err().to_string(),
            "a connection to 127.0.0.1:8080 was closed, because no instance is ready"
        );
    }
}
