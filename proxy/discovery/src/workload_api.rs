//! Certificates from a SPIFFE Workload API, such as SPIRE's, instead of from the control plane.
//!
//! ```text
//!   open the stream -> certificates -> that of this workload --published-----+
//!        ^                  ^                      |  none: logged           |
//!        |                  +----------------------+-------------------------+
//!        +--- wait, longer each time <--- the stream ended
//! ```
//! The server replaces certificates before they expire. While it does not respond, the last certificate stays in use.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use leno_spiffe::{Svid, Svids, WorkloadApiError};
use leno_types::{Identity, Revocations, WorkloadApiAddress};
use leno_wire::trust::FederatedRoots;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::certificate::Certificate;
use crate::identity::IdentityClient;

/// The first and the longest wait between attempts. They are short because the server is on this machine, and without
/// it there may be no certificate.
const WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(3));
/// How many certificates of other workloads an error names.
const MAX_NAMED: usize = 4;

/// Why no certificate in a response can be used for this workload.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Mismatch {
    #[error(
        "the Workload API at {address} issues {issued}, of another trust domain than this mesh ({expected}): register \
         {expected} for this proxy there"
    )]
    TrustDomain { address: WorkloadApiAddress, issued: String, expected: Identity },
    #[error(
        "the Workload API at {address} issues {issued}, which is not this workload's identity: register {expected} for \
         this proxy there"
    )]
    Identity { address: WorkloadApiAddress, issued: String, expected: Identity },
    #[error(
        "the Workload API at {0} has sent a certificate that has already expired: check the clocks"
    )]
    Ended(WorkloadApiAddress),
}

/// Keeps the certificate of `identity` up to date, for as long as the future is polled.
pub(crate) async fn follow(
    client: &IdentityClient,
    address: &WorkloadApiAddress,
    identity: &Identity,
) -> Infallible {
    let mut backoff = Backoff::new(WAITS.0, WAITS.1);
    loop {
        let error = take_all(client, (address, identity), &mut backoff).await;
        let wait = backoff.wait();
        let (cause, wait_ms) = (crate::chain(&error), wait.as_millis());
        tracing::warn!(error = cause, wait_ms, "no certificates; retrying");
        sleep(wait).await;
    }
}

/// Puts the certificates of one stream into use. Returns why the stream has ended.
async fn take_all(
    client: &IdentityClient,
    (address, identity): (&WorkloadApiAddress, &Identity),
    backoff: &mut Backoff,
) -> WorkloadApiError {
    let mut svids = match Svids::open(address).await {
        Ok(svids) => svids,
        Err(error) => return error,
    };
    loop {
        let all = match svids.next().await {
            Ok(all) => all,
            Err(error) => return error,
        };
        backoff.reset();
        match choose(all, (address, identity), SystemTime::now()) {
            Ok(certificate) => {
                let remaining = certificate.not_after.duration_since(SystemTime::now());
                let remaining_s = remaining.unwrap_or_default().as_secs();
                tracing::info!(remaining_s, "certificate taken from the Workload API");
                client.take(certificate);
            }
            // The server sends the right certificate once the workload is registered.
            Err(mismatch) => tracing::error!("{mismatch}"),
        }
    }
}

/// The certificate of this workload. A proxy may be registered under several identities, only one of which is in the
/// mesh.
fn choose(
    mut all: Vec<Svid>,
    (address, expected): (&WorkloadApiAddress, &Identity),
    now: SystemTime,
) -> Result<Certificate, Mismatch> {
    let is_own = |svid: &Svid| svid.id.parse::<Identity>().is_ok_and(|id| id == *expected);
    let Some(index) = all.iter().position(is_own) else {
        let (address, expected) = (address.clone(), expected.clone());
        let mesh = format!("spiffe://{}/", expected.trust_domain());
        let is_elsewhere = !all.iter().any(|svid| svid.id.starts_with(&mesh));
        let issued: Vec<String> = all.into_iter().take(MAX_NAMED).map(|svid| svid.id).collect();
        let issued = issued.join(", ");
        return Err(match is_elsewhere {
            true => Mismatch::TrustDomain { address, issued, expected },
            false => Mismatch::Identity { address, issued, expected },
        });
    };
    let Svid { chain_der, key_der, roots_der, not_after, .. } = all.swap_remove(index);
    if not_after <= now {
        return Err(Mismatch::Ended(address.clone()));
    }
    Ok(Certificate {
        chain_der,
        key_der,
        published_der: Vec::new(),
        lasting_der: roots_der,
        not_after,
        issuer: String::new(),
        revoked: Revocations::default(),
        federated: FederatedRoots::new(),
    })
}

#[cfg(test)]
mod tests {
    use leno_wire::Bytes;
    use leno_wire::trust::{TrustBundle, bundle_hash};

    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn svid(id: &str) -> Svid {
        Svid {
            id: id.to_owned(),
            chain_der: vec![id.as_bytes().to_vec()],
            key_der: b"key".to_vec(),
            roots_der: vec![b"theirs".to_vec()],
            not_after: NOW + Duration::from_secs(1),
        }
    }

    fn chosen(ids: &[&str]) -> Result<Certificate, String> {
        let address = "unix:///a".parse().unwrap();
        let expected = "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap();
        let all = ids.iter().map(|id| svid(id)).collect();
        choose(all, (&address, &expected), NOW).map_err(|mismatch| mismatch.to_string())
    }

    #[test]
    fn the_certificate_of_this_workload_is_chosen_and_what_is_issued_instead_is_named() {
        let own = "spiffe://cluster.local/ns/shop/sa/web";
        let other = "spiffe://cluster.local/ns/shop/sa/cart";
        let elsewhere = "spiffe://example.org/ns/shop/sa/web";
        let one = chosen(&[other, own]).unwrap();
        assert_eq!(one.chain_der, [own.as_bytes()]);
        let error = chosen(&[elsewhere]).unwrap_err();
        assert!(error.contains("another trust domain") && error.contains(elsewhere), "{error}");
        assert!(error.contains(&format!("register {own}")), "{error}");
        let error = chosen(&[elsewhere, other]).unwrap_err();
        assert!(error.contains("not this workload's identity") && error.contains(other), "{error}");
        let error = chosen(&["spiffe://cluster.local/web"]).unwrap_err();
        assert!(error.contains("not this workload's identity"), "{error}");
        let address = "unix:///a".parse().unwrap();
        let expected = own.parse().unwrap();
        let ended = choose(vec![svid(own)], (&address, &expected), NOW + Duration::from_secs(1));
        assert_eq!(ended, Err(Mismatch::Ended(address)));
    }

    #[test]
    fn its_roots_hold_beside_those_of_the_control_plane_and_no_rotation_waits_for_it() {
        let certificate = chosen(&["spiffe://cluster.local/ns/shop/sa/web"]).unwrap();
        let bundle = |roots: &[&'static [u8]], issuer: &str| TrustBundle {
            roots: roots.iter().map(|root| Bytes::from_static(root)).collect(),
            issuer: issuer.to_owned(),
            revoked: Revocations::default(),
            federated: FederatedRoots::new(),
        };
        let first = certificate.under(&bundle(&[b"ours", b"theirs"], "one"));
        assert_eq!(first.roots_der(), [b"theirs".as_slice(), b"ours"]);
        let second = bundle(&[b"next"], "two");
        let next = first.under(&second);
        assert_eq!(next.roots_der(), [b"theirs".as_slice(), b"next"]);
        assert!(!next.is_outdated(&second));
    }

    /// Regression: a rotation waited forever for such a proxy, because its roots never equalled those that the control
    /// plane had published.
    #[test]
    fn a_certificate_whose_workload_api_is_away_acknowledges_what_the_control_plane_publishes() {
        let certificate = chosen(&["spiffe://cluster.local/ns/shop/sa/web"]).unwrap();
        // The other authority has since replaced its root, and the control plane has published the new one.
        let roots = [Bytes::from_static(b"ours"), Bytes::from_static(b"their next")];
        let published = TrustBundle {
            roots: roots.to_vec(),
            issuer: "one".to_owned(),
            revoked: Revocations::default(),
            federated: FederatedRoots::new(),
        };
        let under = certificate.under(&published);
        assert_eq!(under.acknowledged(), (bundle_hash(&roots), "one".to_owned()));
        assert_eq!(under.roots_der(), [b"theirs".as_slice(), b"ours", b"their next"]);
    }
}
