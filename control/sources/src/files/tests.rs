use std::fs;
use std::os::unix::fs::symlink;

use leno_index::ObjectChange;
use leno_resources::Kind;
use tempfile::TempDir;

use super::*;

/// Bounds a wait for an event that must occur. The bound is only reached if the test fails.
const HANG: Duration = Duration::from_secs(30);

struct Run {
    updates: mpsc::Receiver<SourceUpdate>,
    task: tokio::task::JoinHandle<()>,
}

impl Run {
    fn of(paths: &[PathBuf]) -> Self {
        let (sender, updates) = mpsc::channel(UPDATES);
        let task = tokio::spawn(FilesSource::open(paths).unwrap().run(sender));
        Self { updates, task }
    }

    async fn next(&mut self) -> SourceUpdate {
        tokio::time::timeout(HANG, self.updates.recv()).await.unwrap().unwrap()
    }

    /// The next changes, as `+name` and `-name`.
    async fn changes(&mut self) -> Vec<String> {
        match self.next().await {
            SourceUpdate::Changes(changes) => changes.iter().map(short).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the update `wanted`, and skips earlier ones, which a write in several steps may cause.
    async fn until(&mut self, wanted: &[&str]) {
        while self.changes().await != wanted {}
    }

    async fn refused(&mut self) -> Vec<Problem> {
        match self.next().await {
            SourceUpdate::Refused(problems) => problems,
            other => panic!("{other:?}"),
        }
    }
}

fn short(change: &ObjectChange) -> String {
    match change {
        ObjectChange::Upsert(object) => format!("+{}", object.key().name),
        ObjectChange::Delete(key) => format!("-{}", key.name),
    }
}

fn document(name: &str) -> String {
    format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}\n")
}

/// Writes a file as an editor does that renames a new file into place.
fn replace(path: &Path, text: &str) {
    let other = path.with_extension("swp");
    fs::write(&other, text).unwrap();
    fs::rename(other, path).unwrap();
}

#[tokio::test]
async fn edits_of_a_file_are_followed_whether_written_or_renamed() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("mesh.yaml");
    fs::write(&file, document("a")).unwrap();
    let mut run = Run::of(std::slice::from_ref(&file));
    assert_eq!(run.changes().await, ["+a"]);
    replace(&file, &document("b"));
    assert_eq!(run.changes().await, ["-a", "+b"]);
    replace(&file, &document("c"));
    assert_eq!(run.changes().await, ["-b", "+c"]);
    fs::OpenOptions::new()
        .append(true)
        .open(&file)
        .and_then(|mut file| {
            std::io::Write::write_all(&mut file, format!("---\n{}", document("d")).as_bytes())
        })
        .unwrap();
    assert_eq!(run.changes().await, ["+d"]);
}

#[tokio::test]
async fn files_come_and_go_in_a_directory() {
    let dir = TempDir::new().unwrap();
    let mut run = Run::of(&[dir.path().to_owned()]);
    assert_eq!(run.changes().await, [""; 0]);
    replace(&dir.path().join("a.yaml"), &document("a"));
    assert_eq!(run.changes().await, ["+a"]);
    replace(&dir.path().join("b.yaml"), &document("b"));
    assert_eq!(run.changes().await, ["+b"]);
    fs::remove_file(dir.path().join("a.yaml")).unwrap();
    assert_eq!(run.changes().await, ["-a"]);
}

#[tokio::test]
async fn a_bad_edit_is_refused_as_a_whole_and_can_be_taken_back() {
    let dir = TempDir::new().unwrap();
    let (good, other) = (dir.path().join("a.yaml"), dir.path().join("b.yaml"));
    fs::write(&good, document("a")).unwrap();
    fs::write(&other, document("b")).unwrap();
    let mut run = Run::of(&[dir.path().to_owned()]);
    assert_eq!(run.changes().await, ["+a", "+b"]);
    // One file is invalid, so the valid edit of another file must not be applied either.
    replace(&other, "{apiVersion: v1, kind: Namespace, metadata: {nam: b}}");
    let problems = run.refused().await;
    assert!(problems.iter().all(|problem| &*problem.file == other.to_str().unwrap()));
    replace(&good, &document("c"));
    replace(&other, &document("b"));
    run.until(&["-a", "+c"]).await;
    replace(&other, "-");
    assert_eq!(run.refused().await.len(), 1);
    replace(&other, &document("b"));
    assert_eq!(run.changes().await, [""; 0]);
}

#[tokio::test]
async fn a_file_that_is_missing_is_refused_until_it_appears() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("mesh");
    let mut run = Run::of(std::slice::from_ref(&file));
    assert_eq!(run.refused().await.len(), 1);
    replace(&file, &document("a"));
    assert_eq!(run.changes().await, ["+a"]);
}

#[tokio::test]
async fn a_directory_that_is_replaced_is_followed() {
    let dir = TempDir::new().unwrap();
    let (state, next) = (dir.path().join("state"), dir.path().join("next"));
    fs::create_dir(&state).unwrap();
    fs::write(state.join("a.yaml"), document("a")).unwrap();
    let mut run = Run::of(std::slice::from_ref(&state));
    assert_eq!(run.changes().await, ["+a"]);
    fs::rename(&state, dir.path().join("old")).unwrap();
    assert_eq!(run.refused().await.len(), 1);
    fs::create_dir(&next).unwrap();
    fs::write(next.join("b.yaml"), document("b")).unwrap();
    fs::rename(&next, &state).unwrap();
    assert_eq!(run.changes().await, ["-a", "+b"]);
    replace(&state.join("c.yaml"), &document("c"));
    assert_eq!(run.changes().await, ["+c"]);
}

#[tokio::test]
async fn a_config_map_mount_is_followed() {
    let dir = TempDir::new().unwrap();
    let swap = |version: &str, name: &str| {
        fs::create_dir(dir.path().join(version)).unwrap();
        fs::write(dir.path().join(version).join("mesh.yaml"), document(name)).unwrap();
        symlink(version, dir.path().join("..data_tmp")).unwrap();
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
    };
    swap("..1", "a");
    let file = dir.path().join("mesh.yaml");
    symlink("..data/mesh.yaml", &file).unwrap();
    let mut run = Run::of(std::slice::from_ref(&file));
    assert_eq!(run.changes().await, ["+a"]);
    swap("..2", "b");
    assert_eq!(run.changes().await, ["-a", "+b"]);
    swap("..3", "c");
    assert_eq!(run.changes().await, ["-b", "+c"]);
}

#[tokio::test]
async fn the_task_ends_when_its_receiver_is_gone() {
    let dir = TempDir::new().unwrap();
    let mut run = Run::of(&[dir.path().to_owned()]);
    assert_eq!(run.changes().await, [""; 0]);
    let Run { updates, task } = run;
    drop(updates);
    tokio::time::timeout(HANG, task).await.unwrap().unwrap();
}

#[test]
fn what_cannot_be_watched_is_said() {
    assert!(matches!(FilesSource::open(&["-"]).unwrap_err(), OpenError::Stdin));
    let dir = TempDir::new().unwrap();
    let error = FilesSource::open(&[dir.path().join("none/mesh.yaml")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{} cannot be watched", dir.path().join("none").display())
    );
}

#[test]
fn reading_once_gives_the_objects_or_the_problems() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("a.yaml"), document("a")).unwrap();
    let objects = read_once(&[dir.path()]).unwrap();
    let keys: Vec<_> = objects.iter().map(Object::key).collect();
    assert_eq!((keys.len(), keys[0].kind, keys[0].name.as_str()), (1, Kind::Namespace, "a"));
    fs::write(dir.path().join("b.yaml"), "kind: [").unwrap();
    assert_eq!(read_once(&[dir.path()]).unwrap_err().len(), 1);
}
