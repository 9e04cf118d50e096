//! A watcher's answers about processes of the test, in cgroups with the names of containers.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leno_observe::admin::{Reply, send_as};
use nix::time::{ClockId, clock_gettime};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::kernel_counters::NodeCounters;

/// The token of the watchers in these tests.
const GIVEN: &str = "a-token";

/// A hierarchy in which the test may create cgroups: one of v1, or v2.
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

/// The cgroup of a pod; dropping it removes it with its processes.
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

async fn watcher() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(loopback::accept(listener, answerer(GIVEN)));
    address
}

async fn ask(address: SocketAddr, what: (&str, &str), body: &impl serde::Serialize) -> Reply {
    ask_as(address, Some(GIVEN), what, &json(body)).await
}

async fn ask_as(address: SocketAddr, token: Option<&str>, what: (&str, &str), body: &str) -> Reply {
    let stream = TcpStream::connect(address).await.unwrap();
    send_as(stream, token, what, body).await.unwrap()
}

#[tokio::test]
async fn a_client_without_the_token_reads_and_kills_nothing() {
    let watcher = watcher().await;
    for token in [None, Some(""), Some("0"), Some("a-toke"), Some(&*token().unwrap())] {
        for what in
            [("POST", "/look"), ("POST", "/kill/1"), ("POST", "/start/1"), ("GET", "/start/1")]
        {
            let refused = ask_as(watcher, token, what, "[]").await;
            assert_eq!(refused.status, 403, "{token:?} {what:?}: {}", refused.body);
        }
    }
    assert_eq!(ask(watcher, ("POST", "/look"), &Question::default()).await.status, 200);
    let (one, two) = (token().unwrap(), token().unwrap());
    assert!(one.len() == 32 && one != two, "{one} {two}");
    let refused = serve("127.0.0.1:0".parse().unwrap(), "").unwrap_err().to_string();
    assert!(refused.contains(TOKEN), "{refused}");
}

async fn look(address: SocketAddr, question: &Question) -> NodeCounters {
    let reply = ask(address, ("POST", "/look"), question).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str(&reply.body).unwrap()
}

/// Reads counters until they satisfy `wanted`.
async fn until(
    address: SocketAddr,
    question: &Question,
    wanted: impl Fn(&NodeCounters) -> bool,
) -> NodeCounters {
    loop {
        let seen = look(address, question).await;
        if wanted(&seen) {
            return seen;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn processes_of_a_container_are_counted_each_by_itself() {
    let Some(pod) = Pod::make("counted") else { return };
    let (one, none) = (id("a"), id("b"));
    let mut child = pod.run(&one, "sleep 1000 & while true; do :; done");
    let watcher = watcher().await;
    let question = Question {
        containers: vec![one.clone(), none.clone()],
        connections_of: Some(one.clone()),
        whole: false,
    };
    let two = |look: &NodeCounters| look.containers.get(&one).is_some_and(|all| all.len() == 2);
    let before = until(watcher, &question, two).await;
    assert!(!before.containers.contains_key(&none), "it has no process");
    assert!(before.connections.is_some() && before.whole.is_none());
    let spins = |look: &NodeCounters| {
        let found = look.containers.get(&one).into_iter().flatten();
        let mut found = found.filter(|process| process.pid == child.id());
        found.next().unwrap().clone()
    };
    let busier =
        |look: &NodeCounters| two(look) && spins(look).cpu.user_us > spins(&before).cpu.user_us;
    let after = until(watcher, &Question { whole: true, ..question }, busier).await;
    assert!(after.at_us > before.at_us && after.boot_id == before.boot_id);
    let (process, whole) = (spins(&after), after.whole.unwrap());
    // If this process can see kernel threads, so can the watcher.
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

#[tokio::test]
async fn an_invalid_id_is_refused_and_a_repeated_kill_kills_once() {
    let Some(pod) = Pod::make("killed") else { return };
    let (one, two, none) = (id("c"), id("d"), id("e"));
    let (mut first, mut other) =
        (pod.run(&one, "exec sleep 1000"), pod.run(&two, "exec sleep 1000"));
    let watcher = watcher().await;
    let question = Question { containers: vec![one.clone(), two.clone()], ..Question::default() };
    until(watcher, &question, |look| look.containers.len() == 2).await;
    for wrong in ["", "../../etc", "A", &"C".repeat(64)] {
        let wrong = vec![one.clone(), wrong.to_owned()];
        assert_eq!(ask(watcher, ("POST", "/kill/1"), &wrong).await.status, 400, "{wrong:?}");
        let question = Question { containers: wrong, ..Question::default() };
        assert_eq!(ask(watcher, ("POST", "/look"), &question).await.status, 400);
    }
    assert_eq!(ask(watcher, ("POST", "/kill/"), &[&one]).await.status, 404);
    let refused = ask(watcher, ("POST", "/kill/1"), &[&one, &none]).await;
    assert!(refused.status == 404 && refused.body.contains(&none), "{refused:?}");
    assert!(first.try_wait().unwrap().is_none(), "none is killed where one is not there");
    assert_eq!(ask(watcher, ("POST", "/kill/2"), &[&one]).await.status, 200);
    assert!(!first.wait().unwrap().success());
    assert_eq!(
        ask(watcher, ("POST", "/kill/2"), &[&one]).await.status,
        200,
        "of a client whose connection was lost"
    );
    assert_eq!(ask(watcher, ("POST", "/kill/3"), &[&one]).await.status, 404, "it is gone");
    assert!(other.try_wait().unwrap().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[tokio::test]
async fn a_start_is_seen_when_the_same_program_runs_in_another_container_of_the_pod() {
    let (Some(pod), Some(foreign)) = (Pod::make("start"), Pod::make("foreign")) else { return };
    let (old, new) = (id("1"), id("2"));
    let mut killed = pod.run(&old, "exec sleep 1000");
    let watcher = watcher().await;
    // Wait until the shell has executed the other program.
    let sleep = fs::metadata("/bin/sleep").unwrap().len();
    let question = Question { containers: vec![old.clone()], ..Question::default() };
    until(watcher, &question, |look| {
        look.containers.get(&old).is_some_and(|all| all[0].program_bytes == sleep)
    })
    .await;
    let now = || Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
    let begun = now();
    assert_eq!(ask(watcher, ("POST", "/start/a"), &old).await.status, 202);
    assert!(!killed.wait().unwrap().success());
    assert_eq!(
        ask(watcher, ("POST", "/start/a"), &old).await.status,
        202,
        "of a client whose connection was lost"
    );
    assert_eq!(ask(watcher, ("POST", "/start/b"), &old).await.status, 409, "one at a time");
    let state = async || -> Start {
        let reply = ask(watcher, ("GET", "/start/a"), &()).await;
        serde_json::from_str(&reply.body).unwrap()
    };
    // Neither another program in the pod, as runc is, nor the same program elsewhere counts.
    let other = foreign.run(&id("3"), "exec sleep 1000");
    let (read, write) = nix::unistd::pipe().unwrap();
    let mut command = Command::new("sh");
    fs::create_dir(pod.0.join(&new)).unwrap();
    let procs = pod.0.join(&new).join("cgroup.procs");
    command.args(["-c", &format!("echo $$ >{}; read go; exec sleep 1000", procs.display())]);
    let again = command.stdin(read).spawn().unwrap();
    let question = Question { containers: vec![new.clone()], ..Question::default() };
    until(watcher, &question, |look| look.containers.contains_key(&new)).await;
    assert_eq!(state().await, Start::Waiting);
    nix::unistd::write(&write, b"go\n").unwrap();
    let seen = loop {
        match state().await {
            Start::Waiting => tokio::time::sleep(Duration::from_millis(5)).await,
            Start::Seen(at) => break Duration::from_nanos(at),
            other => panic!("{other:?}"),
        }
    };
    assert!(begun <= seen && seen <= now(), "{begun:?} {seen:?}");
    let unknown = ask(watcher, ("GET", "/start/b"), &()).await.body;
    assert_eq!(serde_json::from_str::<Start>(&unknown).unwrap(), Start::Unknown);
    for mut child in [again, other] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
