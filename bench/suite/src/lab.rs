//! A run in the lab of one machine. It consists of rounds, and in each round every scenario is measured under every
//! mesh and without a mesh.

mod case;
mod documents;
mod measure;
pub mod mesh;
mod meter;
mod namespaces;
pub mod one_hop;
mod pinning;
mod sidecars;
mod start_up;

use anyhow::{Result, bail};
use leno_program::note;

use crate::generator::Generator;
use crate::measurement::options::Options;
use crate::measurement::records::{
    Progress, blank, flag_impossible, has_same_application, in_turn, is_measured, leave_out,
    or_left_out, prepare_out,
};
use crate::mesh_names::NONE;
use crate::real_application;
use crate::record::{self, Record};

use case::Case;
use mesh::{Mesh, MeshPrograms};
use pinning::Pinning;

/// The options of a run in the lab.
pub struct LabRun {
    /// The scenarios, rounds and durations.
    pub options: Options,
    /// The meshes to measure; the baseline is added if it is missing.
    pub meshes: Vec<Mesh>,
}

/// Runs everything and writes a record for each measurement. After an interrupt, the records made
/// so far are kept.
///
/// # Errors
/// If the run cannot start, is interrupted, or cannot write a record. A measurement that fails is a
/// record with the reason.
pub fn run(run: &mut LabRun) -> Result<()> {
    let options = &run.options;
    if let Some(folder) = &options.application {
        real_application::check_folder(folder, &options.scenarios)?;
    }
    if !options.one_hop && !nix::unistd::geteuid().is_root() {
        bail!("leno bench run creates network namespaces, which needs root: run it as root");
    }
    // This thread starts all programs, which inherit the CPUs on which it may run.
    Pinning::rest(options.pinned).apply()?;
    prepare_out(options)?;
    add_baseline(&mut run.meshes)?;
    let old = record::there(&options.out)?;
    if let Some(cluster) = old.iter().find_map(|record| record.cluster.as_ref()) {
        let (out, context) = (options.out.display(), &cluster.context);
        bail!("{out} has records of cluster {context}: choose another --out");
    }
    let mut installed = Vec::new();
    for mesh in &run.meshes {
        match mesh.find() {
            Ok(found) => installed.push((mesh, found)),
            Err(missing) => {
                note!("{}: {missing}", mesh.name());
                for scenario in &options.scenarios {
                    let record = blank(options, scenario, mesh.name(), 0);
                    leave_out(options, (scenario, record), &missing.to_string(), &old)?;
                }
            }
        }
    }
    let mut cases = cases(options, &installed);
    for case in &cases {
        case.generator.find()?;
    }
    let total = cases.len();
    for case in &cases {
        has_same_application(&options.out, &old, &case_record(options, case))?;
    }
    cases.retain(|case| {
        let record = case_record(options, case);
        !is_measured(&old, &record)
    });
    let mut progress = Progress::of(total, total - cases.len());
    for case in &cases {
        progress.keep(&options.out, &mut measure_case(options, case)?)?;
    }
    flag_impossible(&options.out)
}

fn add_baseline(meshes: &mut Vec<Mesh>) -> Result<()> {
    if !meshes.iter().any(|mesh| mesh.name() == NONE) {
        meshes.insert(0, mesh::named(NONE, &mesh::Choices::default())?);
    }
    meshes.sort_by_key(|mesh| mesh.name() != NONE);
    Ok(())
}

/// All measurements. `meshes` begins with the baseline.
fn cases<'a>(options: &'a Options, meshes: &'a [(&'a Mesh, MeshPrograms)]) -> Vec<Case<'a>> {
    let mut cases = Vec::new();
    let meshes: Vec<_> = meshes.iter().collect();
    let Some((baseline, others)) = meshes.split_first() else { return cases };
    for round in 0..options.rounds {
        for scenario in &options.scenarios {
            for step in scenario.steps() {
                for (mesh, found) in in_turn(*baseline, others, round) {
                    let established = [Generator::established(scenario, step)];
                    let generators = match &options.generators[..] {
                        [] => &established,
                        named => named,
                    };
                    for generator in generators.iter().copied() {
                        cases.push(Case { scenario, mesh, found, generator, round, step });
                    }
                }
            }
        }
    }
    cases
}

fn measure_case(options: &Options, case: &Case<'_>) -> Result<Record> {
    let mut record = case_record(options, case);
    record.mesh_version.clone_from(&case.found.version);
    if let Some(why) = case.mesh.unable(case.scenario).or(measure::unable(options, case)?) {
        record.left_out = Some(why.to_owned());
        return Ok(record);
    }
    let measure = if options.one_hop { one_hop::measure } else { measure::measure };
    or_left_out(measure(options, case, record.clone()), record, &options.interrupt)
}

/// A record in which only the fields that describe the case are set.
fn case_record(options: &Options, case: &Case<'_>) -> Record {
    let mut record = blank(options, case.scenario, case.mesh.name(), case.round);
    record.step = case.step;
    record.generator = case.generator.to_string();
    record
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::measurement::records::tests::options;
    use crate::scenario;

    /// The meshes with these names, and the baseline.
    fn with_baseline(names: &[&str]) -> Vec<Mesh> {
        let mesh = |name: &&str| mesh::named(name, &mesh::Choices::default()).unwrap();
        let mut meshes = names.iter().map(mesh).collect();
        add_baseline(&mut meshes).unwrap();
        meshes
    }

    fn with_programs(meshes: &[Mesh]) -> Vec<(&Mesh, MeshPrograms)> {
        meshes.iter().map(|mesh| (mesh, MeshPrograms::default())).collect()
    }

    #[test]
    fn rounds_begin_with_the_baseline_and_rotate_the_others() {
        let (options, meshes) = (options(Path::new("")), with_baseline(&["leno", "envoy"]));
        let meshes = with_programs(&meshes);
        let order: Vec<&str> =
            cases(&options, &meshes).iter().map(|case| case.mesh.name()).collect();
        assert_eq!(order, ["none", "leno", "envoy", "none", "envoy", "leno"]);
    }

    #[test]
    fn generators_take_turns_within_a_round_and_each_has_its_own_records() {
        let (mut options, meshes) = (options(Path::new("")), with_baseline(&["leno"]));
        options.generators = vec![Generator::Leno, Generator::Fortio];
        options.rounds = 1;
        let meshes = with_programs(&meshes);
        let all = cases(&options, &meshes);
        let names: Vec<String> =
            all.iter().map(|case| case_record(&options, case).name()).collect();
        let wanted = ["none.r0", "none.fortio.r0", "leno.r0", "leno.fortio.r0"];
        assert_eq!(names, wanted.map(|name| format!("http-1k.{name}")));
        options.scenarios = vec![scenario::find("grpc-1k-open").unwrap()];
        let all = cases(&options, &meshes);
        assert_eq!(measure::unable(&options, &all[0]).unwrap(), None);
        let why = measure::unable(&options, &all[1]).unwrap().unwrap_or_default();
        assert!(why.contains("HTTP/1.1"), "known before anything is started: {why}");
    }
}
