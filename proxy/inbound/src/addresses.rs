//! Finds addresses of a client other than the address from which it connects.
//!
//! In a dual-stack mesh a workload connects over IPv4 or IPv6. Policies that name address blocks of the other family
//! need the client's address in that family, which discovery looks up.
//!
//! ```text
//! rules lack addresses ─► Asked ─┬─ a workload ───────────► all of its addresses
//!                                ├─ unknown to the mesh ──► the one that it connects from
//!                                └─ no answer, or a client with an identity of the mesh
//!                                   that discovery does not know yet ─► deny rules match
//! ```
#![expect(clippy::arithmetic_side_effects, reason = "a constant wait after an instant")]

use std::net::IpAddr;
use std::time::Duration;

use leno_discovery::Directory;
use leno_policy::authorization::OtherAddresses;
use leno_types::mesh::Resolution;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// The longest wait of a connection or request for the addresses of its client. Short enough that connections that a
/// changed policy denies end within a second.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a look-up that was refused, because there are too many, is not repeated.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// The other addresses of a client, looked up when policies need them.
#[derive(Debug, Default)]
pub(crate) enum Addresses {
    /// No policy has needed them yet.
    #[default]
    NotAsked,
    /// The look-up in discovery was started.
    Asked { answer: watch::Receiver<Resolution>, since: Instant },
    /// All addresses of the client; empty if the mesh does not know it. The addresses of an instance do not change.
    Known(Box<[IpAddr]>),
}

impl Addresses {
    /// The addresses in the form that policies use.
    pub(crate) fn others(&self) -> OtherAddresses<'_> {
        match self {
            Self::Known(known) => OtherAddresses::Known(known),
            Self::NotAsked | Self::Asked { .. } => OtherAddresses::Unknown,
        }
    }

    /// Starts the look-up for the client at `own`, or reads its answer. `is_workload` says that the client has proven
    /// an identity of the mesh. Returns whether the addresses are known now.
    pub(crate) fn find(&mut self, directory: &Directory, own: IpAddr, is_workload: bool) -> bool {
        if let Self::Asked { answer, since } = self
            && answer.has_changed().is_err()
            && *answer.borrow() == Resolution::Pending
            && since.elapsed() >= REFUSED_PAUSE
        {
            *self = Self::NotAsked;
        }
        if let Self::NotAsked = self {
            *self = Self::Asked { answer: directory.look_up(own), since: Instant::now() };
        }
        if let Self::Asked { answer, .. } = self {
            let Some(known) = known(answer, is_workload) else { return false };
            *self = Self::Known(known);
        }
        true
    }

    /// If the answer is pending, its receiver, and until when to wait for it. `None` if there is nothing to wait for.
    pub(crate) fn awaited(&self) -> Option<(watch::Receiver<Resolution>, Instant)> {
        let Self::Asked { answer, since } = self else { return None };
        let until = *since + ANSWER_TIMEOUT;
        (Instant::now() < until).then(|| (answer.clone(), until))
    }
}

/// Waits for a complete answer, at most until `until`.
pub(crate) async fn answered(
    (mut answer, until): (watch::Receiver<Resolution>, Instant),
    is_workload: bool,
) {
    let complete = async {
        while known(&answer, is_workload).is_none() {
            if answer.changed().await.is_err() {
                // The look-up was refused.
                return;
            }
        }
    };
    let _in_time = timeout_at(until, complete).await;
}

/// All addresses of a client; `None` if the answer may be incomplete.
fn known(answer: &watch::Receiver<Resolution>, is_workload: bool) -> Option<Box<[IpAddr]>> {
    // If the sender is gone, no other answer comes: the directory is fixed, or it has refused the look-up.
    let is_final = answer.has_changed().is_err();
    match &*answer.borrow() {
        Resolution::Workload(workload) => Some(workload.addresses.as_slice().into()),
        // Discovery may not know a workload yet that has just started.
        Resolution::Unknown if is_final || !is_workload => Some(Box::default()),
        // No client has the address of a service.
        Resolution::Unknown | Resolution::Pending | Resolution::Service(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leno_types::mesh::Workload;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn workload() -> Resolution {
        let name = "shop/web-0".parse().expect("a name");
        let addresses = vec![ip("10.1.0.1"), ip("fd00::1")];
        let (identity, ports, wire) = (None, Vec::new(), Default::default());
        Resolution::Workload(Arc::new(Workload { name, addresses, identity, ports, wire }))
    }

    #[test]
    fn only_an_answer_that_says_all_is_believed() {
        let (sender, answer) = watch::channel(Resolution::Pending);
        assert_eq!(known(&answer, false), None);
        sender.send_replace(Resolution::Unknown);
        assert_eq!(known(&answer, false), Some(Box::default()), "a client outside of the mesh");
        assert_eq!(known(&answer, true), None, "a workload that discovery does not know yet");
        sender.send_replace(workload());
        let all: Box<[IpAddr]> = [ip("10.1.0.1"), ip("fd00::1")].into();
        assert_eq!(known(&answer, true), Some(all));
    }

    #[test]
    fn a_fixed_directory_knows_all_that_there_is() {
        let directory = Directory::fixed(|_| Resolution::Unknown);
        let mut addresses = Addresses::default();
        assert_eq!(addresses.others(), OtherAddresses::Unknown);
        assert!(addresses.find(&directory, ip("fd00::1"), true));
        assert_eq!(addresses.others(), OtherAddresses::Known(&[]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_look_up_permits_nothing_and_is_repeated() {
        let refusing = Directory::fixed(|_| Resolution::Pending);
        let mut addresses = Addresses::default();
        assert!(!addresses.find(&refusing, ip("fd00::1"), false));
        let awaited = addresses.awaited().expect("a wait");
        answered(awaited, false).await;
        assert!(!addresses.find(&refusing, ip("fd00::1"), false));
        let answering = Directory::fixed(|_| workload());
        tokio::time::advance(REFUSED_PAUSE).await;
        assert!(addresses.find(&answering, ip("fd00::1"), false));
    }
}
