//! Implements the command `leno dashboard`.

mod document;
mod live;
mod own;

use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::{Context, Result};
use clap::Args;
use leno_dashboard::front::{DashboardFront, ObserverQuery};
use leno_local::layout::Layout;
use leno_local::status::MeshStatus;
use leno_operate::ClusterHistory;
use tokio::net::TcpListener;

use super::{AnyMesh, ChosenMesh, block_on, print};
use live::LiveTaps;
use own::OwnPages;

/// Serves the dashboard of a mesh: what is broken, which workload calls which, and the last 24 hours
///
/// The dashboard only reads. For a mesh of `leno up` it needs root. On a loopback address and without --tap, every
/// user of this machine can open it; only the YAML of routes and policies needs the token in the printed address.
/// With --tap, with another --listen address, or for a cluster, a browser always needs the token. For a cluster it
/// shows the namespaces in which you may create a port-forward. Runs until Ctrl-C.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo leno dashboard\n  sudo leno dashboard --tap --listen 127.0.0.1:0\n  \
                        leno dashboard --context prod"
)]
pub(crate) struct Dashboard {
    #[command(flatten)]
    mesh: AnyMesh,

    /// Address to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7788")]
    listen: SocketAddr,

    /// Lets the page show live requests of a mesh of `leno up`, as `leno tap` does. For a cluster the page does so
    /// without this option
    #[arg(long)]
    tap: bool,
}

pub(crate) fn run(dashboard: &Dashboard) -> Result<bool> {
    block_on(async {
        let (front, mesh) = front(dashboard).await?;
        let listener = TcpListener::bind(dashboard.listen).await;
        let listener = listener.with_context(|| {
            format!("cannot listen on {}: choose another address with --listen", dashboard.listen)
        })?;
        let address = front.address(listener.local_addr()?);
        print(&format!("mesh {mesh}: {address}\n"))?;
        tokio::select! {
            () = front.serve(listener) => {}
            asked = tokio::signal::ctrl_c() => asked?,
        }
        Ok(true)
    })
}

/// The dashboard of the chosen mesh, and the name of the mesh.
async fn front(dashboard: &Dashboard) -> Result<(DashboardFront, String)> {
    let own = Rc::new(OwnPages::new(dashboard.mesh.clone()));
    let own: ObserverQuery = Rc::new(move |path| {
        let own = own.clone();
        Box::pin(async move { Ok(own.answer(&path).await) })
    });
    match dashboard.mesh.choose()? {
        ChosenMesh::Machine(name) => {
            let layout = Layout::new(&name)?;
            // Fails now if the mesh does not run. A mesh that ends later, while the page is open, is reported on
            // the page.
            MeshStatus::read(&layout)?;
            let front = DashboardFront::new(layout.observer(), dashboard.listen.ip())?;
            let front = front.with_own(own)?;
            let front = if dashboard.tap { front.with_taps(taps(dashboard))? } else { front };
            Ok((front, name))
        }
        ChosenMesh::Cluster(target) => {
            let history =
                Rc::new(ClusterHistory::new(&target, &dashboard.mesh.system_namespace).await?);
            // Fails now if the observer refuses the user. Otherwise the page would open, and each of its requests
            // would be refused.
            let overview = history.ask("/api/v1/overview").await?;
            overview.page().map_err(leno_operate::Error::Observer)?;
            let ask: ObserverQuery = Rc::new(move |path| {
                let history = history.clone();
                Box::pin(async move { history.ask(&path).await.map_err(|error| error.said()) })
            });
            let front = DashboardFront::far(ask)?.with_own(own)?.with_taps(taps(dashboard))?;
            Ok((front, target.name()))
        }
    }
}

/// The function that answers the page's queries about live requests ([`LiveTaps`]).
fn taps(dashboard: &Dashboard) -> ObserverQuery {
    let live = Rc::new(LiveTaps::new(dashboard.mesh.clone()));
    Rc::new(move |query| {
        let live = live.clone();
        Box::pin(async move { Ok(live.answer(&query).await) })
    })
}
