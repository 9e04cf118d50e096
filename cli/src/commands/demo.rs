//! `leno demo`: runs the example shop in a mesh and under load, and prints what that proves.
//!
//! ```text
//! mesh up ─► load ─► live table ─► report ─► mesh down ─► the same without a mesh ─► both compared
//! ```

mod measure;
mod mesh;
mod proof;
mod show;

use std::io::IsTerminal;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use leno_capture::CaptureChoice;
use leno_local::stat::scrape;
use tokio::signal::unix::{SignalKind, signal};

use super::OutputForm;
use measure::MeasuredRun;
use mesh::ShopMesh;
use proof::{DemoOutcome, MeshEvidence};
use show::LiveTable;

/// Time between two updates of the live table.
const REFRESH: Duration = Duration::from_secs(1);
/// How long the shop runs without a mesh, for comparison.
const BARE: Duration = Duration::from_secs(8);

/// Runs a small shop over a real Redis in a mesh, sends load to it, and shows the results
///
/// Needs root. Ends by itself, and removes everything that it has created.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno demo --seconds 10")]
pub(crate) struct Demo {
    /// Duration of the load, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,

    /// Pages requested per second; each page causes about six requests inside the shop
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=5000))]
    rate: u32,

    /// How connections are steered into the proxies: auto, ebpf, nftables or iptables
    #[arg(long, default_value = "auto", value_name = "BACKEND")]
    capture: CaptureChoice,

    /// The output format; json prints one object at the end
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

/// Runs the demo. Returns false if something that the demo should prove turns out to be false.
pub(crate) fn run(demo: &Demo) -> Result<bool> {
    super::block_on(show_all(demo))
}

async fn show_all(demo: &Demo) -> Result<bool> {
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "the demo needs root, because it creates network namespaces and loads kernel \
             programs: run it with sudo"
        );
    }
    let mut ended = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
        .into_iter()
        .map(signal)
        .collect::<std::io::Result<Vec<_>>>()?;
    let signals = ended.iter_mut().map(|one| Box::pin(one.recv()));
    tokio::select! {
        shown = prove(demo) => shown,
        // Returning drops the shop, which removes it.
        _ = futures_util::future::select_all(signals) => bail!("interrupted: the demo has ended and removed its shop"),
    }
}

async fn prove(demo: &Demo) -> Result<bool> {
    let people = demo.output == OutputForm::Table;
    let pictures = match (people, std::io::stdout().is_terminal()) {
        (false, _) => LiveTable::none(),
        (true, live) => LiveTable::new(live),
    };
    if people {
        super::print(show::OPENING)?;
    }
    let meshed = meshed(demo, pictures).await?;
    if people {
        super::print("\nThe same shop, the same load, with no mesh ...\n")?;
    }
    let proof = DemoOutcome::new(meshed, bare(demo).await?);
    match people {
        true => super::print(&show::proof(&proof))?,
        false => super::print_json(&proof)?,
    }
    Ok(proof.holds)
}

async fn meshed(demo: &Demo, mut pictures: LiveTable) -> Result<MeshEvidence> {
    let mesh = ShopMesh::start("demo", demo.capture, true).await?;
    if demo.output == OutputForm::Table {
        let (up, rate, seconds) = (mesh.describe()?, demo.rate, demo.seconds);
        super::print(&format!("Up: {up}. Load: {rate} pages/s for {seconds} s.\n\n"))?;
    }
    let capture = mesh.capture()?;
    let before = measure::cpu(&mesh)?;
    let first = scrape(mesh.layout(), None).await?;
    let mut load = mesh.load(demo.rate, Duration::from_secs(demo.seconds))?;
    let mut last = first.clone();
    while load.is_running()? {
        tokio::time::sleep(REFRESH).await;
        mesh.check_alive()?;
        let now = scrape(mesh.layout(), None).await?;
        pictures.show(&now.since(&last))?;
        last = now;
    }
    let load = load.finish().context("the load generator in the mesh")?;
    let report = scrape(mesh.layout(), None).await?.since(&first);
    let measured = MeasuredRun::new(load, before, measure::cpu(&mesh)?);
    let rules = mesh.netfilter_rules()?;
    mesh.stop().await?;
    Ok(MeshEvidence { capture, report, netfilter_rules: rules, measured })
}

async fn bare(demo: &Demo) -> Result<MeasuredRun> {
    let mesh = ShopMesh::start("demo-bare", demo.capture, false).await?;
    let before = measure::cpu(&mesh)?;
    let mut load = mesh.load(demo.rate, BARE.min(Duration::from_secs(demo.seconds)))?;
    while load.is_running()? {
        tokio::time::sleep(REFRESH / 10).await;
        mesh.check_alive()?;
    }
    let load = load.finish().context("the load generator without a mesh")?;
    let measured = MeasuredRun::new(load, before, measure::cpu(&mesh)?);
    mesh.stop().await?;
    Ok(measured)
}
