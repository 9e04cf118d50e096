//! The client of the control plane: gets a certificate, then uses discovery, and reconnects whenever a connection is
//! lost.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::application::ApplicationIdentity;
use crate::backoff::Backoff;
use crate::certificate::Certificate;
use crate::connection;
use crate::directory::{Directory, Live};
use crate::identity::IdentityClient;
use crate::leases::{self, Leases, Questions};
use crate::settings::{CertificateSource, Settings};
use crate::stream;

/// The first wait after the stream was lost. It is short because a control plane that restarts is back within a second.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait between attempts. The last state stays in use meanwhile. But once the control plane is back,
/// endpoints may be replaced within seconds, and until a proxy reconnects it dials removed ones.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The proxy's client of its control plane.
#[derive(Debug)]
pub struct Client {
    settings: Arc<Settings>,
    live: Arc<Live>,
    identity: IdentityClient,
    application: Option<ApplicationIdentity>,
    questions: Questions,
}

impl Client {
    /// A client, and the directory that it fills. The client does nothing before [`Client::run`].
    #[must_use]
    pub fn new(settings: Settings) -> (Self, Directory) {
        let settings = Arc::new(settings);
        let (leases, questions) = Leases::new();
        let (directory, live) = Directory::live(settings.instance.clone(), leases);
        let identity = IdentityClient::new(Arc::clone(&settings));
        (Self { settings, live, identity, application: None, questions }, directory)
    }

    /// The certificate in use. `None` until the first certificate was issued.
    #[must_use]
    pub fn certificates(&self) -> watch::Receiver<Option<Arc<Certificate>>> {
        self.identity.certificates()
    }

    /// Certificates for the application, with the same identity and another key. This client requests them once the
    /// application makes its first call. `None` if the proxy has no token with which to request them.
    pub fn application(&mut self) -> Option<ApplicationIdentity> {
        let token = self.settings.certificates.token()?.clone();
        let certificates = CertificateSource::Token(token);
        let settings = Arc::new(Settings { certificates, ..Settings::clone(&self.settings) });
        let application = ApplicationIdentity::new(IdentityClient::new(settings));
        self.application = Some(application.clone());
        Some(application)
    }

    /// Gets a certificate and renews it, and keeps the directory up to date. The proxy's control thread runs this. It
    /// never ends by itself. Dropping the future ends it; the directory keeps its state.
    pub async fn run(self) -> Infallible {
        let Self { settings, live, identity, application, questions } = self;
        let certificates = identity.certificates();
        let of_application = async {
            match &application {
                // In a box, because few proxies have one.
                Some(application) => Box::pin(application.run()).await,
                None => std::future::pending().await,
            }
        };
        let identities = application.iter().map(ApplicationIdentity::identity).chain([&identity]);
        let identities: Vec<_> = identities.collect();
        tokio::select! {
            never = identity.clone().run() => never,
            never = of_application => never,
            never = discover(&settings, &live, &identity) => never,
            never = trust(&live, &identities) => never,
            never = leases::run(&settings, questions, certificates) => never,
        }
    }
}

/// Puts every trust bundle that the control plane sends into use. Roots also come with each certificate, and the newest
/// roots are used, because a control plane that cannot be reached for discovery may still issue certificates.
async fn trust(live: &Live, identities: &[&IdentityClient]) -> Infallible {
    let mut bundles = live.trust();
    loop {
        // The sender lives as long as `live`.
        let _ended = bundles.changed().await;
        let bundle = bundles.borrow_and_update().clone();
        if let Some(bundle) = bundle {
            identities.iter().for_each(|identity| identity.trust(&bundle));
        }
    }
}

async fn discover(settings: &Settings, live: &Live, identity: &IdentityClient) -> Infallible {
    let mut certificates = identity.certificates();
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    let mut next = None;
    loop {
        let waited = certificates.wait_for(Option::is_some).await.map(|issued| issued.clone());
        let Ok(certificate) = waited else {
            // This cannot happen: the identity client owns the sender, and it never ends.
            return std::future::pending().await;
        };
        let mut was_heard = false;
        let opened = match next.take() {
            Some(opened) => Ok(opened),
            None => connection::connect(settings, certificate.as_deref()).await.map(Into::into),
        };
        let reason = match opened {
            Ok(opened) => {
                let newest = identity.certificates();
                let reconnect = || -> stream::Opening<'_> {
                    let certificate = newest.borrow().clone();
                    Box::pin(
                        async move { connection::connect(settings, certificate.as_deref()).await },
                    )
                };
                let begun = Instant::now();
                let ended = stream::run(live, opened, || was_heard = true, reconnect);
                let ended = ended.await;
                // A stream that ends soon after its first response may do so again each time, so its successor waits
                // longer.
                if was_heard && begun.elapsed() >= LONGEST_WAIT {
                    backoff.reset();
                }
                let error = match ended {
                    Ok(opened) => {
                        next = Some(opened);
                        continue;
                    }
                    Err(error) => error,
                };
                // In TLS 1.3 the control plane refuses a certificate after the handshake, by
                // closing the connection.
                let refused = error.is_unauthenticated() || !was_heard && error.is_broken_off();
                // A certificate that has expired is refused, too, but it has already been replaced by then.
                if refused && *certificates.borrow() == certificate {
                    identity.renew();
                }
                crate::chain(&error)
            }
            Err(error) => crate::chain(&error),
        };
        let wait = backoff.wait();
        let wait_ms = wait.as_millis();
        tracing::warn!(
            reason,
            wait_ms,
            "no connection to the control plane; the last valid state \
             stays in use"
        );
        sleep(wait).await;
    }
}
