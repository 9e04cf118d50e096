//! Tests `leno bench` from the command line: a whole run under real meshes, its report, and its errors.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use leno_suite::compare;
use leno_suite::record::{self, MarkKind, Record};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn leno(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_leno")).arg("bench").args(arguments).output();
    output.expect("leno can be run")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether the tests run as root. If root is required, running as another user is a failure.
fn is_root() -> bool {
    if nix::unistd::geteuid().is_root() {
        return true;
    }
    assert!(!leno_testkit::tools::required("root"), "LENO_REQUIRE has root");
    println!("skipped: needs root");
    false
}

fn find<'a>(records: &'a [Record], mesh: &str) -> &'a Record {
    records.iter().find(|record| record.mesh == mesh).unwrap_or_else(|| panic!("no {mesh}"))
}

fn runs(out: &Path, (scenario, generators): (&str, &str), meshes: &str) -> Vec<Record> {
    let out_text = out.display().to_string();
    let output = leno(&[
        "run",
        scenario,
        "--mesh",
        meshes,
        "--duration",
        "1s",
        "--warm-up",
        "300ms",
        "--rounds",
        "1",
        "--scale",
        "0.02",
        "--generator",
        generators,
        "--out",
        &out_text,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    record::read(out).expect("records")
}

#[test]
fn help_explains_the_commands_of_the_separate_program() {
    let ask = |words: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_leno")).args(words).output().expect("leno can be run")
    };
    let asked = ask(&["help", "bench", "run"]);
    assert_eq!((asked.status.code(), text(&asked.stderr)), (Some(0), String::new()));
    let help = text(&asked.stdout);
    assert!(help.contains("Usage: leno bench run "), "{help}");
    assert_eq!(help, text(&ask(&["bench", "run", "--help"]).stdout));
    let all = text(&ask(&["help", "bench"]).stdout);
    assert!(all.contains("\n  client-address "), "{all}");
    let unknown = ask(&["help", "bench", "nonsense"]);
    assert_eq!(unknown.status.code(), Some(64), "{unknown:?}");
    assert!(text(&unknown.stderr).contains("unrecognized subcommand 'nonsense'"), "{unknown:?}");
}

#[test]
fn a_run_measures_every_mesh_and_its_report_says_so() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("bench");
    let records = runs(&out, ("http-1k", "leno"), "none,leno");
    assert_eq!(records.len(), 2);
    for record in &records {
        assert_eq!(record.left_out, None, "{}", record.mesh);
        assert_eq!(
            (record.errors, record.services),
            (0, 10),
            "{}: {:?}",
            record.mesh,
            record.errors_by_kind
        );
        // 10 services at 20 requests/s each.
        assert_eq!(record.requests, 200, "{}", record.mesh);
        // Each request takes the application 10 ms.
        assert!(record.latency_us.p50 >= 10_000, "{:?}", record.latency_us);
        assert!(record.cpu_ms.application > 0.0 && record.cpu_ms.generator > 0.0);
    }
    let (none, leno) = (find(&records, run_baseline()), find(&records, "leno"));
    assert_eq!((none.proxies, none.cpu_us_per_request(), none.rss_kib.peak), (0, 0.0, 0));
    assert_eq!(leno.proxies, 11, "one beside each of 10 services and the client");
    assert!(
        leno.cpu_us_per_request() > 0.0 && leno.rss_kib.idle > 0 && leno.control_rss_kib.idle > 0
    );
    assert!(!leno.capture.is_empty() && leno.binary_bytes > Some(0));
    assert!(none.crossing_connections >= 10 && leno.crossing_connections > 0, "one a service");
    assert_eq!((none.kernel_programs.runs, none.kernel_programs.ms), (0, 0.0));
    if leno.capture == "ebpf" {
        assert!(leno.kernel_programs.runs > 0 && leno.kernel_programs.ms > 0.0, "{leno:?}");
    }
    // The prober saw the proxies stop and start again.
    assert!(leno.start_up_ms.is_some_and(|ms| ms > 0.0 && ms < 20_000.0), "{:?}", leno.start_up_ms);
    report(&out);
    resume(&out);
}

fn run_baseline() -> &'static str {
    leno_suite::mesh_names::NONE
}

fn report(out: &Path) {
    let out_text = out.display().to_string();
    let output = leno(&["report", &out_text]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("leno"), "{}", text(&output.stdout));
    let page = fs::read_to_string(out.join("report.html")).expect("a file of the run");
    assert!(page.contains("latency by percentile") && page.contains("<svg"));
    for file in ["report.md", "report.csv", "charts/latency-http-1k.svg"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    let raw =
        fs::read_to_string(out.join("raw/http-1k.leno.r0.latency.csv")).expect("a file of the run");
    let counted: u64 =
        raw.lines().skip(1).filter_map(|line| line.split(',').nth(1)?.parse::<u64>().ok()).sum();
    assert_eq!(counted, 200, "every request is in the raw data");
    assert!(leno(&["compare", &out_text, &out_text]).status.success());
    assert!(text(&leno(&["claims", &out_text]).stdout).contains("not measurable here"));
    // A machine that is too busy for a valid run yields no record whose price could be computed.
    assert!(text(&leno(&["cost", &out_text]).stdout).contains("MACHINE"));
    assert!(text(&leno(&["cost", "--print-prices"]).stdout).contains("m6g.large"));
}

/// Existing records are not measured again, and not overwritten by accident.
fn resume(out: &Path) {
    let out_text = out.display().to_string();
    let again = leno(&["run", "http-1k", "--out", &out_text]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("--resume"), "{}", text(&again.stderr));
    let before = fs::read(out.join("records/http-1k.none.r0.json")).expect("a file of the run");
    let resumed = leno(&[
        "run", "http-1k", "--mesh", "none", "--rounds", "1", "--resume", "--out", &out_text,
    ]);
    assert!(
        text(&resumed.stderr).contains("1 of 1 have a record already"),
        "{}",
        text(&resumed.stderr)
    );
    assert_eq!(
        fs::read(out.join("records/http-1k.none.r0.json")).expect("a file of the run"),
        before
    );
}

/// Runs scenarios under meshes and returns their records.
fn several(scenarios: &[&str], meshes: &str, duration: &str) -> Vec<Record> {
    let directory = tempfile::tempdir().expect("a directory of its own");
    let out = directory.path().display().to_string();
    let mut words = [&["run"], scenarios, &["--mesh", meshes, "--duration", duration]].concat();
    words.extend(["--warm-up", "200ms", "--rounds", "1", "--scale", "0.1", "--out", &out]);
    let output = leno(&words);
    assert!(output.status.success(), "{}", text(&output.stderr));
    record::read(directory.path()).expect("records")
}

fn one<'a>(records: &'a [Record], scenario: &str, mesh: &str) -> &'a Record {
    let found = records.iter().find(|one| one.scenario == scenario && one.mesh == mesh);
    found.unwrap_or_else(|| panic!("no {scenario} of {mesh}"))
}

/// Tests that proxies hand over under load without a failed request or a cut stream; that the resources of proxies
/// are counted; and that the report shows how workloads in one process affect each other.
#[test]
fn node_mode_is_measured_beside_sidecars() {
    if !is_root() {
        return;
    }
    let scenarios = ["upgrade", "neighbours", "memory-1", "restart-websockets"];
    let records = several(&scenarios, "none,leno,leno-node", "4s");
    let of = |scenario: &str, mesh: &str| one(&records, scenario, mesh);
    for mesh in ["leno", "leno-node"] {
        let upgrade = of("upgrade", mesh);
        // A busy machine may not send each request in time.
        let unsent = upgrade.errors_by_kind.get("unsent").copied().unwrap_or_default();
        let errors = &upgrade.errors_by_kind;
        assert_eq!((&upgrade.left_out, upgrade.errors), (&None, unsent), "{errors:?}");
        assert!(upgrade.revisions >= 1 && upgrade.requests > 0, "{upgrade:?}");
        let sockets = upgrade.websockets.unwrap();
        assert_eq!((sockets.connections, sockets.cut, sockets.errors), (500, 0, 0), "{sockets:?}");
        assert!(sockets.messages > 0 && sockets.longest_us > 0, "{sockets:?}");
    }
    for mesh in ["none", "leno", "leno-node"] {
        let beside = of("neighbours", mesh);
        assert_eq!(beside.left_out, None, "{mesh}");
        assert!(beside.alone_latency_us.as_ref().is_some_and(|alone| alone.p99 > 0), "{mesh}");
        assert!(beside.neighbour_requests_per_s > Some(0.0), "{mesh}: {beside:?}");
        let floods: Vec<u64> = beside.floods.iter().map(|one| one.requests).collect();
        assert!(floods.len() == 3 && !floods.contains(&0), "{mesh}: {beside:?}");
        let is_meshed = mesh != "none";
        let killed = of("restart-websockets", mesh);
        assert_eq!(killed.left_out, None, "{mesh}");
        // WebSockets are opened for 3 s, and the kill is within the 4 s of load. A request fails only if it is on
        // its way through the process at that time, or arrives before the next process listens.
        let cut = killed.websockets.unwrap().cut;
        assert_eq!(cut > 0, is_meshed, "{mesh}: {killed:?}");
        assert!(is_meshed || killed.errors == 0, "{mesh}: {killed:?}");
        assert_eq!(beside.proxies, if is_meshed { 10 } else { 0 }, "{mesh}: all of them");
        let idle = of("memory-1", mesh);
        assert_eq!((&idle.left_out, idle.errors), (&None, 0), "{mesh}");
        assert_eq!(idle.proxies, if is_meshed { 2 } else { 0 }, "{mesh}");
        let memory = idle.idle_memory.unwrap();
        assert!(memory.agent.private_kib > 0, "{mesh}");
        assert_eq!(memory.proxies.private_kib > 0, is_meshed, "{mesh}: {memory:?}");
    }
    let is_shared = |mesh: &str| {
        let marks = &of("neighbours", mesh).marks;
        marks.iter().any(|mark| mark.kind == MarkKind::SharedProxies)
    };
    assert!(is_shared("leno-node") && !is_shared("leno"));
}

/// Configuration that a scenario changes during the run takes effect, and no request fails.
#[test]
fn configurations_arrive_under_load_and_neighbours_are_kept_apart() {
    if !is_root() {
        return;
    }
    let records = several(&["push", "churn", "neighbour"], "none,leno", "2s");
    let of = |scenario: &str, mesh: &str| one(&records, scenario, mesh);
    for record in &records {
        let what = format!("{} of {}", record.scenario, record.mesh);
        assert_eq!(record.left_out, None, "{what}");
        assert_eq!(record.errors, 0, "{what}: {:?}", record.errors_by_kind);
    }
    let (push, churn) = (of("push", "leno"), of("churn", "leno"));
    assert!(push.revisions > 1 && churn.revisions > 1, "{push:?}");
    // Revisions in quick succession may be merged into one.
    let arrived = push.revisions_arrived.unwrap_or_default();
    assert!((2..=push.revisions).contains(&arrived), "{arrived} of {}", push.revisions);
    assert_eq!((of("push", "none").revisions, of("push", "none").revisions_arrived), (0, None));
    let flooded = of("neighbour", "leno");
    assert!(flooded.neighbour_requests_per_s > Some(0.0) && flooded.cpu_ms.neighbour > 0.0);
    assert_eq!(flooded.proxies, 2, "the flood's are not the measured ones");
    assert!(!flooded.marks.iter().any(|mark| mark.kind == MarkKind::FloodEnded), "{flooded:?}");
}

/// Stands in for a real application: programs that listen at the address in their environment, and find each other
/// by addresses in their environment.
#[test]
fn a_folder_of_programs_is_measured_in_place_of_our_own_services() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (folder, out) = (directory.path().join("its programs"), directory.path().join("bench"));
    fs::create_dir(&folder).unwrap();
    let program = |name: &str, more: &str| {
        let bench = leno_testkit::binaries::ours("leno-bench").unwrap();
        let bench = bench.display();
        let listen = "serve --listen 0.0.0.0:\"$PORT\"";
        let file = folder.join(name);
        fs::write(&file, format!("#!/bin/sh\nexec \"{bench}\" {listen} {more}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("face", "--call-http \"$SMILEY_SERVICE\" --call-grpc \"$COLOR_SERVICE\"");
    program("smiley", "");
    let (folder, out_text) = (folder.display().to_string(), out.display().to_string());
    let mut words = vec!["run", "faces@60", "--application", &folder, "--mesh", "none,leno"];
    words.extend(["--duration", "1s", "--warm-up", "200ms", "--rounds", "1", "--scale", "1"]);
    words.extend(["--out", &out_text]);
    let refused = leno(&words);
    let why = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && why.contains("no program color"), "{why}");
    assert!(!out.exists(), "nothing was made");
    program("color", "");
    let output = leno(&words);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let records = record::read(&out).unwrap();
    for (mesh, proxies) in [(run_baseline(), 0), ("leno", 4)] {
        let record = find(&records, mesh);
        assert_eq!(record.left_out, None, "{mesh}");
        assert_eq!(
            (record.requests, record.errors),
            (60, 0),
            "{mesh}: {:?}",
            record.errors_by_kind
        );
        assert_eq!((record.application.as_deref(), record.proxies), (Some(&*folder), proxies));
        assert_eq!(record.application_digests.len(), 3, "{mesh}");
    }
    let said = text(&leno(&["report", &out_text]).stdout);
    assert!(said.contains(&format!("faces is the real application ({folder}")), "{said}");
}

/// Whether a tool from a Debian package is installed. If the tool is required, its absence is a failure.
fn has(tool: &str) -> bool {
    if Command::new(tool).arg("--version").output().is_ok() {
        return true;
    }
    assert!(!leno_testkit::tools::required("tools"), "LENO_REQUIRE has tools: {tool} is missing");
    println!("skipped: {tool} is missing");
    false
}

/// Runs a scenario with Leno's load generator and with `other`, each once under each of `meshes`. Returns, for each
/// mesh, the record of Leno's generator and that of the other one. The report must show both side by side.
fn beside((scenario, meshes): (&str, &str), other: &str) -> Vec<(Record, Record)> {
    let directory = tempfile::tempdir().expect("a directory of its own");
    let records = runs(directory.path(), (scenario, &format!("leno,{other}")), meshes);
    let of = |generator: &str, mesh: &str| {
        let is_it = |one: &&Record| one.generator == generator && one.mesh == mesh;
        let found = records.iter().find(is_it);
        let what = format!("{mesh} by {generator}");
        let found = found.unwrap_or_else(|| panic!("no record of {what}")).clone();
        // On a busy machine Leno's generator may find no rate at which the latency stays within its limit.
        let slow =
            found.left_out.as_ref().is_some_and(|why| why.contains("kept the 99th percentile"));
        assert!(found.left_out.is_none() || slow, "{what}: {:?}", found.left_out);
        assert_eq!((found.errors, found.requests > 0), (0, !slow), "{what}: {found:?}");
        found
    };
    let output = leno(&["report", &directory.path().display().to_string()]);
    let said = text(&output.stdout);
    assert!(said.contains("generators side by side") && said.contains("P50 RATIO"), "{said}");
    let page = fs::read_to_string(directory.path().join("report.html")).expect("it was written");
    let both = |mesh: &str| {
        let is_its = |line: &&str| line.contains(mesh) && line.contains(&format!(" {other} "));
        let line = said.lines().find(is_its);
        println!("{}", line.unwrap_or_else(|| panic!("no line of {mesh} by {other}: {said}")));
        assert!(page.contains(mesh), "{mesh} is not on the page");
        (of("leno", mesh), of(other, mesh))
    };
    meshes.split(',').map(both).collect()
}

/// Runs the first command of the guide, and checks that Leno's generator can be trusted under each of its meshes.
#[test]
fn envoy_is_measured_beside_leno_and_fortio_sees_what_we_see() {
    if !is_root() {
        return;
    }
    for tool in ["envoy", "fortio"] {
        let there = leno_testkit::tools::install_or_skip(tool);
        if there.expect("tools can be installed").is_none() {
            return;
        }
    }
    for (ours, theirs) in beside(("http-1k", "none,leno,envoy"), "fortio") {
        let mesh = &ours.mesh;
        assert_eq!(ours.rate_per_s, theirs.rate_per_s, "{mesh}: the same rate");
        for record in [&ours, &theirs].into_iter().filter(|record| record.mesh != run_baseline()) {
            // Ten services have one proxy each, and the client has one.
            assert_eq!(record.proxies, 11, "{mesh}");
            assert!(record.cpu_us_per_request() > 0.0 && record.rss_kib.idle > 0, "{record:?}");
            assert!(record.binary_bytes > Some(0) && record.start_up_ms.is_some(), "{record:?}");
            assert!(record.context_switches.voluntary > 0, "{record:?}");
        }
        assert_ne!(see_the_same(&ours, &theirs), Some(false), "{mesh}");
    }
    // On a machine that is never quiet for two seconds there is no comparison. That must not look like a passed
    // test.
    let quiet = (0..QUIET_TRIES).find_map(|_| {
        let (ours, theirs) = beside(("http-1k", run_baseline()), "fortio").remove(0);
        see_the_same(&ours, &theirs)
    });
    match quiet {
        Some(same) => assert!(same, "without a mesh"),
        None => {
            assert!(!leno_testkit::tools::required("quiet"), "LENO_REQUIRE has quiet");
            println!("skipped: in {QUIET_TRIES} tries the machine was never quiet");
        }
    }
}

/// How many times generators are compared before the machine counts as never quiet.
const QUIET_TRIES: usize = 5;

/// Whether two generators agree; on a quiet machine their results differ by less than a tenth. `None` if another
/// process used the machine meanwhile, or if one of the generators was the bottleneck.
fn see_the_same(ours: &Record, theirs: &Record) -> Option<bool> {
    let disturbed = |record: &Record| {
        let disturbs = |kind| matches!(kind, MarkKind::GeneratorLimited | MarkKind::BusyMachine);
        record.marks.iter().any(|mark| disturbs(mark.kind))
    };
    let (own, other) = (ours.latency_us.p50 as f64, theirs.latency_us.p50 as f64);
    let undisturbed = !disturbed(ours) && !disturbed(theirs);
    println!("{}: leno {own} us, fortio {other} us, undisturbed: {undisturbed}", ours.mesh);
    undisturbed.then(|| (0.5..2.0).contains(&(own / other)))
}

#[test]
fn h2load_and_wrk_are_put_beside_our_generator() {
    if !is_root() || !has("h2load") || !has("wrk") {
        return;
    }
    let (ours, theirs) = beside(("grpc-4k", run_baseline()), "h2load").remove(0);
    assert_eq!((ours.rate_per_s, theirs.rate_per_s), (Some(100.0), Some(100.0)));
    assert!(ours.latency_us.p50 > 0 && theirs.latency_us.p50 > 0);
    let (ours, theirs) = beside(("saturation", run_baseline()), "wrk").remove(0);
    // Leno's generator searches for the highest rate within a latency limit. The other one sends in a closed loop,
    // which has no rate.
    assert_eq!((ours.rate_per_s.is_none(), theirs.rate_per_s), (ours.left_out.is_some(), None));
}

#[test]
fn a_generator_that_cannot_make_a_load_is_named_in_the_report() {
    if !is_root() || !has("wrk") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let records = runs(directory.path(), ("http-1k", "leno,wrk"), "none");
    let why = records.iter().find(|record| record.generator == "wrk").unwrap().left_out.clone();
    assert_eq!(why.as_deref(), Some("wrk is driven for HTTP/1.1 in a closed loop only"));
    let said = text(&leno(&["report", &directory.path().display().to_string()]).stdout);
    assert!(said.contains("wrk is driven for HTTP/1.1 in a closed loop only"), "{said}");
}

#[test]
fn what_is_missing_is_a_record_with_the_command_that_brings_it() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().display().to_string();
    let output = leno(&[
        "run",
        "connections",
        "--mesh",
        "envoy",
        "--envoy",
        "/nowhere/envoy",
        "--duration",
        "300ms",
        "--warm-up",
        "0s",
        "--rounds",
        "1",
        "--scale",
        "0.01",
        "--out",
        &out,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let records = record::read(directory.path()).unwrap();
    let why = find(&records, "envoy").left_out.clone().unwrap();
    assert!(why.contains("/nowhere/envoy is missing") && why.contains("--envoy"), "{why}");
    let none = find(&records, run_baseline());
    assert!(none.connections_opened >= none.requests, "a new connection for each request");
    assert!(!compare::within(&records).iter().any(|text| text.contains("different machines")));
    assert!(!none.marks.iter().any(|mark| mark.kind == MarkKind::DeadTarget));
}

/// How long a run may take until its first record, on a slow machine.
const FIRST_RECORD: Duration = Duration::from_secs(120);

/// Whether a name belongs to this lab, rather than to one whose number merely begins with the same digits.
fn is_of(name: &str, lab: &str) -> bool {
    name.match_indices(lab).any(|(at, _)| {
        let rest = &name[at + lab.len()..];
        !rest.starts_with(|next: char| next.is_ascii_digit())
    })
}

#[test]
fn the_name_of_a_lab_is_not_that_of_another_whose_number_is_longer() {
    for (name, is_its) in
        [("bench-123", true), ("leno-bench-123-client", true), ("bench-1234", false)]
    {
        assert_eq!(is_of(name, "bench-123"), is_its, "{name}");
    }
}

/// Tests that an interrupted run keeps its records, and leaves nothing of its lab.
#[test]
fn an_interrupted_run_keeps_what_is_done_and_leaves_no_lab() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
    command.args(["bench", "run", "connections", "--mesh", "none,leno", "--duration", "300ms"]);
    command.args(["--warm-up", "0s", "--rounds", "1000", "--scale", "0.01", "--out", &out]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let deadline = Instant::now() + FIRST_RECORD;
    while record::read(directory.path()).is_err() {
        let ended = child.try_wait().unwrap();
        if ended.is_some() || Instant::now() > deadline {
            if ended.is_none() {
                kill(Pid::from_raw(id.cast_signed()), Signal::SIGINT).unwrap();
            }
            let said = text(&child.wait_with_output().unwrap().stderr);
            panic!("no record, and it ended with {ended:?} or is too slow: {said}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    kill(Pid::from_raw(id.cast_signed()), Signal::SIGINT).unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(said.contains("the records are kept, and --resume continues"), "{said}");
    assert!(find(&record::read(directory.path()).unwrap(), "none").requests > 0);
    let lab = format!("bench-{id}");
    for folder in ["/run/netns", "/run/leno"] {
        let left = fs::read_dir(folder).into_iter().flatten().flatten();
        let left: Vec<String> = left.map(|one| one.file_name().display().to_string()).collect();
        assert!(!left.iter().any(|name| is_of(name, &lab)), "{folder}: {left:?}");
    }
}

#[test]
fn wrong_words_are_answered_with_the_right_ones() {
    let output = leno(&["run", "http-2k", "--out", "/nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("http-1k"), "{}", text(&output.stderr));
    let output = leno(&["run", "http-1k", "--mesh", "istio", "--out", "/nowhere"]);
    assert!(text(&output.stderr).contains("in a cluster (--context)"), "{}", text(&output.stderr));
    let listed = text(&leno(&["list"]).stdout);
    for word in ["http-1k", "leno-iptables", "haproxy", "fortio"] {
        assert!(listed.contains(word), "{word}");
    }
    // Combinations that a mesh or a cluster does not support.
    for line in [
        "not churn, push: the stand-in for its control plane tells everything once",
        "not push: ztunnel has no routes: those are its waypoint's, which is Envoy",
        "not churn: ztunnel takes pods as endpoints by selectors alone",
    ] {
        assert!(listed.contains(line), "{line} is not in {listed}");
    }
    let output = leno(&["run", "http-1k", "--cluster", "--mesh", "haproxy", "--out", "/nowhere"]);
    assert!(text(&output.stderr).contains("only in the lab of one machine"), "{output:?}");
}
