//! What it costs that an application sees its client's address.
//!
//! ```text
//!   leno-bench load, as the workload's proxy: its namespace, control group and user
//!      └─ connect ─► echo server of the workload     own address | stand-in address | client named
//! ```

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Context, Result, bail};
use leno_suite::statistics::median;
use leno_testkit::binaries;
use leno_testkit::lab::{Capture, Lab, Options};

use crate::connecting::{Cost, Costs};

/// The port of the application.
const PORT: u16 = 9000;

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: bench}
spec: {command: [\"@BIN@/leno-peer\", echo, --listen, \"0.0.0.0:9000\"], ports: [{name: echo, port: 9000, appProtocol: tcp}]}
";

/// The options of the measurement.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Connections of each way in a round
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    connections: u32,
    /// Rounds; in each, the ways take turns in another order. The median counts
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
}

/// Prints the median of each way, and its ratio to the way without.
pub(crate) fn run(args: Args) -> Result<bool> {
    if !nix::unistd::geteuid().is_root() {
        bail!("leno up makes network namespaces, which takes root: run this as root");
    }
    let lab = Lab::start(&Options::new(Capture::Ebpf), MESH, |_| Ok(()))?;
    let costs = lab.explain(measure(&lab, args))?;
    print!("{}", table(&costs));
    Ok(true)
}

fn measure(lab: &Lab, args: Args) -> Result<Costs> {
    let status = lab.status()?;
    let web = status.instance("web")?;
    let address = SocketAddr::from((status.address("web", false)?, PORT));
    let proxy = web.proxy_cgroup()?.join("cgroup.procs");
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ >\"$0\" && exec ip netns exec \"$@\""]).arg(proxy);
    command.arg(&web.surroundings.netns).arg(binaries::ours("leno-bench")?);
    command.args(["connect-as-proxy", &address.to_string()]);
    command.args(["--connections", &args.connections.to_string()]);
    command.args(["--rounds", &args.rounds.to_string()]);
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn table(costs: &Costs) -> String {
    let mut text = String::from(
        "| the application sees | CPU of a connection, us | ratio | until the first answer, us | ratio |\n\
         |---|---|---|---|---|\n",
    );
    // Ratios are made round by round, since what disturbs a round disturbs all in it.
    let base = costs.first().map_or(&[][..], |(_, rounds)| rounds);
    for (way, rounds) in costs {
        let of = |figure: fn(&Cost) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>());
        let ratio = |figure: fn(&Cost) -> f64| {
            let ratios = rounds.iter().zip(base).map(|(one, base)| figure(one) / figure(base));
            median(&ratios.collect::<Vec<_>>())
        };
        let (cpu, answer) = (|one: &Cost| one.cpu_us, |one: &Cost| one.answer_us);
        text += &format!(
            "| {way} | {:.1} | {:.2} | {:.1} | {:.2} |\n",
            of(cpu),
            ratio(cpu),
            of(answer),
            ratio(answer)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_made_within_a_round() {
        let rounds = |cpu: [f64; 3]| cpu.map(|cpu_us| Cost { cpu_us, answer_us: 2.0 }).to_vec();
        let costs = vec![
            ("own".into(), rounds([1.0, 10.0, 2.0])),
            ("client".into(), rounds([2.0, 11.0, 4.0])),
        ];
        let table = table(&costs);
        assert!(table.contains("| own | 2.0 | 1.00 | 2.0 | 1.00 |\n"), "{table}");
        assert!(table.ends_with("| client | 4.0 | 2.00 | 2.0 | 1.00 |\n"), "{table}");
    }
}
