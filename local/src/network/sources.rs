//! Drops packets whose source address is not that of the instance that sends them. The check is at the instance's
//! port of the bridge.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use leno_bpf::SourceCheck;

use crate::addresses::Addresses;
use crate::error::{Error, Result};
use crate::netns::Netns;

/// The source checks of all ports of the bridge.
#[derive(Debug)]
pub(super) struct Sources {
    /// The check of each port, by the port's name. The size of the subnet bounds their number.
    checked: Mutex<HashMap<String, SourceCheck>>,
    /// Why this kernel does not support the checks.
    pub(super) refused: Option<String>,
}

impl Sources {
    /// Prepares the checks for ports in the bridge's namespace.
    pub(super) fn new(bridge: &Netns) -> Result<Self> {
        let refused = bridge.within(|| Ok(SourceCheck::try_it().err()))?;
        let refused = refused.map(|error| {
            format!(
                "an instance can send packets with the address of another one, because the kernel \
                 cannot check source addresses: {}",
                leno_program::chain(&error)
            )
        });
        Ok(Self { checked: Mutex::default(), refused })
    }

    /// Attaches a check to a new port, which only allows these addresses.
    pub(super) fn check(&self, bridge: &Netns, port: &str, of: &Addresses) -> Result<()> {
        if self.refused.is_some() {
            return Ok(());
        }
        let check = bridge.within(|| {
            SourceCheck::attach(port, of.v4, of.v6).map_err(|error| {
                let what = format!(
                    "cannot make port {port} drop packets with other source \
                     addresses"
                );
                Error::Os { what, source: std::io::Error::other(error) }
            })
        })?;
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.insert(port.to_owned(), check);
        Ok(())
    }

    /// Ends the check of a port that is removed.
    pub(super) fn forget(&self, port: &str) {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner).remove(port);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::netns;

    /// More programs than an interface accepts: 64 by links, and one by this filter.
    const MANY: usize = 128;

    /// An interface that already has its maximum number of programs rejects another one, as a kernel without
    /// program links does.
    #[test]
    fn a_kernel_that_attaches_no_program_is_noted_and_ports_are_made_all_the_same() {
        if !nix::unistd::geteuid().is_root() {
            let require = std::env::var("LENO_REQUIRE").unwrap_or_default();
            assert!(!require.contains("root"), "needs root");
            eprintln!("skipped: needs root");
            return;
        }
        let name = format!("leno-sources-{}", std::process::id());
        let bridge = Netns::create(&name).unwrap();
        let attach = || bridge.within(|| Ok(SourceCheck::attach("lo", Ipv4Addr::LOCALHOST, None)));
        assert_eq!(Sources::new(&bridge).unwrap().refused, None);
        let full: Vec<_> = (0..MANY).map_while(|_| attach().unwrap().ok()).collect();
        let of_full = Sources::new(&bridge).unwrap();
        let addresses = Addresses { v4: Ipv4Addr::new(10, 89, 0, 2), v6: None };
        let checked = of_full.check(&bridge, "lo", &addresses);
        netns::remove(&name).unwrap();
        checked.unwrap();
        assert!((1..MANY).contains(&full.len()), "{}", full.len());
        assert!(of_full.refused.unwrap().contains("the kernel cannot check source addresses"));
    }
}
