//! Keeps the CNI plugin installed on the node: its binary, and its entry at the end of the plugin
//! chain.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use leno_cni::{NAME, conflist};
use serde_json::{Value, json};

use crate::metrics::Metrics;

/// How often the installation is checked. Another program may have rewritten the configuration without the plugin.
const LOOK: Duration = Duration::from_secs(1);
/// The suffix of a file while it is being written. Runtimes do not read files with this suffix.
const FRESH: &str = ".leno-new";
/// The suffix of a configuration with a single plugin, while it is replaced by a list that contains Leno's plugin
/// as well.
const SAVED: &str = ".leno-saved";
/// The extensions of configurations with a single plugin.
const SINGLE: [&str; 2] = ["conf", "json"];

/// The folders on the node into which the plugin is installed.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    /// The node's folder of configurations.
    pub(crate) configuration: PathBuf,
    /// The node's folder of plugins.
    pub(crate) plugins: PathBuf,
}

impl Installation {
    /// Installs the plugin, and repairs the installation whenever it was changed, until the runtime
    /// ends.
    pub(crate) async fn keep(self, binary: PathBuf, plugin: Value, metrics: Arc<Metrics>) {
        let mut logged = None;
        loop {
            let done = self.put(&binary, &plugin);
            metrics.installed.store(done.is_ok(), Ordering::Relaxed);
            match done {
                Ok(true) => {
                    metrics.installations.fetch_add(1, Ordering::Relaxed);
                    let folder = self.configuration.display();
                    tracing::info!(%folder, "the CNI plugin is the last of the node's chain");
                    logged = None;
                }
                Ok(false) => logged = None,
                Err(error) => {
                    let error = format!("{error:#}");
                    if logged.as_ref() != Some(&error) {
                        tracing::error!(error, "cannot install the CNI plugin; retrying");
                        logged = Some(error);
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Installs or repairs the plugin. Returns whether anything had to be changed.
    fn put(&self, binary: &Path, plugin: &Value) -> anyhow::Result<bool> {
        // The binary is written first, because a runtime may use the configuration as soon as it is written.
        let fresh = self.put_binary(binary)?;
        let file = self.active()?.with_context(|| {
            let folder = self.configuration.display();
            format!("{folder} has no CNI configuration yet: install the cluster's network plugin")
        })?;
        let text = read(&file)?;
        let action = || format!("the CNI configuration {}", file.display());
        let Some(edited) = conflist::with(&text, plugin).with_context(action)? else {
            return Ok(fresh);
        };
        if conflist::is_list(&text).with_context(action)? {
            replace(&file, edited.as_bytes(), 0o644, None)?;
        } else {
            // The old file is renamed, because a runtime uses the first file by name, which would be the old one.
            replace(&file.with_extension("conflist"), edited.as_bytes(), 0o644, None)?;
            fs::rename(&file, with_suffix(&file, SAVED)).with_context(action)?;
        }
        Ok(true)
    }

    fn put_binary(&self, binary: &Path) -> anyhow::Result<bool> {
        let reading = || format!("reading {}", binary.display());
        let wanted = fs::metadata(binary).with_context(reading)?;
        let installed = self.plugins.join(NAME);
        // Compared by size and time and not by content, because this runs every second.
        let is_same = |found: fs::Metadata| {
            found.len() == wanted.len() && found.modified().ok() == wanted.modified().ok()
        };
        if fs::metadata(&installed).is_ok_and(is_same) {
            return Ok(false);
        }
        let content = fs::read(binary).with_context(reading)?;
        fs::create_dir_all(&self.plugins)
            .with_context(|| format!("making {}", self.plugins.display()))?;
        replace(&installed, &content, 0o755, wanted.modified().ok())?;
        Ok(true)
    }

    /// Removes the plugin's entry from every configuration, and its binary. Succeeds if there is none.
    pub(crate) fn remove(&self) -> anyhow::Result<()> {
        for file in self.files()?.into_iter().filter(|file| conflist::is_read(file)) {
            let text = read(&file)?;
            let earlier = SINGLE.map(|extension| file.with_extension(extension));
            let saved = earlier.into_iter().find(|file| with_suffix(file, SAVED).exists());
            if let Some(earlier) = saved {
                fs::rename(with_suffix(&earlier, SAVED), &earlier)
                    .with_context(|| format!("restoring {}", earlier.display()))?;
                fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
            } else if let Ok(Some(edited)) = conflist::without(&text) {
                replace(&file, edited.as_bytes(), 0o644, None)?;
            }
        }
        match fs::remove_file(self.plugins.join(NAME)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {NAME}"))
            }
            _ => Ok(()),
        }
    }

    fn active(&self) -> anyhow::Result<Option<PathBuf>> {
        Ok(conflist::active(self.files()?))
    }

    fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let folder = &self.configuration;
        let entries =
            fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
        let files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
        Ok(files.into_iter().filter(|file| file.is_file()).collect())
    }
}

/// The plugin's entry in the chain of a configuration.
pub(crate) fn entry(socket: &Path, kubelet: &Path, exempt: &[String]) -> Value {
    json!({"type": NAME, "socket": socket, "kubelet": kubelet, "exempt": exempt})
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn read(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

/// Replaces a file atomically: readers get the whole old content or the whole new one.
fn replace(
    file: &Path,
    content: &[u8],
    mode: u32,
    modified: Option<SystemTime>,
) -> anyhow::Result<()> {
    let fresh = with_suffix(file, FRESH);
    let write = || {
        fs::write(&fresh, content)?;
        if let Some(modified) = modified {
            fs::File::options().write(true).open(&fresh)?.set_modified(modified)?;
        }
        fs::set_permissions(&fresh, fs::Permissions::from_mode(mode))?;
        fs::rename(&fresh, file)
    };
    write().with_context(|| format!("writing {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"cniVersion":"1.0.0","name":"bed","plugins":[{"type":"bridge"}]}"#;
    const ONE: &str = r#"{"cniVersion":"0.4.0","name":"one","type":"bridge"}"#;

    struct Node {
        folder: tempfile::TempDir,
        installation: Installation,
    }

    impl Node {
        fn new(file: &str, content: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            let installation = Installation { configuration: at("net.d"), plugins: at("bin") };
            fs::create_dir(&installation.configuration).unwrap();
            fs::write(installation.configuration.join(file), content).unwrap();
            fs::write(at("leno-cni"), "binary 1").unwrap();
            Self { folder, installation }
        }

        fn put(&self) -> bool {
            let plugin = entry(Path::new("/s"), Path::new("/k"), &[]);
            self.installation.put(&self.folder.path().join("leno-cni"), &plugin).unwrap()
        }

        fn names(&self) -> Vec<String> {
            let files = self.installation.files().unwrap();
            let name = |file: &PathBuf| file.file_name().unwrap().to_string_lossy().into_owned();
            let mut names: Vec<_> = files.iter().map(name).collect();
            names.sort();
            names
        }

        fn types(&self) -> Vec<String> {
            let text = read(&self.installation.active().unwrap().unwrap()).unwrap();
            let value: Value = serde_json::from_str(&text).unwrap();
            let plugins = value["plugins"].as_array().unwrap();
            plugins.iter().map(|p| p["type"].as_str().unwrap().to_owned()).collect()
        }
    }

    #[test]
    fn it_is_installed_once_and_again_when_it_was_overwritten() {
        let node = Node::new("10-bed.conflist", LIST);
        assert!(node.put());
        assert_eq!(node.types(), ["bridge", NAME]);
        assert!(!node.put(), "nothing is to be done");
        fs::write(node.installation.configuration.join("10-bed.conflist"), LIST).unwrap();
        assert!(node.put());
        assert_eq!(node.types(), ["bridge", NAME]);
        fs::write(node.folder.path().join("leno-cni"), "binary two").unwrap();
        assert!(node.put(), "a newer binary");
        assert!(!node.put(), "nothing is to be done");
        let binary = node.installation.plugins.join(NAME);
        assert_eq!(fs::read_to_string(&binary).unwrap(), "binary two");
        assert_eq!(fs::metadata(&binary).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(node.names(), ["10-bed.conflist"], "nothing half written stays");
    }

    #[test]
    fn removing_it_restores_what_was_there() {
        for (name, content) in
            [("10-bed.conflist", LIST), ("10-bed.conf", ONE), ("10-bed.json", ONE)]
        {
            let node = Node::new(name, content);
            assert!(node.put());
            assert_eq!(node.types(), ["bridge", NAME], "{name}");
            node.installation.remove().unwrap();
            assert_eq!(node.names(), [name]);
            let text = read(&node.installation.configuration.join(name)).unwrap();
            let [found, expected] =
                [&*text, content].map(|t| serde_json::from_str::<Value>(t).unwrap());
            assert_eq!(found, expected);
            assert!(!node.installation.plugins.join(NAME).exists());
            node.installation.remove().unwrap();
        }
    }

    #[test]
    fn without_a_network_there_is_nothing_to_install_into() {
        let node = Node::new("notes.txt", "");
        let plugin = entry(Path::new("/s"), Path::new("/k"), &[]);
        let error =
            node.installation.put(&node.folder.path().join("leno-cni"), &plugin).unwrap_err();
        assert!(error.to_string().contains("has no CNI configuration yet"), "{error:#}");
    }
}
