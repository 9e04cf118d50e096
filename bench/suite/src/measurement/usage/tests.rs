//! Results from two or more readings that are made for the test.

use leno_measure::usage::Cpu;

use super::*;
use crate::kernel_counters::MachineTime;
use crate::record::ContextSwitches;

/// One second of a kernel's clock, in microseconds.
const SECOND: u64 = 1_000_000;

/// The name of the proxy in most tests.
const PROXY: &str = "client/proxy";

/// Components with their roles, names and IDs, CPU in ms (a quarter of it in user mode) and memory in
/// KiB.
type Components<'a> = &'a [(Role, &'a str, &'a str, u64, u64)];

/// A reading of components on node `n1` at a given second.
fn reading(second: u64, components: Components<'_>) -> Reading {
    let mut counters =
        NodeCounters { boot_id: "k".into(), at_us: second * SECOND, ..NodeCounters::default() };
    let mut read = Vec::new();
    for &(role, name, id, ms, kib) in components {
        read.push(Component { role, name: name.into(), node: "n1".into(), id: id.into() });
        let process = Process {
            pid: 7,
            began_us: if id.starts_with("new") { 15 * SECOND } else { 0 },
            cpu: Cpu { user_us: ms * 250, system_us: ms * 750 },
            switches: ContextSwitches { voluntary: ms, involuntary: 1 },
            rss_kib: kib,
            program_bytes: 1000 + kib,
        };
        counters.containers.insert(id.to_owned(), vec![process]);
    }
    let busy_ms = (second * 1500) as f64;
    counters.whole = Some(KernelCounters {
        machine: MachineTime {
            busy_ms,
            interrupts_ms: 1.0,
            steal_ms: busy_ms / 10.0,
            processors: 2,
        },
        kernel_threads_ms: Some(second as f64),
        programs: BTreeMap::from([(1, (second, second * 1_000_000)), (second as u32, (5, 1))]),
    });
    let mut reading = Reading::default();
    reading.add("n1", counters, &read);
    reading
}

/// A sample after that many seconds of load.
fn sample(second: u64, reading: Reading) -> Sample {
    Sample { elapsed: Duration::from_secs(second), reading, is_complete: true }
}

#[test]
fn usage_between_two_readings_is_counted_by_role() {
    let at = |second, factor: u64| {
        let all = [
            (Role::Generator, "client", "1", 10 * factor, 1),
            (Role::Proxy, PROXY, "2", 20 * factor, 100 * factor),
            (Role::Application, "s0", "3", 30 * factor, 1),
            (Role::Proxy, "s0/proxy", "4", 40 * factor, 100),
            (Role::Neighbour, "s1/proxy", "5", 50 * factor, 1000),
            (Role::Neighbour, "neighbour", "6", 60 * factor, 1000),
            (Role::Agent, "agent", "7", 70 * factor, 1000),
            (Role::Control, "controller", "8", 80 * factor, 50),
        ];
        reading(second, &all)
    };
    let (before, after) = (at(10, 1), at(20, 3));
    let UsageByRole { used, programs, broken } = between(&[&before, &after]);
    assert_eq!(broken, [""; 0]);
    let cpu = used.cpu;
    assert_eq!((cpu.generator, cpu.proxies, cpu.application), (20.0, 120.0, 60.0));
    assert_eq!((cpu.neighbour, cpu.agent, cpu.control), (220.0, 140.0, 160.0));
    assert_eq!(used.proxy_user_ms, 30.0, "user and system are told apart");
    assert_eq!(used.switches, ContextSwitches { voluntary: 120, involuntary: 0 });
    assert_eq!((cpu.machine, cpu.steal, cpu.interrupts), (15_000.0, 1500.0, 0.0));
    assert_eq!((cpu.kernel_threads, used.wall), (Some(10.0), Duration::from_secs(10)));
    assert_eq!(used.elsewhere_ms, 0.0);
    assert_eq!(used.processors, Some(2.0), "of the kernel");
    assert_eq!(programs, KernelPrograms { runs: 10 + 5, ms: 10.0 + 1e-6 });
    assert_eq!((after.proxies(), after.memory_kib()), (2, (400, 50)));
    assert_eq!(after.program_bytes(), Some(1300), "the largest of a proxy");
    assert_eq!(after.proxies_cpus_since(&before), 0.012, "120 ms in 10 s");
    let after = sample(2, after);
    let readings = Readings { idle: &before, before: &before, during: &[], after: &after };
    let line = format!("{USAGE}\n2000,400,50,120.0,60.0\n");
    assert_eq!(readings.table(), line, "since the first");
}

#[test]
fn nodes_that_share_a_kernel_count_it_once() {
    let whole = |ms: f64| KernelCounters {
        machine: MachineTime { busy_ms: ms, processors: 2, ..MachineTime::default() },
        ..KernelCounters::default()
    };
    let of = |boot_ids: [&str; 2], second: u64| {
        let mut reading = Reading::default();
        for (node, boot_id) in ["n1", "n2"].into_iter().zip(boot_ids) {
            let whole = Some(whole(second as f64 * 100.0));
            let (boot_id, at_us) = (boot_id.to_owned(), second * SECOND);
            reading.add(
                node,
                NodeCounters { boot_id, at_us, whole, ..NodeCounters::default() },
                &[],
            );
        }
        reading
    };
    let used = |ids| between(&[&of(ids, 10), &of(ids, 20)]).used;
    let (one, two) = (used(["k", "k"]), used(["k", "l"]));
    assert_eq!((one.cpu.machine, one.processors), (1000.0, Some(2.0)));
    assert_eq!((two.cpu.machine, two.processors), (2000.0, Some(4.0)));
    assert_eq!((one.wall, two.wall), (Duration::from_secs(10), Duration::from_secs(10)));
}

#[test]
fn threads_of_kernels_that_one_node_does_not_see_are_none() {
    let of = |node: &str, second: u64, kernel_threads_ms| {
        let machine = MachineTime { processors: 2, ..MachineTime::default() };
        let whole =
            Some(KernelCounters { machine, kernel_threads_ms, ..KernelCounters::default() });
        let (boot_id, at_us) = (node.to_owned(), second * SECOND);
        let mut reading = Reading::default();
        reading.add(node, NodeCounters { boot_id, at_us, whole, ..NodeCounters::default() }, &[]);
        reading
    };
    let threads = |other: Option<f64>| {
        let (mut before, mut after) = (of("n1", 10, Some(5.0)), of("n1", 20, Some(9.0)));
        before.extend(of("n2", 10, other));
        after.extend(of("n2", 20, other.map(|ms| ms + 2.0)));
        between(&[&before, &after]).used.cpu.kernel_threads
    };
    assert_eq!((threads(Some(1.0)), threads(None)), (Some(6.0), None));
}

/// A reading of one proxy on node `n1`, with or without the whole kernel.
fn of_proxy(second: u64, id: &str, cpu: Cpu, is_whole: bool) -> Reading {
    let mut reading = reading(second, &[(Role::Proxy, PROXY, id, 0, 100)]);
    reading.components.get_mut(id).unwrap().processes[0].cpu = cpu;
    if !is_whole {
        reading.kernels.clear();
    }
    reading
}

#[test]
fn a_tick_of_user_time_is_not_counted_beside_the_exact_sum() {
    let at = |second, user_us, system_us| of_proxy(second, "1", Cpu { user_us, system_us }, true);
    // The run times are 153.2 ms and 155.2 ms; a clock tick has just been assigned to user time.
    let (before, after) = (at(10, 100_000, 53_200), at(13, 110_000, 45_200));
    let used = between(&[&before, &after]).used;
    assert_eq!((used.cpu.proxies, used.proxy_user_ms), (2.0, 2.0));
    assert_eq!(after.proxies_cpus_since(&before), 2.0 / 3000.0);
}

#[test]
fn usage_on_machines_that_are_not_read_is_separate() {
    let at = |second, system_us, is_whole| {
        of_proxy(second, "1", Cpu { user_us: 0, system_us }, is_whole)
    };
    let used = |is_whole| between(&[&at(10, 0, is_whole), &at(20, 5000, is_whole)]).used;
    assert_eq!((used(true).cpu.proxies, used(true).elsewhere_ms), (5.0, 0.0));
    assert_eq!((used(false).cpu.proxies, used(false).elsewhere_ms), (5.0, 5.0));
    assert_eq!(used(false).cpu.kernel_threads, None);
}

#[test]
fn samples_of_cpu_never_run_backwards_where_a_proxy_is_killed_or_a_thread_ends() {
    let at =
        |second, id, ms: u64| of_proxy(second, id, Cpu { user_us: 0, system_us: ms * 1000 }, true);
    let before = at(10, "1", 500);
    let mut silent = sample(3, at(13, "1", 525));
    silent.reading.components.clear();
    silent.is_complete = false;
    let during = [
        sample(1, at(11, "1", 520)),
        sample(2, at(12, "1", 518)),
        silent,
        sample(6, at(16, "new", 3)),
    ];
    let after = sample(7, at(17, "new", 8));
    let readings = Readings { idle: &before, before: &before, during: &during, after: &after };
    let wanted = [
        USAGE,
        "1000,100,0,20.0,0.0",
        "2000,100,0,20.0,0.0",
        "6000,100,0,23.0,0.0",
        "7000,100,0,28.0,0.0",
    ];
    assert_eq!(readings.table().lines().collect::<Vec<_>>(), wanted);
    let mut record = Record::default();
    let broken = readings.fill(&mut record, &Report::default());
    assert_eq!(record.cpu_ms.proxies, 28.0, "as the last line");
    assert_eq!(broken, [format!("{PROXY} was restarted meanwhile")]);
}

#[test]
fn memory_under_load_is_the_median_and_the_most_of_all_proxies_together() {
    let at = |client, s0| {
        let all = [
            (Role::Proxy, PROXY, "1", 1, client),
            (Role::Proxy, "s0/proxy", "2", 1, s0),
            (Role::Control, "controller", "3", 1, 7),
        ];
        reading(10, &all)
    };
    let idle = at(100, 50);
    let during = [at(300, 70), at(200, 90), at(200, 80)];
    let during: Vec<&Reading> = during.iter().collect();
    let (proxies, control) = memory(&idle, &during);
    assert_eq!((proxies.idle, proxies.load, proxies.peak), (150, 290, 370));
    assert_eq!((control.idle, control.peak), (7, 7));
    assert_eq!(memory(&idle, &[]).0, RssKib { idle: 150, load: 0, peak: 0 });
}

#[test]
fn a_component_that_ends_or_begins_meanwhile_is_said_and_counts_as_far_as_it_was_seen() {
    let before = reading(10, &[(Role::Proxy, PROXY, "1", 20, 1)]);
    let during = reading(14, &[(Role::Proxy, PROXY, "1", 29, 1)]);
    let since = |pods: Components<'_>| {
        let after = reading(20, pods);
        let UsageByRole { used, broken, .. } = between(&[&before, &during, &after]);
        (used.cpu.proxies, broken.join("; "))
    };
    assert_eq!(since(&[(Role::Proxy, PROXY, "1", 30, 1)]), (10.0, String::new()));
    assert_eq!(since(&[]), (9.0, format!("{PROXY} has ended meanwhile")));
    let restarted = format!("{PROXY} was restarted meanwhile");
    assert_eq!(since(&[(Role::Proxy, PROXY, "new", 2, 1)]), (9.0 + 2.0, restarted));
    let other = "s0/proxy";
    // The sum of the proxy has fallen to 20 because a thread has ended.
    let (used, begun) =
        since(&[(Role::Proxy, PROXY, "1", 20, 1), (Role::Proxy, other, "new", 1, 1)]);
    assert!(used == 9.0 + 1.0 && begun == format!("{other} has begun meanwhile"), "{used} {begun}");
    // A process that ran before but was seen late does not count with its whole life.
    let (used, _) = since(&[(Role::Proxy, PROXY, "1", 29, 1), (Role::Proxy, other, "2", 5000, 1)]);
    assert_eq!(used, 9.0);
    // Control planes have tasks that come and go.
    let task = (Role::Control, "task", "new", 3, 1);
    assert_eq!(since(&[(Role::Proxy, PROXY, "1", 29, 1), task]), (9.0, String::new()));
}

#[test]
fn a_node_that_says_nothing_at_the_end_counts_as_far_as_it_was_seen() {
    let at = |second, ms| reading(second, &[(Role::Proxy, PROXY, "1", ms, 1)]);
    let (before, during, nothing) = (at(10, 20), at(14, 90), Reading::default());
    let UsageByRole { used, broken, .. } = between(&[&before, &during, &nothing]);
    assert_eq!((used.cpu.proxies, broken), (70.0, vec![]), "no report shows that it ended");
    // A later report of another node does not replace that of the first.
    let mut later = at(20, 100);
    later.extend(at(21, 100));
    assert_eq!(between(&[&before, &later]).used.wall, Duration::from_secs(10));
}
