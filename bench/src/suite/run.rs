//! `leno bench run`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use leno_console::{duration, print, within};
use leno_suite::generator::Generator;
use leno_suite::interrupt::Interrupt;
use leno_suite::lab::mesh::{self, Choices};
use leno_suite::lab::{self, LabRun};
use leno_suite::machine::Machine;
use leno_suite::measurement::options::Options;
use leno_suite::scenario::{self, Scenario};

use super::output::say_scale;

/// Measures scenarios with each mesh, round after round, and writes a record of each measurement
///
/// In every round each mesh has its turn after the baseline, with the same application: in network
/// namespaces of this machine, which needs root, or with --context in a namespace of a Kubernetes
/// cluster, where leno, leno-node, leno-shared, istio, istio-ambient and linkerd are installed for
/// their turn and removed after it. After Ctrl-C, the records made so far are kept.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo leno bench run http-1k --mesh none,leno,envoy --duration 10s --rounds 3 --out bench\n  \
                  sudo leno bench run http-1k --mesh none,leno --generator leno,fortio --out checked\n  \
                  leno bench run http-1k --context staging --image registry.example/leno-bench:1 --mesh none,leno,linkerd --out cluster\n  \
                  leno bench run http-1k --context staging --image registry.example/leno-bench:1 --no-install --mesh none,istio --out as-it-is\n  \
                  leno bench run faces --context staging --image registry.example/leno-bench:1 --application images.yaml --out faces"
)]
pub(crate) struct Run {
    /// Scenarios of `leno bench list`; faces@60,600 selects some of the rates of a scenario, in requests per second
    #[arg(required = true, value_name = "SCENARIO[@RATE,..]")]
    scenarios: Vec<String>,

    /// Meshes of `leno bench list`, separated by commas. The baseline "none" is always added
    #[arg(long = "mesh", value_delimiter = ',', default_value = "none,leno", value_name = "MESH")]
    meshes: Vec<String>,

    /// Number of rounds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// How long each measurement lasts, from 200ms to 1h
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = measured)]
    duration: Duration,

    /// Duration of the load before each measurement, which is not counted
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = duration)]
    warm_up: Duration,

    /// Factor for the rates of the scenarios [default: 1/20 for each processor]
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    scale: Option<f64>,

    /// Load generators, separated by commas: leno, fortio, h2load or wrk. Several take turns in each round, and the
    /// report compares them
    #[arg(
        long = "generator",
        value_delimiter = ',',
        default_value = "leno",
        value_name = "GENERATOR"
    )]
    generators: Vec<Generator>,

    #[command(flatten)]
    choices: Choices,

    /// Real application of the scenario, instead of the suite's own: a directory with a program or a JAR file for
    /// each service, such as webui.jar; with --context a file with an image for each, which `leno bench list
    /// --application SCENARIO` prints
    #[arg(long, value_name = "DIR|FILE")]
    application: Option<PathBuf>,

    /// Pins the proxies to one CPU, and all other processes to the rest
    #[arg(long)]
    pin: bool,

    /// Directory for the records
    #[arg(long, value_name = "DIR")]
    out: PathBuf,

    /// Continues a run that was interrupted: measures only what has no record yet
    #[arg(long)]
    resume: bool,

    #[command(flatten)]
    cluster: super::in_cluster::ClusterOptions,
}

fn measured(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (Duration::from_millis(200), Duration::from_hours(1)))
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if factor > 0.0 && factor <= 100.0 => Ok(factor),
        _ => Err(format!("{text:?} is not a number above 0 and up to 100")),
    }
}

pub(super) fn run(args: &Run) -> Result<bool> {
    // A mesh or scenario that is named twice would write two measurements into one record.
    let scenarios = scenarios(&once(&args.scenarios))?;
    let meshes = once(&args.meshes);
    let clustered = args.cluster.is_named();
    if clustered && let Some(why) = of_the_lab(args) {
        bail!("{why} is only for the lab of one machine: remove it, or --context");
    }
    if let Some(option) = args.cluster.without_one() {
        bail!(
            "{option} is only for a cluster: select one with --context, --kubeconfig or --cluster"
        );
    }
    let options = Options {
        scenarios,
        rounds: args.rounds,
        duration: args.duration,
        warm_up: args.warm_up,
        scale: args.scale.unwrap_or_else(|| scenario::usual_scale(Machine::this().cpus)),
        generators: once(&args.generators),
        application: args.application.as_deref().map(std::path::absolute).transpose()?,
        out: args.out.clone(),
        resume: args.resume,
        one_hop: false,
        pinned: args.pin,
        interrupt: Interrupt::by_signals()?,
    };
    if clustered {
        args.cluster.run(options, &meshes, args.scale)?;
    } else {
        say_scale(options.scale);
        let meshes = meshes.iter().map(|name| mesh::named(name, &args.choices));
        let mut run = LabRun { options, meshes: meshes.collect::<Result<_, _>>()? };
        lab::run(&mut run)?;
    }
    let out = args.out.display();
    print(&format!("records: {out}\nreport:  leno bench report {out}\n")).map(|()| true)
}

/// Looks up the named scenarios. A scenario may be named only once, with all of its rates.
fn scenarios(names: &[String]) -> Result<Vec<Scenario>> {
    let found = names.iter().map(|name| scenario::asked_for(name));
    let found: Vec<Scenario> = found.collect::<Result<_, _>>()?;
    let twice =
        |(nth, one): (usize, &Scenario)| found[..nth].iter().any(|two| two.name == one.name);
    if let Some(nth) = found.iter().enumerate().position(twice) {
        let name = &found[nth].name;
        bail!("{name} is named twice: write its rates together, {name}@RATE,RATE");
    }
    Ok(found)
}

/// The values in their order, without duplicates.
fn once<T: Clone + PartialEq>(all: &[T]) -> Vec<T> {
    let is_first = |(nth, one): &(usize, &T)| !all[..*nth].contains(*one);
    all.iter().enumerate().filter(is_first).map(|(_, one)| one.clone()).collect()
}

/// An option that only applies to the lab, if the command line has one.
fn of_the_lab(args: &Run) -> Option<&'static str> {
    let given = [
        (args.generators != [Generator::Leno], "--generator"),
        (args.choices.envoy.is_some(), "--envoy"),
        (args.pin, "--pin"),
        (args.choices.ztunnel.is_some(), "--ztunnel"),
        (args.choices.linkerd2_proxy.is_some(), "--linkerd2-proxy"),
    ];
    given.into_iter().find_map(|(given, name)| given.then_some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_or_scenario_named_twice_is_measured_once() {
        let names = ["none", "leno", "envoy", "leno"].map(str::to_owned);
        assert_eq!(once(&names), ["none", "leno", "envoy"]);
        let names = ["faces@60,600", "http-1k"].map(str::to_owned);
        assert_eq!(scenarios(&names).unwrap().len(), 2);
        let names = ["faces@60", "faces@600"].map(str::to_owned);
        let twice = scenarios(&names).unwrap_err().to_string();
        assert!(twice.contains("faces is named twice: write its rates together"), "{twice}");
    }
}
