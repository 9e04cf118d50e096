//! Tests the budget: what is still accounted for when accounting exceeds it, according to the kernel's own
//! measurement.

use std::net::TcpStream;
use std::time::Duration;

use leno_bpf::{PinRoot, RunTime, RunTimeCounting, run_time};
use leno_flows::{FlowLevel, FlowMetricsSource, FlowSizes, LevelChange};
use socket2::SockRef;

use crate::lab::{Ending, Lab, SERVER, has_root, read, talk, write};

const OPENED: &str = "leno_flow_connections_opened_total";
const CLOSED: &str = "leno_flow_connections_closed_total";
const REDUCED: &str = "leno_flow_reduced_total";

/// Most rounds until a level changes. The longest wait before a level is raised is 120 rounds.
const MOST_ROUNDS: usize = 1000;
/// The shortest duration of a round without connections.
const IDLE_ROUND: Duration = Duration::from_millis(5);

/// Makes `connections` in each round, until the level changes. Returns the change, and how many connections were
/// made.
fn until_step(lab: &mut Lab, connections: u64) -> (LevelChange, u64) {
    let mut made = 0;
    for _ in 0..MOST_ROUNDS {
        if connections > 0 {
            // Without connections there is no listener either, because the programs run for listeners as well.
            let listener = lab.listen(SERVER[0]);
            for _ in 0..connections {
                let (client, server) = lab.connect(&listener);
                talk(client, server, [10, 10], Ending::ClientCloses);
            }
            made += connections;
        } else {
            // In a very short round, the measurement would be dominated by chance.
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
    // Every connection costs more than this budget.
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

    // Without connections the programs cost far less than this budget, so each level is raised again. One of the
    // programs also runs when the kernel drops packets of other processes, but that costs less as well.
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
    // A connection that is open at both changes is still accounted for.
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
    // Ended connections stay listed, however long this test takes.
    lab.accounts().set_linger(Duration::from_secs(3600));
    // Every frame costs more than this budget.
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
        // First frames are counted, then sockets, and then no new connections.
        assert_eq!(listed(&lab, "client", "application") > 0, down > 0);
    }
    assert_eq!(lab.metrics().sum("leno_flow_level", &[("level", "full")]), 1);
    let steps = "leno_flow_workload_level_changes_total";
    assert_eq!(lab.metrics().sum(steps, &[("workload", "client"), ("direction", "down")]), 3);
    // A frame that is sent by chance costs less than this budget. Another budget does not reset the level.
    lab.accounts()
        .set_source("client-0", FlowMetricsSource::Packets, Some("50%".parse().unwrap()))
        .unwrap();
    assert_eq!(level(&mut lab, "client", "off"), 1);
    for expected in [FlowLevel::Aggregated, FlowLevel::Sockets, FlowLevel::Full] {
        let (step, _) = until_step(&mut lab, 0);
        assert_eq!((step.level, step.down), (expected, false));
    }
    assert_eq!(level(&mut lab, "client", "full"), 1);
    // Without a budget everything is accounted for, and the workload is not listed among those with a budget.
    lab.accounts().set_source("client-0", FlowMetricsSource::Packets, None).unwrap();
    assert!(lab.view().caps().unwrap().is_empty());
    assert_eq!(level(&mut lab, "client", "full"), 0);
}

/// Not a test: prints what a connection costs at each level, for both ends together, according to the kernel's
/// clock. `cargo test -p leno-flows --test kernel -- --ignored --nocapture prints_the_cost`
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

/// Makes connections with 100 bytes in each direction, which the client resets.
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
