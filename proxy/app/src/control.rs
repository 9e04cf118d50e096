//! Setup with a control plane, which provides identity, services and policy.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use leno_discovery::{
    Certificate, CertificateFiles, CertificateSource, Client, Directory, Settings,
};
use leno_tls::{Credentials, CredentialsError, FederatedRoots, Keyring};
use leno_types::{Identity, InstanceName, TrustDomain};
use leno_wire::Bytes;
use tokio::sync::watch;
use tokio::task::spawn_local;

use crate::config::Flags;
use crate::setup::{IdentityState, Setup};

/// How long to wait, once there are a certificate and a policy, for the services that other workloads of the same
/// identity use. This workload will probably use them, too.
const PREFETCH_WAIT: Duration = Duration::from_secs(1);

/// Starts to request a certificate and to follow discovery. Must be called on the control thread. `pod_uid` is the
/// UID of the instance's pod, if the token belongs to a node proxy, which requests certificates for several pods.
pub(crate) fn setup(flags: &Flags, pod_uid: Option<String>) -> anyhow::Result<Setup> {
    // The parser requires each of these options.
    let given = |option: &'static str| format!("--{option} is missing");
    let name = flags.name.as_deref().with_context(|| given("name"))?;
    let instance = InstanceName::new(&flags.namespace, name)?;
    let trust_domain = TrustDomain::new(&flags.trust_domain)?;
    let (mut client, directory) = Client::new(Settings {
        control: flags.control.clone().with_context(|| given("control"))?,
        roots: flags.roots.clone().with_context(|| given("roots"))?,
        certificates: certificates(flags, &trust_domain)?,
        instance: instance.clone(),
        pod_uid,
        trust_domain,
    });
    let application_identity = match flags.workload_api {
        Some(_) => Some(client.application().context("--workload-api needs --token")?),
        None => None,
    };
    let keyring = Keyring::new();
    let identity = watch::Sender::new(IdentityState::default());
    let identity_seen = identity.subscribe();
    let directory_used = directory.clone();
    spawn_local(follow(client.certificates(), keyring.clone(), identity, directory_used));
    spawn_local(async move { match client.run().await {} });
    let setup = Setup::new(flags, instance, directory, (keyring, identity_seen))?;
    Ok(Setup { application_identity, ..setup })
}

fn certificates(flags: &Flags, trust_domain: &TrustDomain) -> anyhow::Result<CertificateSource> {
    if let Some(address) = &flags.spiffe_endpoint_socket {
        let (namespace, account) = (&flags.namespace, &flags.service_account);
        let identity = Identity::new(trust_domain.clone(), namespace, account)?;
        return Ok(CertificateSource::WorkloadApi(address.clone(), identity));
    }
    let token = flags.token.clone().context("--token is missing")?;
    let (Some(credentials), Some(roots)) = (&flags.certificate, &flags.certificate_roots) else {
        return Ok(CertificateSource::Token(token));
    };
    let identity = Identity::new(trust_domain.clone(), &flags.namespace, &flags.service_account)?;
    let (credentials, roots) = (credentials.clone(), roots.clone());
    Ok(CertificateSource::Files(CertificateFiles { credentials, roots, identity }, token))
}

/// Returns when there are a certificate and a policy, and the prefetched services have arrived or [`PREFETCH_WAIT`]
/// has passed.
pub(crate) async fn until_usable(setup: &Setup) {
    until_given(setup.keyring.watch(), setup.policy.clone(), setup.directory.prefetched()).await;
}

/// Waits until there is a keyring and a policy, and then for services, up to [`PREFETCH_WAIT`].
async fn until_given<K, P>(
    mut keyring: watch::Receiver<Option<K>>,
    mut policy: watch::Receiver<Option<P>>,
    prefetched: impl Future<Output = ()>,
) {
    // `wait_for` fails only if the sender was dropped, but both senders live as long as the process. Its result holds
    // the lock of the value. A sender on this thread would deadlock on that lock, so the result is dropped before the
    // next await.
    drop(keyring.wait_for(Option::is_some).await);
    drop(policy.wait_for(Option::is_some).await);
    // If the services are missing, only the first calls of the workload are slower, so a longer wait is not justified.
    let _late = tokio::time::timeout(PREFETCH_WAIT, prefetched).await;
}

/// Puts each issued certificate into use, and tells discovery when one is in use. An unusable certificate is only
/// logged. Returns when the discovery client, which requests the certificates, ends.
async fn follow(
    mut certificates: watch::Receiver<Option<Arc<Certificate>>>,
    keyring: Keyring,
    identity: watch::Sender<IdentityState>,
    directory: Directory,
) {
    while certificates.changed().await.is_ok() {
        let certificate = certificates.borrow_and_update().clone();
        let Some(certificate) = certificate else { continue };
        match put_into_use(&certificate, &keyring) {
            Ok(state) => {
                identity.send_replace(state);
                directory.uses(&certificate);
            }
            Err(error) => {
                tracing::error!(%error, "the issued certificate cannot be used");
            }
        }
    }
}

fn federated(certificate: &Certificate) -> FederatedRoots {
    let domains = certificate.federated.iter();
    let der = |roots: &[Bytes]| roots.iter().map(|root| root.to_vec().into()).collect();
    domains.map(|(domain, roots)| (domain.clone(), der(roots))).collect()
}

fn put_into_use(
    certificate: &Certificate,
    keyring: &Keyring,
) -> Result<IdentityState, CredentialsError> {
    let der = |list: Vec<Vec<u8>>| list.into_iter().map(Into::into).collect();
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(certificate.key_der.clone());
    let credentials = Credentials::from_der(
        der(certificate.chain_der.clone()),
        key.into(),
        der(certificate.roots_der()),
    )?
    .with_revoked(certificate.revoked.clone())
    .with_federated(federated(certificate));
    let state = IdentityState::of(&credentials);
    keyring.rotate(credentials)?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the proxy hung forever, and its pod was never ready. The waiting task held the lock of a watch
    /// channel, for which a sender on the same thread waited.
    #[tokio::test]
    async fn a_policy_and_a_certificate_that_change_while_services_are_prefetched_are_taken() {
        let (keyring, mut of_keyring) = watch::channel(Some(1));
        let (policy, mut of_policy) = watch::channel(Some(1));
        let prefetched = async {
            keyring.send_replace(Some(2));
            policy.send_replace(Some(2));
        };
        until_given(keyring.subscribe(), policy.subscribe(), prefetched).await;
        assert_eq!(
            (*of_keyring.borrow_and_update(), *of_policy.borrow_and_update()),
            (Some(2), Some(2))
        );
    }
}
