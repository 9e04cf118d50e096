//! The cap: what is accounted for when that costs more than its budget, with the kernel's own measurement.

use std::net::TcpStream;
use std::time::Duration;

use leno_bpf::{PinRoot, RunTime, RunTimeCounting, run_time};
use leno_flows::{FlowLevel, FlowMetricsSource, FlowSizes, LevelChange};
use socket2::SockRef;

use crate::lab::{Ending, Lab, SERVER, has_root, read, talk, write};

const OPENED: &str = "leno_flow_connections_opened_total";
const CLOSED: &str = "leno_flow_connections_closed_total";
const REDUCED: &str = "leno_flow_reduced_total";

/// Most rounds until a level changes: a return waits for at most 120 of them.
const MOST_ROUNDS: usize = 1000;
/// How long a round without connections takes at least.
const IDLE_ROUND: Duration = Duration::from_millis(5);

/// Rounds with some connections in each, until the level changes; returns how many connections were made.
fn until_step(lab: &mut Lab, connections: u64) -> (LevelChange, u64) {
    let mut made = 0;
    for _ in 0..MOST_ROUNDS {
        if connections > 0 {
            // Without any, not even a listener: the programs run for that too.
            let listener = lab.listen(SERVER[0]);
            for _ in 0..connections {
                let (client, server) = lab.connect(&listener);
                talk(client, server, [10, 10], Ending::ClientCloses);
            }
            made += connections;
        } else {
            // A round that is over at once consists of what comes by chance.
            std::thread::sleep(IDLE_ROUND);
        }
        if let Some(step) = lab.accounts().keep_budget().unwrap().pop() {
            return (step, made);
        }
    }
    panic!("the level does not change");
}

#[test]
fn over_its_budget_less_is_accounted_for_and_what_is_left_out_is_counted() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::alone(FlowSizes::default());
    let listed = |lab: &Lab| lab.view().list().unwrap().0.len() as u64;
    // Any connection costs more than that.
    lab.accounts().set_budget(Some("0.0000001%".parse().unwrap())).unwrap();
    let (step, full) = until_step(&mut lab, 5);
    assert_eq!((step.level, step.down), (FlowLevel::Aggregated, true));
    assert!(step.cost > 0.0, "{step:?}");
    assert_eq!(listed(&lab), 2 * full);
    let (step, aggregated) = until_step(&mut lab, 5);
    assert_eq!((step.level, step.down), (FlowLevel::Off, true));
    assert_eq!(listed(&lab), 2 * full, "connections since are not listed");
    let all = 2 * (full + aggregated);
    let rows = lab.metrics_when(|rows| rows.sum(CLOSED, &[]) == all);
    assert_eq!(rows.sum(OPENED, &[]), all, "sums are complete");
    assert_eq!(rows.sum(REDUCED, &[("level", "aggregated")]), 2 * aggregated);
    assert_eq!(rows.sum("leno_flow_level", &[("level", "off")]), 1);
    assert_eq!(rows.sum("leno_flow_level_changes_total", &[("direction", "down")]), 2);
    assert_eq!(lab.view().price().unwrap().level, FlowLevel::Off, "any process can read it");

    // Without connections the programs cost far less than this budget, whatever the kernel drops of other programs, for which
    // one of them runs too: each level comes back.
    lab.accounts().set_budget(Some("50%".parse().unwrap())).unwrap();
    assert_eq!(lab.view().price().unwrap().level, FlowLevel::Off, "no budget changes the level");
    for expected in [FlowLevel::Aggregated, FlowLevel::Full] {
        let (step, _) = until_step(&mut lab, 0);
        assert_eq!((step.level, step.down), (expected, false));
    }
    let missing = lab.view().list().unwrap().1;
    assert_eq!(missing, 0, "the table was never full");
}

#[test]
fn connections_while_accounting_is_off_are_counted_as_left_out() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::alone(FlowSizes::default());
    lab.accounts().set_budget(Some("0.0000001%".parse().unwrap())).unwrap();
    // One that is open at both changes stays accounted for.
    let listener = lab.listen(SERVER[1]);
    let to = listener.local_addr().unwrap();
    let (client, server) = lab.connect(&listener);
    until_step(&mut lab, 3);
    until_step(&mut lab, 3);
    let before = lab.metrics().sum(OPENED, &[]);
    let offered = 40;
    let left_out = lab.listen(SERVER[0]);
    let elsewhere = left_out.local_addr().unwrap();
    for _ in 0..offered {
        let client = lab.within("client", || TcpStream::connect(elsewhere).unwrap());
        talk(client, left_out.accept().unwrap().0, [1, 1], Ending::ServerCloses);
    }
    talk(client, server, [5000, 1], Ending::ClientCloses);
    let rows = lab.metrics_when(|rows| rows.sum(CLOSED, &[]) == rows.sum(OPENED, &[]));
    assert_eq!(rows.sum(OPENED, &[]), before);
    assert_eq!(rows.sum(REDUCED, &[("level", "off")]), 2 * offered);
    let open = lab.flows("client", |flows| flows.iter().any(|flow| flow.remote == to));
    let open = open.iter().find(|flow| flow.remote == to).unwrap();
    assert_eq!((open.bytes_sent, open.state), (5000, "closed"));
}

#[test]
fn a_workload_over_its_own_budget_steps_down_alone_and_comes_back() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::alone(FlowSizes::default());
    let listed = |lab: &Lab, side: &str, socket: &str| {
        let flows = lab.view().list().unwrap().0;
        let of = flows.iter().filter(|one| one.workload == side && one.socket == socket);
        of.count() as u64
    };
    let level = |lab: &mut Lab, side: &str, level: &str| {
        let labels = [("workload", side), ("level", level)];
        lab.metrics().sum("leno_flow_workload_level", &labels)
    };
    // However long this takes, connections that have ended stay listed.
    lab.accounts().set_linger(Duration::from_secs(3600));
    // Any frame costs more than that.
    let budget = "0.0000001%".parse().unwrap();
    lab.accounts().set_source("client-0", FlowMetricsSource::Packets, Some(budget)).unwrap();
    let mut made = 0;
    for (down, expected) in
        [FlowLevel::Sockets, FlowLevel::Aggregated, FlowLevel::Off].iter().enumerate()
    {
        let (step, connections) = until_step(&mut lab, 5);
        made += connections;
        assert_eq!((step.level, step.down), (*expected, true));
        assert_eq!(step.of, Some(("shop".to_owned(), "client".to_owned())));
        assert!(step.cost > 0.0, "{step:?}");
        assert_eq!(level(&mut lab, "client", expected.name()), 1);
        let caps = lab.view().caps().unwrap();
        let [cap] = &caps[..] else { panic!("{caps:?}") };
        assert_eq!(
            (cap.workload.as_str(), cap.price.level),
            ("client", *expected),
            "any process can read it"
        );
        assert_eq!(listed(&lab, "server", "application"), made, "the other one has all");
        // Frames first, then sockets, then none that begin.
        assert_eq!(listed(&lab, "client", "application") > 0, down > 0);
    }
    assert_eq!(lab.metrics().sum("leno_flow_level", &[("level", "full")]), 1);
    let steps = "leno_flow_workload_level_changes_total";
    assert_eq!(lab.metrics().sum(steps, &[("workload", "client"), ("direction", "down")]), 3);
    // A frame that comes by chance costs less than this. Another budget keeps the level.
    lab.accounts()
        .set_source("client-0", FlowMetricsSource::Packets, Some("50%".parse().unwrap()))
        .unwrap();
    assert_eq!(level(&mut lab, "client", "off"), 1);
    for expected in [FlowLevel::Aggregated, FlowLevel::Sockets, FlowLevel::Full] {
        let (step, _) = until_step(&mut lab, 0);
        assert_eq!((step.level, step.down), (expected, false));
    }
    assert_eq!(level(&mut lab, "client", "full"), 1);
    // Without a budget it is accounted for whole, and is not listed among those that have one.
    lab.accounts().set_source("client-0", FlowMetricsSource::Packets, None).unwrap();
    assert!(lab.view().caps().unwrap().is_empty());
    assert_eq!(level(&mut lab, "client", "full"), 0);
}

/// Not a test: prints what a connection costs at each level, both ends together, by the kernel's own clock.
/// `cargo test -p leno-flows --test kernel -- --ignored --nocapture prints_the_cost`
#[test]
#[ignore = "measures, and asserts nothing"]
fn prints_the_cost_of_a_connection() {
    let lab = Lab::alone(FlowSizes::default());
    let root = PinRoot::find().unwrap();
    let _counting = RunTimeCounting::start().unwrap();
    let owners = [lab.owner.clone()];
    println!("{:12}{:>12}{:>12}{:>16}", "level", "runs", "ns a run", "us a connection");
    for round in 0..3 {
        for level in FlowLevel::ALL {
            lab.accounts.as_ref().unwrap().set_level(*level).unwrap();
            let before = run_time(&root, &owners).unwrap();
            let connections = 10_000;
            connect(&lab, connections);
            let after = run_time(&root, &owners).unwrap();
            let RunTime { runs, took } =
                RunTime { runs: after.runs - before.runs, took: after.took - before.took };
            println!(
                "{:12}{:12.1}{:12}{:16.2}   round {round}",
                level.name(),
                runs as f64 / connections as f64,
                took.as_nanos() / u128::from(runs.max(1)),
                took.as_secs_f64() * 1e6 / connections as f64,
            );
        }
    }
}

/// Connections of 100 bytes in each direction, each reset by the client.
fn connect(lab: &Lab, connections: usize) {
    let listener = lab.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..connections {
                let (stream, _) = listener.accept().unwrap();
                read(&stream, 100).unwrap();
                write(&stream, 100).unwrap();
            }
        });
        scope.spawn(|| {
            lab.within("client", || {
                for _ in 0..connections {
                    let stream = TcpStream::connect(to).unwrap();
                    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                    write(&stream, 100).unwrap();
                    read(&stream, 100).unwrap();
                }
            });
        });
    });
}
