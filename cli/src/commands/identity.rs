//! Implements the command `leno identity`.

mod text;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use leno_console::note;
use leno_identity::report::IdentityReport;
use leno_identity::{OperatorRequest, OperatorVerb};
use leno_kube::Client;
use leno_local::hint::command;
use leno_local::identity;
use leno_local::layout::Layout;
use leno_types::TrustDomain;
use tokio::time::sleep;

use super::{AnyMesh, ChosenMesh, OutputForm, block_on, print, print_json};

/// How often to check whether a request was handled, or how far a rotation has proceeded.
const POLL: Duration = Duration::from_millis(200);
/// Longest wait until a request is handled. It is long because the control plane may be restarting.
const OBEYED_WITHIN: Duration = Duration::from_secs(30);

/// Where to find the certificate authority.
pub(crate) enum Authority {
    Machine(Layout),
    Cluster { client: Client, namespace: String },
}

/// Shows which certificate a mesh signs with, when it expires, and which roots proxies trust
///
/// Needs root for a mesh of `leno up`. In a cluster it needs the right to create a port-forward to the control
/// plane's pods and, to rotate or revoke, to write ConfigMaps in its namespace.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:\n  sudo leno identity\n  sudo leno identity -o json\n  \
                        sudo leno identity rotate-root --wait\n  sudo leno identity rotate-root --abort\n  \
                        leno identity --cluster\n  leno identity rotate-root --cluster --wait")]
pub(crate) struct Identity {
    #[command(subcommand)]
    action: Option<Action>,

    #[command(flatten)]
    mesh: AnyMesh,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

#[derive(Debug, Subcommand)]
enum Action {
    RotateRoot(RotateRoot),
    Revoke(Revoke),
}

/// Revokes the current certificates of a service account, and closes the connections that use them
///
/// For a key or a certificate that may have been copied. The workloads get new certificates at once if their tokens
/// are still valid; `leno restart` gives them new tokens.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno identity revoke shop/web")]
struct Revoke {
    /// The service account, as NAMESPACE/NAME
    #[arg(value_name = "NAMESPACE/NAME")]
    account: String,

    #[command(flatten)]
    mesh: AnyMesh,
}

/// Replaces the root certificate by a new one in phases, without failed connections
///
/// First proxies trust the new root (add), then it signs (switch), then they no longer trust the old root (remove). A
/// phase ends when every connected proxy has acknowledged it. The control plane continues the rotation by itself,
/// also after a restart.
#[derive(Debug, Args)]
struct RotateRoot {
    #[command(flatten)]
    mesh: AnyMesh,

    /// Returns to the previous root, from any phase of a rotation
    #[arg(long)]
    abort: bool,

    /// Waits until the rotation has ended
    #[arg(long)]
    wait: bool,

    /// How long --wait waits until the rotation has ended
    #[arg(long, default_value = "20m", value_name = "DURATION", value_parser = leno_console::duration)]
    timeout: Duration,
}

/// Runs the command. Everything uses one runtime, because the client of a cluster must stay in the runtime in
/// which it was created.
pub(crate) fn run(identity: &Identity) -> Result<bool> {
    block_on(async {
        match &identity.action {
            Some(Action::RotateRoot(rotate)) => rotate_root(rotate).await,
            Some(Action::Revoke(revoke)) => self::revoke(revoke).await,
            None => show(identity).await,
        }
    })
}

async fn show(identity: &Identity) -> Result<bool> {
    let report = Authority::of(&identity.mesh).await?.report().await?;
    match identity.output {
        OutputForm::Json => print_json(&report)?,
        OutputForm::Table => print(&text::page(&report, text::now()))?,
    }
    Ok(true)
}

async fn revoke(revoke: &Revoke) -> Result<bool> {
    let authority = Authority::of(&revoke.mesh).await?;
    let account = revoke.account.split_once('/');
    let (namespace, name) = account.context(
        "the service account has no namespace: write \
         NAMESPACE/NAME, for example shop/web",
    )?;
    let domain = TrustDomain::new(&authority.report().await?.trust_domain)?;
    let identity = leno_types::Identity::new(domain, namespace, name)?;
    let request = authority.ask(OperatorVerb::Revoke(identity.to_string())).await?;
    authority.obeyed(&request).await?;
    print(&format!("certificates of {identity} that were issued so far are revoked\n"))?;
    if let Authority::Machine(layout) = &authority {
        unknown(layout, &revoke.account);
    }
    Ok(true)
}

/// Warns if no workload has the service account. Its name is then probably misspelt.
fn unknown(layout: &Layout, account: &str) {
    // Without a running workload that has a proxy, the name cannot be compared with anything.
    let Ok(mesh) = leno_local::analysis::running(layout.mesh()) else { return };
    let accounts = mesh.accounts();
    if !accounts.contains(account) {
        let meant = leno_types::nearest(account, accounts.iter().map(String::as_str));
        let meant = meant.map(|meant| format!(": did you mean {meant}?")).unwrap_or_default();
        note!("leno: warning: no workload of this mesh has the service account {account}{meant}");
    }
}

async fn rotate_root(rotate: &RotateRoot) -> Result<bool> {
    let authority = Authority::of(&rotate.mesh).await?;
    let verb = if rotate.abort { OperatorVerb::Abort } else { OperatorVerb::Begin };
    let begun = Instant::now();
    let request = authority.ask(verb).await?;
    let mut report = authority.obeyed(&request).await?;
    print(&text::rotation(&report, text::now()))?;
    while rotate.wait && report.phase != "stable" {
        if begun.elapsed() > rotate.timeout {
            bail!(
                "the rotation has not ended within --timeout: it continues by itself, and `{}` \
                 shows its progress",
                authority.command("identity")
            );
        }
        sleep(POLL).await;
        // The control plane may be restarting.
        let Ok(next) = authority.report().await else { continue };
        if next.phase != report.phase {
            print(&text::rotation(&next, text::now()))?;
        }
        report = next;
    }
    Ok(true)
}

impl Authority {
    /// A command line for this mesh.
    fn command(&self, words: &str) -> String {
        match self {
            Self::Machine(layout) => command(layout.mesh(), words),
            Self::Cluster { .. } => format!("leno {words} --cluster"),
        }
    }

    pub(crate) async fn of(mesh: &AnyMesh) -> Result<Self> {
        Ok(match mesh.choose()? {
            ChosenMesh::Machine(name) => Self::Machine(Layout::new(&name)?),
            ChosenMesh::Cluster(target) => {
                let client = leno_operate::connect(&target).await?;
                Self::Cluster { client, namespace: mesh.system_namespace.clone() }
            }
        })
    }

    pub(crate) async fn report(&self) -> Result<IdentityReport> {
        Ok(match self {
            Self::Machine(layout) => identity::report(layout).await?,
            Self::Cluster { client, namespace } => {
                leno_operate::identity::report(client, namespace).await?
            }
        })
    }

    async fn ask(&self, verb: OperatorVerb) -> Result<OperatorRequest> {
        match self {
            Self::Machine(layout) => Ok(identity::ask(layout, verb)?),
            Self::Cluster { client, namespace } => {
                let request =
                    OperatorRequest::new(verb).context("the system provides no random bytes")?;
                leno_operate::identity::ask(client, namespace, &request).await?;
                Ok(request)
            }
        }
    }

    /// Waits until a request was handled or refused.
    async fn obeyed(&self, request: &OperatorRequest) -> Result<IdentityReport> {
        let begun = Instant::now();
        loop {
            let last = match self.report().await {
                Ok(report) => match report.request.clone().filter(|last| last.id == request.id) {
                    Some(last) => match last.refused {
                        Some(refused) => bail!(refused),
                        None => return Ok(report),
                    },
                    None => report.problem,
                },
                Err(error) => Some(format!("{error:#}")),
            };
            if begun.elapsed() > OBEYED_WITHIN {
                let last = last.unwrap_or_else(|| "it gives no reason".to_owned());
                bail!(
                    "the control plane has not handled the request yet ({last}): it will once it \
                     can, and `leno identity` shows it"
                );
            }
            sleep(POLL).await;
        }
    }
}
