//! Asks the program about processes of the test, in cgroups with the names of containers, and lets it generate load and
//! probe.

use std::fs;
use std::io::{BufReader, Read as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use leno_measure::load::{Pace, Report};

use super::*;
use crate::kernel_counters::NodeCounters;
use crate::measurement::probe::monotonic;

/// How long a probe may run.
const LIMIT: Duration = Duration::from_secs(60);

/// A cgroup hierarchy in which the test may create cgroups, of version 1 or 2.
fn hierarchy() -> Option<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let found = [root.join("pids"), root.to_owned(), root.join("unified")];
    let found = found.into_iter().find(|one| one.join("cgroup.procs").exists());
    if found.is_none() || !nix::unistd::geteuid().is_root() {
        let required = std::env::var("LENO_REQUIRE").is_ok_and(|all| all.contains("root"));
        assert!(!required, "LENO_REQUIRE names root, and no cgroup can be made");
        eprintln!("skipped: needs root and cgroups");
        return None;
    }
    found
}

/// The cgroup of a pod. Dropping this value removes it with its processes.
struct Pod(PathBuf);

impl Pod {
    fn make(name: &str) -> Option<Self> {
        let path = hierarchy()?.join(format!("leno-watch-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Some(Self(path))
    }

    /// Runs a shell script in a container of this pod; the script enters the container's cgroup
    /// first.
    fn run(&self, id: &str, script: &str) -> Child {
        let group = self.0.join(id);
        fs::create_dir_all(&group).unwrap();
        let script = format!("echo $$ >{}/cgroup.procs; {script}", group.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdout(Stdio::null());
        command.spawn().unwrap()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        for group in fs::read_dir(&self.0).unwrap().flatten().map(|entry| entry.path()) {
            let Ok(pids) = fs::read_to_string(group.join("cgroup.procs")) else { continue };
            for pid in pids.lines().filter_map(|pid| pid.parse().ok()) {
                let _ = nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::SIGKILL,
                );
            }
            while fs::remove_dir(&group)
                .is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
            {}
        }
        let _ = fs::remove_dir(&self.0);
    }
}

fn id(digit: &str) -> String {
    digit.repeat(64)
}

/// The program in a thread of this process. It ends with this value.
struct Program {
    requests: UnixStream,
    answers: std::io::Lines<BufReader<UnixStream>>,
    last: u64,
}

impl Program {
    fn start() -> Self {
        let (requests, input) = UnixStream::pair().unwrap();
        let mut output = input.try_clone().unwrap();
        thread::spawn(move || answer(BufReader::new(input), &mut output));
        let answers = BufReader::new(requests.try_clone().unwrap()).lines();
        Self { requests, answers, last: 0 }
    }

    fn send(&mut self, task: PodTask) {
        self.last += 1;
        write!(self.requests, "{}", PodRequest::line(self.last, task).unwrap()).unwrap();
    }

    /// Waits for the next answer to the last request.
    fn next(&mut self) -> Result<Value, String> {
        loop {
            let line = self.answers.next().unwrap().unwrap();
            let PodAnswer { number, answer } = serde_json::from_str(&line).unwrap();
            if number == self.last {
                return answer;
            }
        }
    }

    fn ask(&mut self, task: PodTask) -> Result<Value, String> {
        self.send(task);
        self.next()
    }

    /// Asks for counters until they satisfy `wanted`.
    fn until(
        &mut self,
        question: &CounterQuestion,
        wanted: impl Fn(&NodeCounters) -> bool,
    ) -> NodeCounters {
        loop {
            let seen = self.ask(PodTask::Look(question.clone())).unwrap();
            let seen = serde_json::from_value(seen).unwrap();
            if wanted(&seen) {
                return seen;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn processes_of_a_container_are_counted_each_by_itself() {
    let Some(pod) = Pod::make("counted") else { return };
    let (one, none) = (id("a"), id("b"));
    let mut child = pod.run(&one, "sleep 1000 & while true; do :; done");
    let mut program = Program::start();
    let question = CounterQuestion {
        containers: vec![one.clone(), none.clone()],
        connections_of: Some(one.clone()),
        whole: false,
    };
    let two = |look: &NodeCounters| look.containers.get(&one).is_some_and(|all| all.len() == 2);
    let before = program.until(&question, two);
    assert!(!before.containers.contains_key(&none), "it has no process");
    assert!(before.connections.is_some() && before.whole.is_none());
    let spins = |look: &NodeCounters| {
        let found = look.containers.get(&one).into_iter().flatten();
        let mut found = found.filter(|process| process.pid == child.id());
        found.next().unwrap().clone()
    };
    let busier =
        |look: &NodeCounters| two(look) && spins(look).cpu.user_us > spins(&before).cpu.user_us;
    let after = program.until(&CounterQuestion { whole: true, ..question }, busier);
    assert!(after.at_us > before.at_us && after.boot_id == before.boot_id);
    let (process, whole) = (spins(&after), after.whole.unwrap());
    // If this process can see kernel threads, the program can, too.
    let seen = fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd");
    assert!(!seen || whole.kernel_threads_ms.is_some(), "{whole:?}");
    assert_eq!(process.began_us, spins(&before).began_us);
    assert!(process.began_us <= before.at_us && process.rss_kib > 0, "{process:?}");
    let shell = fs::metadata(format!("/proc/{}/exe", child.id())).unwrap();
    assert_eq!(process.program_bytes, shell.len());
    let sleeps = &after.containers[&one].iter().find(|one| one.pid != child.id()).unwrap();
    assert!(sleeps.switches.voluntary > 0, "it sleeps: {sleeps:?}");
    assert!(whole.machine.processors > 0 && whole.machine.busy_ms > 0.0, "{whole:?}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn nothing_is_killed_if_one_of_the_containers_has_no_process() {
    let Some(pod) = Pod::make("killed") else { return };
    let (one, two, none) = (id("c"), id("d"), id("e"));
    let (mut first, mut other) =
        (pod.run(&one, "exec sleep 1000"), pod.run(&two, "exec sleep 1000"));
    let mut program = Program::start();
    let containers = vec![one.clone(), two];
    let question = CounterQuestion { containers, ..CounterQuestion::default() };
    program.until(&question, |look| look.containers.len() == 2);
    let missing = json!(format!("no process of container {none} is here"));
    let kill = |ids: &[&String]| PodTask::Kill(ids.iter().map(|id| (*id).clone()).collect());
    assert_eq!(program.ask(kill(&[&one, &none])).unwrap(), missing);
    assert!(first.try_wait().unwrap().is_none());
    assert_eq!(program.ask(kill(&[&one])).unwrap(), Value::Null);
    assert!(!first.wait().unwrap().success());
    assert!(other.try_wait().unwrap().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn a_start_is_seen_when_the_same_program_runs_in_another_container_of_the_pod() {
    let (Some(pod), Some(foreign)) = (Pod::make("start"), Pod::make("foreign")) else { return };
    let (old, new) = (id("1"), id("2"));
    let mut killed = pod.run(&old, "exec sleep 1000");
    let mut program = Program::start();
    // Wait until the shell runs the other program.
    let sleep = fs::metadata("/bin/sleep").unwrap().len();
    let question = CounterQuestion { containers: vec![old.clone()], ..CounterQuestion::default() };
    program.until(&question, |look| {
        look.containers.get(&old).is_some_and(|all| all[0].program_bytes == sleep)
    });
    let begun = monotonic().unwrap();
    program.send(PodTask::Restart(old));
    assert!(!killed.wait().unwrap().success());
    // Another program in the pod, such as runc, does not count; the same program elsewhere does not count either.
    let other = foreign.run(&id("3"), "exec sleep 1000");
    let (read, write) = nix::unistd::pipe().unwrap();
    let mut command = Command::new("sh");
    fs::create_dir(pod.0.join(&new)).unwrap();
    let procs = pod.0.join(&new).join("cgroup.procs");
    command.args(["-c", &format!("echo $$ >{}; read go; exec sleep 1000", procs.display())]);
    let again = command.stdin(read).spawn().unwrap();
    let entered = || fs::read_to_string(&procs).unwrap().lines().count() == 1;
    while !entered() {
        thread::sleep(Duration::from_millis(5));
    }
    let goes = monotonic().unwrap();
    nix::unistd::write(&write, b"go\n").unwrap();
    let seen = Duration::from_nanos(program.next().unwrap().as_u64().unwrap());
    assert!(begun <= seen && seen <= monotonic().unwrap(), "{begun:?} {seen:?}");
    assert!(goes - seen.min(goes) < Duration::from_millis(500), "only after it may go on");
    for mut child in [again, other] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn load_answers_when_it_begins_and_stops_at_the_next_line() {
    let mut program = Program::start();
    // The kernel refuses these connections, so each request is an error and is counted.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let plan = Plan::new(format!("http://{closed}/"), 100.0, Duration::from_secs(1));
    assert_eq!(program.ask(PodTask::Load(vec![plan.clone()])).unwrap(), Value::Null);
    let report: Report = serde_json::from_value(program.next().unwrap()).unwrap();
    assert_eq!((report.requests, report.errors), (100, 100));
    // The end of the input does not stop the load.
    let line = PodRequest::line(1, PodTask::Load(vec![plan.clone()])).unwrap();
    let mut said = Vec::new();
    answer(std::io::Cursor::new(line), &mut said).unwrap();
    let report = str::from_utf8(&said).unwrap().lines().last().unwrap();
    assert!(report.contains("\"requests\":100,"), "{report}");
    // One hour of load, so that the test only ends if the load is stopped early.
    let hour = Plan { pace: Pace::Saturate, duration: Duration::from_hours(1), ..plan.clone() };
    assert_eq!(program.ask(PodTask::Load(vec![hour])).unwrap(), Value::Null);
    writeln!(program.requests, "{}", json!({"number": 0, "task": "greet"})).unwrap();
    let report: Report = serde_json::from_value(program.next().unwrap()).unwrap();
    assert!(report.duration_s < 3600.0, "{report:?}");
    let wrong = Plan { connections: 0, ..plan };
    assert_eq!(program.ask(PodTask::Load(vec![wrong])).unwrap(), Value::Null);
    assert!(program.next().unwrap_err().contains("connections must be"));
    writeln!(program.requests, "[1]").unwrap();
    program.last = 0;
    while program.next().is_ok_and(|greeted| greeted.is_null()) {}
}

#[test]
fn a_probe_reports_when_it_was_answered_again() {
    // A server of which the test decides whether it answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let (answers, refused) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (is_told, count) = (answers.clone(), refused.clone());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if is_told.load(Ordering::SeqCst) {
                let _request = stream.read(&mut [0; 1024]);
                let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            } else {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    let mut program = Program::start();
    let begun = monotonic().unwrap();
    let plan = Plan::new(format!("http://{address}/"), 1.0, Duration::from_secs(1));
    let first = program.ask(PodTask::Probe(plan.clone(), LIMIT)).unwrap().as_u64().unwrap();
    answers.store(false, Ordering::SeqCst);
    // The first request may belong to the probe before this one; the second belongs to this one.
    while refused.load(Ordering::SeqCst) < 2 {
        thread::sleep(Duration::from_millis(1));
    }
    answers.store(true, Ordering::SeqCst);
    let again = program.next().unwrap().as_u64().unwrap();
    assert!(begun.as_nanos() < u128::from(first) && first < again);
    // The next line stops the probe, and is answered.
    program.ask(PodTask::Probe(plan, LIMIT)).unwrap();
    assert_eq!(program.ask(PodTask::Greet).unwrap(), Value::Null);
}
