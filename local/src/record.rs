//! The record of a mesh: which process owns it, and everything that was created for it. It is used to find and
//! remove what a killed run has left. Objects that are not in a record are never removed.
//!
//! Everything is recorded before it is created, so nothing exists that is not recorded.

mod traces;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use leno_supervise::Cgroup;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::error::{Attempt, Error, Result};
use crate::hint::command;
use crate::layout::{self, Layout};
use crate::netns;
use crate::uplink::{self, Uplink};

/// A process. Its start time distinguishes it from a later process with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedProcess {
    /// The process id.
    pub pid: i32,
    /// Field 22 of `/proc/<pid>/stat`, in clock ticks since boot.
    pub start_ticks: u64,
}

/// One object that was created for a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeshResource {
    /// A process that is not in a control group of the mesh.
    Process(RecordedProcess),
    /// A control group with all processes and groups in it.
    Cgroup(PathBuf),
    /// A named network namespace with the links in it.
    Netns(String),
    /// A captured workload, by the name under which it is captured.
    Capture(String),
    /// The flow accounts of the mesh, by their name. They are kept after a run was killed, and the next run takes
    /// them over.
    Flows(String),
    /// The uplink of the mesh.
    Uplink(Uplink),
}

/// The record of a mesh, held by the process that owns it.
#[derive(Debug)]
pub struct MeshRecord {
    layout: Layout,
    contents: Contents,
    /// The lock of the mesh. The kernel releases it when the owner ends, in whatever way.
    _lock: Flock<File>,
}

/// The content of `state.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Contents {
    version: u32,
    owner: RecordedProcess,
    made: Vec<MeshResource>,
}

/// How long to wait for the lock while its owner runs. The owner may be about to end.
const RUNNING: Duration = Duration::from_millis(400);
/// How long to wait for the lock while no owner runs. The kernel releases the lock of a killed owner when its last
/// thread has ended. A new owner holds the lock for a moment before its record is written.
const ENDING: Duration = Duration::from_secs(10);
/// How often taking the lock is attempted in that time.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// The version of the format of `state.json`. Files of other versions are rejected.
const VERSION: u32 = 1;

impl RecordedProcess {
    /// The process with this number, if it exists.
    #[must_use]
    pub fn find(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The command name, field 2, may contain spaces and brackets, so fields are counted from its end.
        let (_, rest) = stat.rsplit_once(')')?;
        // A zombie process has ended and only waits to be reaped.
        if matches!(rest.trim_start().chars().next()?, 'Z' | 'X') {
            return None;
        }
        let start_ticks = rest.split_ascii_whitespace().nth(19)?.parse().ok()?;
        Some(Self { pid, start_ticks })
    }

    /// Whether the process still runs.
    #[must_use]
    pub fn alive(&self) -> bool {
        Self::find(self.pid) == Some(*self)
    }
}

impl MeshRecord {
    /// Becomes the owner of a mesh: takes its lock and removes leftovers of an earlier owner.
    ///
    /// # Errors
    /// [`Error::Running`] when another process owns it. Otherwise files cannot be created, or leftovers cannot be
    /// removed.
    pub fn acquire(layout: &Layout) -> Result<Self> {
        let lock = lock(layout)?;
        let mut kept = Vec::new();
        if layout.record().exists() {
            tracing::info!(mesh = layout.mesh(), "removing what an earlier run has left behind");
            let is_flows = |made: &MeshResource| matches!(made, MeshResource::Flows(_));
            let (flows, others): (Vec<_>, Vec<_>) =
                read(layout)?.made.into_iter().partition(is_flows);
            remove_made(&others)?;
            kept = flows;
        } else {
            remove_made(&traces::made(layout)?)?;
        }
        let owner = std::process::id().try_into().ok().and_then(RecordedProcess::find);
        let owner = owner.ok_or_else(|| Error::Refused("cannot read /proc/self/stat".into()))?;
        let contents = Contents { version: VERSION, owner, made: kept };
        let record = Self { layout: layout.clone(), contents, _lock: lock };
        record.write()?;
        Ok(record)
    }

    /// Writes the record.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn write(&self) -> Result<()> {
        write_atomically(&self.layout.record(), &to_json(&self.contents), 0o600)
    }

    /// Records an object that will be created next.
    ///
    /// # Errors
    /// When the record cannot be written. Then the object must not be created.
    pub fn add(&mut self, made: MeshResource) -> Result<()> {
        if self.contents.made.contains(&made) {
            return Ok(());
        }
        self.contents.made.push(made);
        self.write().inspect_err(|_| drop(self.contents.made.pop()))
    }

    /// Removes objects, and their entries in the record.
    ///
    /// # Errors
    /// When an object cannot be removed. Its entry stays in the record.
    pub fn remove(&mut self, things: &[MeshResource]) -> Result<()> {
        remove_made(things)?;
        self.contents.made.retain(|made| !things.contains(made));
        self.write()
    }

    /// The recorded control groups.
    pub fn cgroups(&self) -> impl Iterator<Item = &PathBuf> {
        self.contents.made.iter().filter_map(MeshResource::cgroup)
    }

    /// Removes everything in the record, and at last the mesh's directory.
    ///
    /// # Errors
    /// When an object cannot be removed. The record then stays for `leno cleanup`.
    pub fn remove_all(self) -> Result<()> {
        remove_made(&self.contents.made)?;
        remove_directory(&self.layout)
    }
}

/// The process that owns a mesh: according to the record or, without a record, the process that started the mesh's
/// guard.
#[must_use]
pub fn owner(layout: &Layout) -> Option<RecordedProcess> {
    match read(layout) {
        Ok(contents) => Some(contents.owner).filter(RecordedProcess::alive),
        Err(_) => traces::owner(layout),
    }
}

/// The names of the meshes that run on this machine.
#[must_use]
pub fn running() -> Vec<String> {
    let owned = Layout::all().into_iter().filter(|layout| owner(layout).is_some());
    owned.map(|layout| layout.mesh().to_owned()).collect()
}

/// The mesh that a command applies to: the named one; else `default` if it runs; else the only one that runs.
///
/// # Errors
/// [`Error::NotNamed`] if none runs, or if several run and none of them is `default`; [`Error::NeedsRoot`] if this
/// user has no permission to list meshes.
pub fn chosen(named: Option<&str>) -> Result<String> {
    match named {
        Some(name) => Ok(name.to_owned()),
        None if !Layout::visible() => Err(Error::NeedsRoot),
        None => choose(running()),
    }
}

fn choose(mut running: Vec<String>) -> Result<String> {
    if let Some(default) = running.iter().position(|name| name == layout::DEFAULT_MESH) {
        return Ok(running.swap_remove(default));
    }
    match running.pop() {
        Some(only) if running.is_empty() => Ok(only),
        Some(last) => {
            running.push(last);
            Err(Error::NotNamed(running))
        }
        None => Err(Error::NotNamed(running)),
    }
}

/// The uplinks of all meshes, running or left over, except the one with this name.
#[must_use]
pub fn uplinks(but: &str) -> Vec<Uplink> {
    let recorded = Layout::all().into_iter().filter_map(|layout| read(&layout).ok());
    let made = recorded.flat_map(|contents| contents.made);
    let ways = made.filter_map(|made| match made {
        MeshResource::Uplink(way) if way.name() != but => Some(way),
        _ => None,
    });
    ways.collect()
}

/// Removes the leftovers of a killed run of this mesh.
///
/// # Errors
/// [`Error::Running`] when the mesh runs, or the error of an object that cannot be removed.
pub fn clean_up(layout: &Layout) -> Result<()> {
    let _lock = lock(layout)?;
    let recorded = match read(layout) {
        Ok(contents) => contents.made,
        Err(Error::Damaged { .. }) => Vec::new(),
        Err(_) if !layout.record().exists() => Vec::new(),
        Err(error) => return Err(error),
    };
    let removed = remove_made(&recorded);
    remove_made(&traces::made(layout)?).and(removed)?;
    remove_directory(layout)
}

/// Writes a file atomically: a reader sees the old or the new text, never a part of it.
///
/// # Errors
/// When the file cannot be written.
pub fn write_atomically(path: &Path, text: &[u8], mode: u32) -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};

    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    // Hidden, so that a program that watches for *.yaml does not read it as a document.
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    let draft = path.with_file_name(hidden);
    let write = || {
        // A draft that a killed run has left may have another mode.
        let _ = fs::remove_file(&draft);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
        // The umask may have removed bits from the mode.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(text)?;
        fs::rename(&draft, path)
    };
    write().attempt(|| format!("cannot write {}", path.display()))
}

fn to_json(contents: &Contents) -> Vec<u8> {
    serde_json::to_vec_pretty(contents).expect("the record has only text keys")
}

fn read(layout: &Layout) -> Result<Contents> {
    let path = layout.record();
    let text = fs::read(&path).attempt(|| format!("cannot read {}", path.display()))?;
    let cleanup = command(layout.mesh(), "cleanup");
    let contents: Contents = serde_json::from_slice(&text).map_err(|source| Error::Damaged {
        path: path.clone(),
        remedy: format!("run `{cleanup}`"),
        source,
    })?;
    if contents.version == VERSION {
        return Ok(contents);
    }
    Err(Error::Refused(format!(
        "{} was written by another version of leno: run that version's `{cleanup}`",
        path.display()
    )))
}

/// Takes the lock of a mesh. The lock file is removed together with the mesh. So if the locked file is no longer
/// the one at this path, the lock is worthless, and taking it is tried again.
fn lock(layout: &Layout) -> Result<Flock<File>> {
    let path = layout.lock();
    let started = Instant::now();
    loop {
        match prepare_directory(layout) {
            // The directory of all meshes was removed in the meantime, together with the last mesh in it.
            Err(Error::Os { source, .. })
                if source.kind() == io::ErrorKind::NotFound && started.elapsed() < RUNNING =>
            {
                continue;
            }
            other => other?,
        }
        let mut options = OpenOptions::new();
        // Only root may open the file, because every process that can open it can also take its lock.
        let options = options.read(true).write(true).create(true).mode(0o600);
        let opened = options.truncate(false).open(&path);
        let file = match opened {
            // The directory was removed in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other.attempt(|| format!("cannot open {}", path.display()))?,
        };
        let locked = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => locked,
            Err((_, Errno::EWOULDBLOCK)) => {
                let owner = owner(layout);
                let wait = if owner.is_some() { RUNNING } else { ENDING };
                if started.elapsed() >= wait {
                    let owner = owner.map_or("unknown".into(), |process| process.pid.to_string());
                    return Err(Error::Running { mesh: layout.mesh().to_owned(), owner });
                }
                std::thread::sleep(TRY_AGAIN);
                continue;
            }
            Err((_, errno)) => {
                return Err(errno).attempt(|| format!("cannot lock {}", path.display()));
            }
        };
        let ours = locked.metadata().attempt(|| format!("cannot read {}", path.display()))?;
        let same =
            |current: fs::Metadata| (current.dev(), current.ino()) == (ours.dev(), ours.ino());
        if !fs::metadata(&path).is_ok_and(same) {
            continue;
        }
        // A mesh may run although its lock file was removed. If the owner was just killed, it will end soon.
        match owner(layout).filter(|owner| owner.pid != nix::unistd::getpid().as_raw()) {
            None => return Ok(locked),
            Some(_) if started.elapsed() < RUNNING => std::thread::sleep(TRY_AGAIN),
            Some(owner) => {
                let mesh = layout.mesh().to_owned();
                return Err(Error::Running { mesh, owner: owner.pid.to_string() });
            }
        }
    }
}

/// Creates the directory of a mesh. Other users cannot list it, but they can open files in it whose path they
/// have, because proxies read their token there.
fn prepare_directory(layout: &Layout) -> Result<()> {
    let passable = |directory: &Path| make_directory(directory, 0o711);
    passable(Path::new(layout::ROOT)).and_then(|()| passable(layout.directory()))
}

/// Creates a directory with exactly this mode, or sets the mode of an existing one.
///
/// # Errors
/// When the directory cannot be created.
pub fn make_directory(directory: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;

    let made = match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    };
    made.and_then(|()| fs::set_permissions(directory, fs::Permissions::from_mode(mode)))
        .attempt(|| format!("cannot create {}", directory.display()))
}

/// Creates an empty file, as the mount point for another file in the mount namespace of an instance.
///
/// # Errors
/// When the file cannot be created.
pub fn make_place(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;

    make_directory(path.parent().unwrap_or(Path::new("/")), 0o711)?;
    // An existing file is kept, because it may be a mount point in other namespaces.
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o755)))
        .attempt(|| format!("cannot create {}", path.display()))
}

fn remove_directory(layout: &Layout) -> Result<()> {
    let directory = layout.directory();
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).attempt(|| format!("cannot remove {}", directory.display()));
        }
        _ => {}
    }
    leno_capture::unmount_shared(|| !Layout::all().is_empty());
    netns::remove_directory();
    Ok(())
}

/// Removes objects in the required order: processes before the control groups and namespaces that they use, and
/// control groups before the mounts above them. If one object cannot be removed, the others still are. Captures are
/// the exception: a process that survives stays captured.
fn remove_made(made: &[MeshResource]) -> Result<()> {
    for process in made.iter().filter_map(MeshResource::process).filter(|p| p.alive()) {
        // The process may have ended since the check.
        let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
    }
    let mut first = Ok(());
    for path in made.iter().filter_map(MeshResource::cgroup) {
        first = first.and(remove_group(path));
    }
    first = first.and_then(|()| release(made));
    for thing in made {
        first = first.and(remove_network(thing));
    }
    first
}

fn remove_group(path: &Path) -> Result<()> {
    let group = Cgroup::at(path.to_owned());
    group.kill()?;
    group.remove()?;
    // The parents are shared by all instances or meshes. They can be removed only when nothing is left in them.
    let parents = path.ancestors().skip(1);
    let _ = parents.take_while(|parent| fs::remove_dir(parent).is_ok()).count();
    Ok(())
}

/// Removes the pins of captures and flow accounts.
fn release(made: &[MeshResource]) -> Result<()> {
    let pinned: Vec<&str> = made.iter().filter_map(MeshResource::pinned).collect();
    if !pinned.is_empty() {
        let owners = leno_capture::prune(|owner| !pinned.contains(&owner))?;
        tracing::debug!(?owners, "released");
    }
    Ok(())
}

fn remove_network(thing: &MeshResource) -> Result<()> {
    match thing {
        MeshResource::Uplink(way) => uplink::remove(way),
        MeshResource::Netns(name) => netns::remove(name),
        _ => Ok(()),
    }
}

impl MeshResource {
    fn process(&self) -> Option<&RecordedProcess> {
        match self {
            Self::Process(process) => Some(process),
            _ => None,
        }
    }

    fn cgroup(&self) -> Option<&PathBuf> {
        match self {
            Self::Cgroup(path) => Some(path),
            _ => None,
        }
    }

    /// The name under which the object's kernel programs are pinned, if it has any.
    fn pinned(&self) -> Option<&str> {
        match self {
            Self::Capture(owner) | Self::Flows(owner) => Some(owner),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_with_its_number() {
        let own = RecordedProcess::find(std::process::id().try_into().unwrap()).unwrap();
        assert!(own.alive());
        let earlier = RecordedProcess { start_ticks: own.start_ticks.wrapping_sub(1), ..own };
        assert!(!earlier.alive());
        assert_eq!(RecordedProcess::find(i32::MAX), None);
    }

    #[test]
    fn the_record_survives_its_text() {
        let contents = Contents {
            version: VERSION,
            owner: RecordedProcess { pid: 1, start_ticks: 2 },
            made: vec![
                MeshResource::Netns("leno-default".into()),
                MeshResource::Cgroup("/sys/fs/cgroup/leno/default".into()),
                MeshResource::Process(RecordedProcess { pid: 3, start_ticks: 4 }),
            ],
        };
        assert_eq!(serde_json::from_slice::<Contents>(&to_json(&contents)).unwrap(), contents);
    }

    /// Regression: the second attempt created the object without a record of it.
    #[test]
    fn an_object_that_was_not_recorded_is_recorded_at_the_next_attempt() {
        if !nix::unistd::geteuid().is_root() {
            let require = std::env::var("LENO_REQUIRE").unwrap_or_default();
            assert!(!require.contains("root"), "needs root");
            eprintln!("skipped: needs root");
            return;
        }
        let layout = Layout::new(&format!("record-{}", std::process::id())).unwrap();
        let mut record = MeshRecord::acquire(&layout).unwrap();
        let made = MeshResource::Netns(format!("{}-none", layout.mesh()));
        // A folder in the place of the draft makes writing fail, as a full disk does.
        let draft = layout.record().with_file_name(".state.json.new");
        fs::create_dir(&draft).unwrap();
        record.add(made.clone()).unwrap_err();
        fs::remove_dir(&draft).unwrap();
        assert_eq!(read(&layout).unwrap().made, []);
        record.add(made.clone()).unwrap();
        assert_eq!(read(&layout).unwrap().made, [made]);
        record.remove_all().unwrap();
    }

    #[test]
    fn a_group_that_cannot_be_removed_keeps_no_other_object() {
        let directory = tempfile::tempdir().unwrap();
        let [stuck, sound] = ["stuck", "sound"].map(|name| directory.path().join(name));
        fs::create_dir(&stuck).unwrap();
        // `remove_dir` refuses a directory with a file in it, as the kernel refuses a group with a process in it.
        fs::write(stuck.join("file"), "").unwrap();
        fs::create_dir(&sound).unwrap();
        let groups = [&stuck, &sound].map(|path| MeshResource::Cgroup(path.clone()));
        let error = remove_made(&groups).unwrap_err().chain();
        assert!(error.contains("stuck"), "{error}");
        assert!(!sound.exists(), "{error}");
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.yaml");
        write_atomically(&path, b"one", 0o644).unwrap();
        write_atomically(&path, b"two", 0o644).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
