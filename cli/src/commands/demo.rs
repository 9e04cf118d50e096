//! `leno demo`: the example shop, meshed and under load, and what it proves.
//!
//! ```text
//! mesh up ─► load ─► live table ─► report ─► mesh down ─► the same without a mesh ─► both compared
//! ```

mod measure;
mod mesh;
mod show;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use leno_local::stat::{Report, Scrape};

use measure::Measured;
use mesh::Mesh;

/// Time between two pictures of the live table.
const REFRESH: Duration = Duration::from_secs(1);
/// How long the shop runs without a mesh, for comparison.
const BARE: Duration = Duration::from_secs(8);

/// Brings up a small shop over a real Redis, meshed, sends load, and shows what happens
///
/// Needs root. Ends by itself and leaves nothing behind.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno demo --seconds 10")]
pub(crate) struct Demo {
    /// How long the load lasts, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,

    /// Pages requested a second; each page makes about six calls inside the shop
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=5000))]
    rate: u32,

    /// How traffic is captured: auto, ebpf, nftables or iptables
    #[arg(long, default_value = "auto")]
    capture: String,
}

/// Runs the demo; false when something it should prove did not hold.
pub(crate) fn run(demo: &Demo) -> Result<bool> {
    super::block_on(show_all(demo))
}

async fn show_all(demo: &Demo) -> Result<bool> {
    if !nix::unistd::geteuid().is_root() {
        bail!("the demo makes network namespaces and loads kernel programs: run it with sudo");
    }
    let live = std::io::stdout().is_terminal();
    show::opening();
    let (report, measured, rules) = meshed(demo, live).await?;
    println!("\nThe same shop, the same load, with no mesh ...");
    let bare = bare(demo).await?;
    Ok(show::proof(&report, rules, &measured, &bare))
}

async fn meshed(demo: &Demo, live: bool) -> Result<(Report, Measured, Option<usize>)> {
    let mut mesh = Mesh::start("demo", &demo.capture, true).await?;
    println!("Up: {}. Load: {} pages/s for {} s.\n", mesh.describe()?, demo.rate, demo.seconds);
    let before = measure::cpu(&mesh)?;
    let first = Scrape::take(mesh.layout()).await?;
    let mut load = mesh.load(demo.rate, Duration::from_secs(demo.seconds))?;
    let mut last = first.clone();
    let mut pictures = show::Pictures::new(live);
    while load.is_running()? {
        tokio::time::sleep(REFRESH).await;
        mesh.check_alive()?;
        let now = Scrape::take(mesh.layout()).await?;
        pictures.show(&now.since(&last));
        last = now;
    }
    let load = load.finish().context("the load generator in the mesh")?;
    let report = Scrape::take(mesh.layout()).await?.since(&first);
    let measured = Measured::new(load, before, measure::cpu(&mesh)?);
    let rules = mesh.netfilter_rules()?;
    mesh.stop().await?;
    Ok((report, measured, rules))
}

async fn bare(demo: &Demo) -> Result<Measured> {
    let mut mesh = Mesh::start("demo-bare", &demo.capture, false).await?;
    let before = measure::cpu(&mesh)?;
    let mut load = mesh.load(demo.rate, BARE.min(Duration::from_secs(demo.seconds)))?;
    while load.is_running()? {
        tokio::time::sleep(REFRESH / 10).await;
        mesh.check_alive()?;
    }
    let load = load.finish().context("the load generator without a mesh")?;
    let measured = Measured::new(load, before, measure::cpu(&mesh)?);
    mesh.stop().await?;
    Ok(measured)
}
