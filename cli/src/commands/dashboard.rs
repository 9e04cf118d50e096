//! `leno dashboard`.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use clap::Args;
use leno_dashboard::front::Front;
use leno_local::layout::Layout;
use leno_local::status::Status;
use tokio::net::TcpListener;

use super::{RunningMesh, block_on, print};

/// Shows a mesh of `leno up` in the browser: what is broken, what calls what, and the last day of it
///
/// It changes nothing. On loopback every user of this machine can read it; with another --listen a browser
/// needs the token that is part of the printed address. Needs root. Runs until Ctrl-C.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo leno dashboard\n  sudo leno dashboard --listen 127.0.0.1:0"
)]
pub(crate) struct Dashboard {
    #[command(flatten)]
    mesh: RunningMesh,

    /// The address to serve on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7788")]
    listen: SocketAddr,
}

pub(crate) fn run(dashboard: &Dashboard) -> Result<bool> {
    let layout = Layout::new(&dashboard.mesh.name()?)?;
    // A mesh that ends while the page is open is shown there.
    Status::read(&layout)?;
    let front = Front::new(layout.observer(), dashboard.listen.ip())?;
    block_on(async {
        let listener = TcpListener::bind(dashboard.listen).await;
        let listener = listener.with_context(|| {
            format!("cannot listen on {}: choose another address with --listen", dashboard.listen)
        })?;
        let address = front.address(listener.local_addr()?);
        print(&format!("mesh {}: {address}\n", layout.mesh()))?;
        tokio::select! {
            () = front.serve(listener) => {}
            asked = tokio::signal::ctrl_c() => asked?,
        }
        Ok(true)
    })
}
