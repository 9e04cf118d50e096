//! `leno check`.

use anyhow::Result;
use clap::Args;
use leno_local::layout::Layout;

use super::{MeshName, Output, block_on, print_json};

/// Says what this machine can do, and whether the mesh on it is healthy
///
/// Exits 1 when traffic cannot be captured here or something of the mesh is not well.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno check")]
pub(crate) struct Check {
    #[command(flatten)]
    mesh: MeshName,

    /// The form of output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(crate) fn run(check: &Check) -> Result<bool> {
    let layout = Layout::new(&check.mesh.name)?;
    let found = block_on(async { Ok(leno_local::check::Check::run(&layout).await?) })?;
    if check.output == Output::Json {
        print_json(&found)?;
    } else {
        print(&found, &check.mesh.name);
    }
    Ok(found.healthy())
}

fn print(found: &leno_local::check::Check, name: &str) {
    let machine = &found.machine;
    println!("kernel        {}", machine.kernel);
    println!("BTF           {}", if machine.btf { "yes" } else { "no" });
    println!("cgroup2       {}", machine.cgroup2);
    println!("bpffs         {}", machine.bpffs);
    let missing: Vec<&str> =
        machine.capabilities.iter().filter(|one| !one.held).map(|one| one.name).collect();
    let capabilities = if missing.is_empty() {
        "all held".to_owned()
    } else {
        format!("missing: {} (run as root)", missing.join(", "))
    };
    println!("capabilities  {capabilities}");
    for backend in &machine.backends {
        let usable = if backend.usable { "usable" } else { "not usable" };
        println!("{:<14}{usable}: {}", backend.backend.to_string(), backend.reason);
    }
    let chosen = machine.chosen.map_or_else(|| "none".to_owned(), |chosen| chosen.to_string());
    println!("capture       {chosen}: {}", machine.why);
    match &found.mesh {
        None => println!("\nmesh {name:?} does not run: start one with `leno up FILE`"),
        Some(findings) => {
            println!();
            for finding in findings {
                let mark = if finding.healthy { "ok " } else { "BAD" };
                println!("{mark} {:<28}{}", finding.subject, finding.text);
            }
        }
    }
}
