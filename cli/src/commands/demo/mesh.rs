//! Starts the shop as a mesh, sends load to it, queries it and ends it.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leno_capture::CaptureChoice;
use leno_launch::LaunchedMesh;
use leno_local::layout::Layout;
use leno_local::status::MeshStatus;

use super::measure::Load;

const SHOP: &str = include_str!("../../../../examples/shop/shop.yaml");
/// The client of the shop, in which the load generator runs. It is a workload like all others.
const CLIENT: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: customer, namespace: shop, labels: {app: customer}}
spec:
  serviceAccount: customer
  command: [sleep, infinity]
";
const UNMESHED: &str = "
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {leno.dev/inject: disabled}}
";

/// How long the shop may take until it is ready, on a slow machine.
const READY: Duration = Duration::from_secs(60);
/// How long the shop may take to end.
const END: Duration = Duration::from_secs(30);
/// The pause between two checks while waiting for the shop to be ready or to end.
const LOOK: Duration = Duration::from_millis(50);
/// How long load is sent before the measurement.
const WARM_UP: &str = "1s";

/// A running shop.
pub(super) struct ShopMesh {
    name: &'static str,
    layout: Layout,
    up: LaunchedMesh,
    ended: bool,
}

/// The load generator while it runs.
pub(super) struct ShopLoad {
    child: Child,
}

impl ShopMesh {
    /// Starts the shop and waits until every instance takes traffic.
    pub(super) async fn start(
        name: &'static str,
        capture: CaptureChoice,
        meshed: bool,
    ) -> Result<Self> {
        for (program, package) in [("redis-server", "redis-server")] {
            if leno_local::program::find(program).is_none() {
                bail!(
                    "the demo needs {program}, which is not installed: apt-get install -y \
                     {package}"
                );
            }
        }
        let shop = if meshed { SHOP.to_owned() } else { format!("{}{UNMESHED}", reachable(SHOP)) };
        let own = std::env::current_exe()?;
        let mut up = Command::new(&own);
        up.env("PATH", with_folder_of(&own)?)
            .args(["up", "--with-parent", "--name", name, "--mtls", "strict"])
            .args(["--capture", &capture.to_string()])
            .arg("-")
            .current_dir("/")
            // In a process group of its own, `leno up` does not get the Ctrl-C that is meant for the demo. The
            // demo then ends the mesh in order.
            .process_group(0);
        let up = LaunchedMesh::start(&mut up, &format!("{shop}{CLIENT}"));
        let up = up.context("cannot start leno up")?;
        let mesh = Self { name, layout: Layout::new(name)?, up, ended: false };
        while !mesh.up.poll_ready(READY, mesh.status().is_ok_and(|status| status.is_ready()))? {
            tokio::time::sleep(LOOK).await;
        }
        Ok(mesh)
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn status(&self) -> Result<MeshStatus> {
        Ok(MeshStatus::read(&self.layout)?)
    }

    /// One line that describes what runs.
    pub(super) fn describe(&self) -> Result<String> {
        let status = self.status()?;
        let meshed = status.instances.iter().filter(|instance| instance.meshed).count();
        let (all, capture) = (status.instances.len(), self.capture()?);
        Ok(format!("{all} workload instances, {meshed} with a proxy, captured by {capture}"))
    }

    /// How traffic is captured.
    pub(super) fn capture(&self) -> Result<String> {
        let status = self.status()?;
        let capture = status.instances.iter().find_map(|instance| instance.capture.clone());
        Ok(capture.unwrap_or_else(|| "none".to_owned()))
    }

    /// Fails with the output of `leno up` if that process has ended by itself.
    pub(super) fn check_alive(&self) -> Result<()> {
        Ok(self.up.check_alive()?)
    }

    /// Starts the load generator in the client's workload.
    pub(super) fn load(&self, rate: u32, duration: Duration) -> Result<ShopLoad> {
        let generator = leno_local::program::find("leno-load")
            .ok_or_else(|| leno_local::program::missing("leno-load"))?;
        let child = Command::new(std::env::current_exe()?)
            .args(["exec", "--name", self.name, "-n", "shop", "customer", "--"])
            .arg(generator)
            .args(["--url", "http://web:8080/", "--warm-up", WARM_UP, "-o", "json"])
            .args(["--rate", &rate.to_string()])
            .args(["--duration", &format!("{}s", duration.as_secs())])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting the load")?;
        Ok(ShopLoad { child })
    }

    /// The number of netfilter rules in all namespaces of the mesh, as `nft` lists them; `None` if `nft` is not
    /// installed.
    pub(super) fn netfilter_rules(&self) -> Result<Option<usize>> {
        let Some(nft) = leno_local::program::find("nft") else { return Ok(None) };
        let mut rules = 0;
        for instance in self.status()?.instances {
            let listed = Command::new(std::env::current_exe()?)
                .args(["exec", "--name", self.name, "-n", &instance.namespace, &instance.name])
                .arg("--")
                .arg(&nft)
                .args(["list", "ruleset"])
                .output()
                .context("listing netfilter rules")?;
            if !listed.status.success() {
                bail!("nft list ruleset: {}", String::from_utf8_lossy(&listed.stderr));
            }
            let text = String::from_utf8_lossy(&listed.stdout);
            rules += text.lines().filter(|line| is_rule(line)).count();
        }
        Ok(Some(rules))
    }

    /// Ends the shop in order.
    pub(super) async fn stop(mut self) -> Result<()> {
        while !self.up.poll_end(END)? {
            tokio::time::sleep(LOOK).await;
        }
        self.ended = true;
        Ok(())
    }
}

impl Drop for ShopMesh {
    fn drop(&mut self) {
        if !self.ended {
            // The demo ends because of another error, and reports that error rather than errors from here.
            self.up.kill();
            let _left = leno_local::cleanup::cleanup(Some(self.name));
        }
    }
}

impl ShopLoad {
    pub(super) fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits for the load generator to end; returns its measurements.
    pub(super) fn finish(mut self) -> Result<Load> {
        let (mut record, mut errors) = (String::new(), String::new());
        self.child.stdout.take().context("no output")?.read_to_string(&mut record)?;
        self.child.stderr.take().context("no errors")?.read_to_string(&mut errors)?;
        self.child.wait()?;
        serde_json::from_str(&record)
            .with_context(|| format!("the load generator printed no record: {record}{errors}"))
    }
}

impl Drop for ShopLoad {
    fn drop(&mut self) {
        // The process has already ended, unless the demo ends early.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// The shop's Redis listens only on loopback. In a mesh that is enough, because its proxy connects to it there.
/// Without a mesh, Redis must listen on all addresses.
fn reachable(shop: &str) -> String {
    shop.replace("--bind, 127.0.0.1", "--bind, 0.0.0.0")
}

/// The search path, with the folder of this executable in front, because the shop's program is in the same folder.
fn with_folder_of(executable: &Path) -> Result<OsString> {
    let own = executable.parent().context("an executable lies in a folder")?.to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(own).chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(folders)?)
}

/// Whether a line of `nft list ruleset` is a rule, rather than the beginning or end of a table or a chain.
fn is_rule(line: &str) -> bool {
    let line = line.trim();
    let frame = ["table ", "chain ", "type ", "policy ", "}", "#"];
    !line.is_empty() && !frame.iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_mesh_redis_listens_for_others() {
        assert_ne!(reachable(SHOP), SHOP);
    }

    #[test]
    fn rules_are_told_from_their_frame() {
        let listed = "table ip leno {\n\tchain output {\n\t\ttype nat hook output priority -100; \
                      policy accept;\n\t\tmeta skuid 2102 return\n\t\ttcp dport 80 redirect\n\t}\n}";
        assert_eq!(listed.lines().filter(|line| is_rule(line)).count(), 2);
        assert_eq!("".lines().filter(|line| is_rule(line)).count(), 0);
    }
}
