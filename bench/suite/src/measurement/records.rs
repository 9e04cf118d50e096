//! The records of a run: creates them, writes them, marks impossible figures, and skips those that a resumed run
//! already has.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use leno_program::note;

use super::options::Options;
use crate::compare;
use crate::files;
use crate::interrupt::{Interrupt, Interrupted};
use crate::machine::Machine;
use crate::mesh_names::NONE;
use crate::record::{self, Mark, MarkKind, RAW, Record};
use crate::scenario::Scenario;

/// If the latency under a mesh is below this share of the baseline's latency, the mesh is faster than no mesh by more
/// than the precision of timers.
const CLEARLY_FASTER: f64 = 0.95;

/// Creates the directory of the records. Only a resumed run may find records there.
pub(crate) fn prepare_out(options: &Options) -> Result<()> {
    fs::create_dir_all(options.out.join(RAW))
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    let there = record::there(&options.out)?;
    if !there.is_empty() && !options.resume {
        bail!(
            "{} already has records: continue with --resume, or choose another --out",
            options.out.display()
        );
    }
    Ok(())
}

/// Writes a record that says why a mesh is not measured in a scenario. There is one for each step that has no figures
/// yet.
pub(crate) fn leave_out(
    options: &Options,
    (scenario, record): (&Scenario, Record),
    why: &str,
    old: &[Record],
) -> Result<()> {
    for step in scenario.steps() {
        let record = Record { step, left_out: Some(why.to_owned()), ..record.clone() };
        if !is_measured(old, &record) {
            record.write(&options.out)?;
        }
    }
    Ok(())
}

/// Refuses to resume in a directory with figures of another application.
pub(crate) fn has_same_application(out: &Path, old: &[Record], record: &Record) -> Result<()> {
    let mut measured = old.iter().filter(|one| one.left_out.is_none());
    let other = measured.find_map(|one| {
        let same = one.scenario == record.scenario;
        same.then(|| compare::applications(one, record)).flatten()
    });
    let Some((there, here)) = other else { return Ok(()) };
    let (out, scenario) = (out.display(), &record.scenario);
    bail!("{out} has records of {scenario} with {there}, not {here}: choose another --out")
}

/// Whether a record with the same name has figures.
pub(crate) fn is_measured(old: &[Record], record: &Record) -> bool {
    let name = record.name();
    old.iter().any(|one| one.left_out.is_none() && one.name() == name)
}

/// A record of which only the circumstances of the run are set.
pub(crate) fn blank(options: &Options, scenario: &Scenario, mesh: &str, round: u32) -> Record {
    Record {
        scenario: scenario.name.clone(),
        mesh: mesh.to_owned(),
        suite_version: env!("CARGO_PKG_VERSION").to_owned(),
        generator: options.generators.first().copied().unwrap_or_default().to_string(),
        round,
        started_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        machine: Machine::this(),
        scale: options.scale,
        services: scenario.services,
        application: options.application.as_ref().map(|folder| folder.display().to_string()),
        ..Record::default()
    }
}

/// Returns the meshes in the order of a round: the baseline, then the others, which rotate from round to round.
pub(crate) fn in_turn<T: Copy>(baseline: T, others: &[T], round: u32) -> Vec<T> {
    let (later, first) = others.split_at(round as usize % others.len().max(1));
    [&[baseline][..], first, later].concat()
}

/// Returns the record of a measurement. If the measurement failed, the record has the reason; only an interrupt is an
/// error here.
pub(crate) fn or_left_out(
    measured: Result<Record>,
    begun: Record,
    interrupt: &Interrupt,
) -> Result<Record> {
    match measured {
        Err(error) if !error.is::<Interrupted>() => {
            interrupt.check()?;
            Ok(Record { left_out: Some(format!("{error:#}")), ..begun })
        }
        measured => measured,
    }
}

pub(crate) struct Progress {
    begun: Instant,
    done: usize,
    /// The number of measurements that already have a record.
    skipped: usize,
    total: usize,
}

impl Progress {
    /// Begins a run of `total` measurements.
    pub(crate) fn of(total: usize, skipped: usize) -> Self {
        if skipped > 0 {
            note!("{skipped} of {total} have a record already");
        }
        Self { begun: Instant::now(), done: 0, skipped, total }
    }

    /// Writes the record of the next measurement, and prints its line.
    pub(crate) fn keep(&mut self, out: &Path, record: &mut Record) -> Result<()> {
        write(out, record)?;
        self.done += 1;
        let (far, each) = (self.skipped + self.done, self.begun.elapsed() / self.done as u32);
        let left = each * self.total.saturating_sub(far) as u32;
        note!("{}", line(record, (far, self.total), left));
        Ok(())
    }
}

fn line(record: &Record, (done, total): (usize, usize), left: Duration) -> String {
    let left = match left.as_secs() {
        seconds if seconds >= 90 => format!("{} min left", seconds.div_ceil(60)),
        seconds => format!("{seconds} s left"),
    };
    let title = record::title(&record.scenario, record.step);
    let (mesh, round) = (&record.mesh, record.round + 1);
    let by = record.other_generator().map_or_else(String::new, |name| format!(" by {name}"));
    let what = format!("[{done}/{total}] {title} {mesh}{by} round {round}");
    if let Some(why) = &record.left_out {
        return format!("{what}: not measured: {why} ({left})");
    }
    let latency = &record.latency_us;
    let ms = |us: u64| us as f64 / 1000.0;
    let marks = record::kinds_of_marks(&[record]);
    let marks =
        if marks.is_empty() { String::new() } else { format!("  MARKED: {}", marks.join(", ")) };
    format!(
        "{what}: {:.0}/s  p50 {:.2} ms  p99 {:.2} ms  CPU {:.0} us/request  {} errors  ({left}){marks}",
        record.requests_per_s,
        ms(latency.p50),
        ms(latency.p99),
        record.cpu_us_per_request(),
        record.errors,
    )
}

/// Marks a record if its figures are impossible, and writes it. The mark is thus written even if the run is interrupted
/// later.
pub(crate) fn write(out: &Path, record: &mut Record) -> Result<()> {
    record.marks.extend(impossible(out, record)?);
    record.write(out)?;
    Ok(())
}

/// Writes one of the files with the samples of a record.
pub(crate) fn write_raw(out: &Path, record: &Record, what: &str, text: &str) -> Result<()> {
    files::write(&out.join(RAW).join(format!("{}.{what}.csv", record.name())), text)
}

/// Marks impossible figures in all records of a run. This is done at its end, too, because the baseline may have been
/// measured after the others.
pub(crate) fn flag_impossible(out: &Path) -> Result<()> {
    for mut record in record::read(out)? {
        if let Some(mark) = impossible(out, &record)? {
            record.marks.push(mark);
            record.write(out)?;
        }
    }
    Ok(())
}

/// The mark for an impossible figure, which is that the mesh's median latency is below the baseline's in the same
/// round. `None` if the record is already marked, or there is no baseline yet.
fn impossible(out: &Path, record: &Record) -> Result<Option<Mark>> {
    let known = record.marks.iter().any(|mark| mark.kind == MarkKind::FasterThanNone);
    if record.mesh == NONE || known || !record.valid() {
        return Ok(None);
    }
    let Some(base) = record::one(out, &record.name_of(NONE))? else { return Ok(None) };
    let (own, bare) = (record.latency_us.p50 as f64, base.latency_us.p50 as f64);
    Ok((base.valid() && own < bare * CLEARLY_FASTER).then(|| Mark {
        kind: MarkKind::FasterThanNone,
        why: format!("median of {own:.0} us, {bare:.0} us without a mesh"),
    }))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::generator::name::Generator;
    use crate::record::Latency;
    use crate::scenario;

    /// Two rounds of one second.
    pub(crate) fn options(out: &Path) -> Options {
        Options {
            scenarios: vec![scenario::find("http-1k").unwrap()],
            rounds: 2,
            duration: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            scale: 0.1,
            generators: vec![Generator::Leno],
            application: None,
            out: out.to_owned(),
            resume: false,
            one_hop: false,
            pinned: false,
            interrupt: Interrupt::default(),
        }
    }

    #[test]
    fn a_run_with_another_application_is_not_resumed() {
        let options = options(Path::new("/out"));
        let faces = scenario::find("faces").unwrap();
        let of = |application: Option<&str>| Record {
            application: application.map(str::to_owned),
            ..blank(&options, &faces, "leno", 0)
        };
        let go_on = |old: Record, new: Record| has_same_application(&options.out, &[old], &new);
        go_on(of(None), of(None)).unwrap();
        go_on(of(Some("/faces")), of(Some("/faces"))).unwrap();
        let nothing = Record { left_out: Some("envoy is missing".into()), ..of(None) };
        go_on(nothing, of(Some("/faces"))).unwrap();
        let refused = go_on(of(None), of(Some("/faces"))).unwrap_err().to_string();
        let why = "/out has records of faces with the suite's own services, not /faces: choose another --out";
        assert_eq!(refused, why);
    }

    #[test]
    fn existing_records_are_only_continued_with_resume() {
        let directory = tempfile::tempdir().unwrap();
        let mut options = options(directory.path());
        prepare_out(&options).unwrap();
        Record { mesh: "none".into(), ..Record::default() }.write(directory.path()).unwrap();
        assert!(prepare_out(&options).unwrap_err().to_string().contains("--resume"));
        options.resume = true;
        prepare_out(&options).unwrap();
    }

    #[test]
    fn a_record_that_cannot_be_read_is_neither_measured_again_nor_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let mut options = options(directory.path());
        let record = Record { mesh: "none".into(), ..Record::default() };
        let path = record.write(directory.path()).unwrap();
        fs::write(&path, "{\"mesh\": \"no").unwrap();
        for resume in [false, true] {
            options.resume = resume;
            let error = format!("{:#}", prepare_out(&options).unwrap_err());
            assert!(error.starts_with(&path.display().to_string()), "{error}");
            assert!(error.contains("remove the file") && error.contains("--resume"), "{error}");
        }
        fs::remove_file(path).unwrap();
        prepare_out(&options).unwrap();
    }

    #[test]
    fn a_tool_that_is_missing_later_replaces_no_figures() {
        let directory = tempfile::tempdir().unwrap();
        let options = options(directory.path());
        let faces = scenario::find("faces").unwrap();
        let first = faces.steps()[0];
        let mut good = blank(&options, &faces, "linkerd", 0);
        (good.step, good.requests) = (first, 7);
        good.write(directory.path()).unwrap();
        let old = record::read(directory.path()).unwrap();
        let again = blank(&options, &faces, "linkerd", 0);
        leave_out(&options, (&faces, again), "linkerd is missing", &old).unwrap();
        let found = record::read(directory.path()).unwrap();
        assert_eq!(found.len(), faces.steps().len());
        for one in &found {
            assert_eq!(
                (one.step == first, one.requests),
                (one.left_out.is_none(), if one.step == first { 7 } else { 0 })
            );
        }
    }

    #[test]
    fn a_mesh_faster_than_none_is_marked_when_its_baseline_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let record = |mesh: &str, round, p50| Record {
            scenario: "s".into(),
            mesh: mesh.into(),
            round,
            latency_us: Latency { p50, ..Latency::default() },
            ..Record::default()
        };
        // The baseline of the second round comes after the other records.
        let all = [
            record("none", 0, 1000),
            record("a", 0, 990),
            record("b", 0, 500),
            record("b", 1, 500),
            record("none", 1, 1000),
        ];
        let marks = all.map(|mut one| {
            write(directory.path(), &mut one).unwrap();
            one.marks.len()
        });
        assert_eq!(marks, [0, 0, 1, 0, 0]);
        for _ in 0..2 {
            flag_impossible(directory.path()).unwrap();
            let found = record::read(directory.path()).unwrap();
            let marks: Vec<_> = found.iter().map(|one| one.marks.len()).collect();
            assert_eq!(marks, [0, 1, 1, 0, 0], "a, b twice, none twice");
            assert!(found[1].valid(), "it is shown all the same");
        }
    }
}
