//! Runs `leno up` in the background, in a process that outlives the terminal.

use std::io::{self, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use leno_console::note;
use leno_local::check::state;
use leno_local::hint;
use leno_local::layout::Layout;
use leno_local::record;
use leno_local::status::{InstancePhase, InstanceStatus, MeshStatus};
use tokio::signal::unix::{SignalKind, signal};

use crate::commands::print;

/// The environment variable that tells a process that it is the one in the background.
const DETACHED: &str = "LENO_DETACHED";
/// How often to check the progress of the start.
const POLL: Duration = Duration::from_millis(20);
/// How long an application without ports must have run to count as started.
const MOMENT: Duration = Duration::from_secs(1);
/// How long an application that has ended before must have run to count as started. Most applications that end
/// repeatedly end sooner.
const AFTER_END: Duration = Duration::from_secs(5);

/// Whether this process is the one in the background. If so, it leaves the session of the terminal, so that it
/// does not end together with the terminal.
pub(super) fn is_background() -> Result<bool> {
    if std::env::var_os(DETACHED).is_none() {
        return Ok(false);
    }
    nix::unistd::setsid().context("cannot leave the session of the terminal")?;
    Ok(true)
}

/// Starts the same command in the background. Returns when its mesh runs; if `patience` is given, when all
/// instances are ready for traffic. Until then, the standard error of that process is copied to this process's.
pub(super) fn start(mesh: &str, reads_stdin: bool, patience: Option<Duration>) -> Result<bool> {
    if !nix::unistd::geteuid().is_root() {
        return Err(leno_local::Error::NeedsRoot.into());
    }
    let layout = Layout::new(mesh)?;
    if let Some(owner) = record::owner(&layout) {
        let (mesh, owner) = (mesh.to_owned(), owner.pid.to_string());
        return Err(leno_local::Error::Running { mesh, owner }.into());
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(DETACHED, "1");
    command.stdin(if reads_stdin { Stdio::inherit() } else { Stdio::null() });
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    // From here on, an interruption does not end this process at once, because it must first print how to end the
    // mesh.
    let interrupted = interrupted()?;
    let mut child = command.spawn().context("cannot start leno in the background")?;
    let mut errors = child.stderr.take().context("standard error was asked for")?;
    // The thread ends with this process, or when the other process closes its standard error.
    let copy = std::thread::spawn(move || io::copy(&mut errors, &mut io::stderr()));
    let begun = Instant::now();
    loop {
        if let Ok(code) = interrupted.try_recv() {
            // A signal of the terminal reaches the other process as well, until that process has left the session.
            std::thread::sleep(MOMENT / 10);
            if child.try_wait().context("cannot wait for leno in the background")?.is_none() {
                let (ps, down) = (hint::command(mesh, "ps"), hint::command(mesh, "down"));
                note!(
                    "leno: mesh {mesh} continues in the background (process {}): `{ps}` shows its \
                     progress, `{down}` ends it",
                    child.id()
                );
                std::process::exit(code);
            }
        }
        if let Some(ended) = child.try_wait().context("cannot wait for leno in the background")? {
            // Print the last messages of the ended process first.
            let _ = copy.join();
            return refused(ended);
        }
        match of_child(&layout, &child) {
            Some(status) if patience.is_none() => return started(&status, begun),
            Some(status) if status.instances.iter().all(lasts) => {
                return started(&status, begun);
            }
            Some(status) if patience.is_some() && ended(&status).is_some() => {
                let ended = ended(&status).context("it was there just now")?;
                bail!(
                    "mesh {mesh} runs, but {}/{} has ended and is not restarted: {}; `{}` prints \
                     its output, `{}` ends the mesh",
                    ended.namespace,
                    ended.name,
                    ended.trouble.ended.as_deref().unwrap_or("it failed"),
                    hint::command(mesh, &format!("logs {}", ended.name)),
                    hint::command(mesh, "down"),
                );
            }
            Some(status) if patience.is_some_and(|patience| begun.elapsed() > patience) => {
                let waiting = status.instances.iter().filter(|one| !lasts(one));
                let shown = |one: &InstanceStatus| {
                    let state = state((mesh, one), &[], now_unix_ms());
                    format!("{}/{} ({state})", one.namespace, one.name)
                };
                let names: Vec<String> = waiting.map(shown).collect();
                bail!(
                    "mesh {mesh} runs, but these are not ready for traffic within --wait-timeout: \
                     {}; `{}` shows their progress",
                    names.join(", "),
                    hint::command(mesh, "ps")
                );
            }
            _ => std::thread::sleep(POLL),
        }
    }
}

/// Receives the exit code for a signal that asks this process to end. As in shells, it is 128 plus the signal's number.
fn interrupted() -> Result<Receiver<i32>> {
    let (code, interrupted) = channel();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().build().context("cannot wait for signals")?;
    let (mut ended, mut asked) = {
        let _entered = runtime.enter();
        let signals = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
        (
            signals.0.context("cannot wait for SIGINT")?,
            signals.1.context("cannot wait for SIGTERM")?,
        )
    };
    // The thread ends with this process.
    std::thread::spawn(move || {
        runtime.block_on(async {
            let kind = tokio::select! {
                _ = ended.recv() => SignalKind::interrupt(),
                _ = asked.recv() => SignalKind::terminate(),
            };
            // Without a receiver, the start is over, and the code is not needed.
            let _over = code.send(128 + kind.as_raw_value());
        });
    });
    Ok(interrupted)
}

/// Whether an instance will probably keep running, so that it is not just observed between its start and its end.
/// An instance that listens on its ports will; any other instance must have run for a moment.
fn lasts(instance: &InstanceStatus) -> bool {
    let bound = match instance.trouble.ended {
        None if !instance.ports.is_empty() => return instance.settled(),
        None => MOMENT,
        Some(_) => AFTER_END,
    };
    let bound = i64::try_from(bound.as_millis()).unwrap_or(i64::MAX);
    let ran = |started: i64| now_unix_ms().saturating_sub(started) >= bound;
    instance.phase.is_settled() || (instance.ready && instance.started_unix_ms.is_some_and(ran))
}

fn now_unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// An instance that has failed and will not be started again.
fn ended(status: &MeshStatus) -> Option<&InstanceStatus> {
    status.instances.iter().find(|one| one.phase == InstancePhase::Ended)
}

/// The status of the mesh, once the child process has written it.
fn of_child(layout: &Layout, child: &Child) -> Option<MeshStatus> {
    let status = MeshStatus::read(layout).ok()?;
    (u32::try_from(status.owner).ok() == Some(child.id())).then_some(status)
}

fn started(status: &MeshStatus, begun: Instant) -> Result<bool> {
    let mut errors = io::stderr().lock();
    for mistake in &status.mistakes {
        writeln!(errors, "{}", mistake.text).context("cannot write to standard error")?;
    }
    let (mesh, owner) = (&status.mesh, status.owner);
    let ready = status.instances.iter().filter(|one| one.ready).count();
    let of = |phase: InstancePhase| match status
        .instances
        .iter()
        .filter(|one| one.phase == phase)
        .count()
    {
        0 => String::new(),
        number => format!(", {number} {}", phase.as_str()),
    };
    let settled = of(InstancePhase::Completed) + &of(InstancePhase::Scheduled);
    let (all, seconds) = (status.instances.len(), begun.elapsed().as_secs_f64());
    print(&format!(
        "mesh {mesh} runs in the background (process {owner}), {ready} of {all} instances ready{settled} \
         after {seconds:.1} s: {}, {}, {}\n",
        hint::command(mesh, "ps"),
        hint::command(mesh, "logs -f"),
        hint::command(mesh, "down")
    ))?;
    Ok(true)
}

/// Handles the end of the child process: passes on its result. The child has printed the reason itself.
fn refused(ended: ExitStatus) -> Result<bool> {
    match ended.code() {
        Some(code) => std::process::exit(code),
        None => bail!("leno up in the background was killed ({ended})"),
    }
}
