//! Finds the instance of a local mesh to which a process belongs.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use leno_types::InstanceName;
use nix::sys::socket::{getsockopt, sockopt::PeerPidfd};
use tokio::net::UnixStream;

/// The name of the control group of an instance's application. Its parent is the instance's control group.
const APPLICATION: &str = "app";

/// Identifies processes by their control group. `leno up` starts each process in its control group, and a process
/// cannot leave it without permission to write to the hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupAttestor {
    /// The path of the mesh's control group, ending with a slash.
    mesh: String,
}

/// Why a process belongs to no workload.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttestError {
    /// The kernel could not identify the process.
    #[error("the process cannot be identified")]
    Process(#[source] io::Error),
    /// The process is in a PID namespace that is not visible from here.
    #[error("the process is not in this machine's PID namespace")]
    Namespace,
    /// The process has ended since it connected, and another process may have its number.
    #[error("the process has ended")]
    Ended,
    /// The process is not an application of the mesh.
    #[error(
        "the process is in the control group {0:?}, which belongs to no application of the mesh"
    )]
    Group(String),
}

impl CgroupAttestor {
    /// Creates the attestor for the mesh to which this control plane belongs. The control plane's control group is
    /// beside those of the instances.
    ///
    /// # Errors
    /// If the control group of this process cannot be read.
    pub fn of_own_mesh() -> io::Result<Self> {
        let own = group_of("self")?;
        let mesh = own.rsplit_once('/').map_or("", |(mesh, _)| mesh);
        Ok(Self { mesh: format!("{mesh}/") })
    }

    /// The instance whose application has connected.
    pub(super) fn instance(&self, stream: &UnixStream) -> Result<InstanceName, AttestError> {
        let credentials = stream.peer_cred().map_err(AttestError::Process)?;
        let pid = credentials.pid().filter(|pid| *pid > 0).ok_or(AttestError::Namespace)?;
        // Linux supports this since 6.5. On earlier kernels, a process that has ended is not noticed.
        let process = getsockopt(stream, PeerPidfd).ok();
        let group = group_of(&pid.to_string()).map_err(AttestError::Process)?;
        if process.is_some_and(|process| number_of(&process) != Some(pid)) {
            return Err(AttestError::Ended);
        }
        self.instance_of(&group).ok_or(AttestError::Group(group))
    }

    fn instance_of(&self, group: &str) -> Option<InstanceName> {
        let (instance, rest) = group.strip_prefix(&self.mesh)?.split_once('/')?;
        let (namespace, name) = instance.split_once('.')?;
        let is_application = rest.split('/').next() == Some(APPLICATION);
        InstanceName::new(namespace, name).ok().filter(|_| is_application)
    }
}

/// The control group (version 2) of a process.
fn group_of(pid: &str) -> io::Result<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let group = text.lines().find_map(|line| line.strip_prefix("0::"));
    group.map(str::to_owned).ok_or_else(|| io::Error::other("it has no control group of version 2"))
}

/// The number of a process; `None` if the process no longer exists.
fn number_of(process: &OwnedFd) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_control_group_of_an_application_names_an_instance() {
        let of_mesh = CgroupAttestor { mesh: "/leno/default/".to_owned() };
        let instance = |group: &str| of_mesh.instance_of(group).map(|name| name.to_string());
        for group in ["/leno/default/shop.web-0/app", "/leno/default/shop.web-0/app/own/below"] {
            assert_eq!(instance(group).as_deref(), Some("shop/web-0"), "{group}");
        }
        for group in [
            "/",
            "/leno/default/controller",
            "/leno/default/shop.web-0",
            "/leno/default/shop.web-0/proxy",
            "/leno/default/shop.web-0/application",
            "/leno/default/web-0/app",
            "/leno/default/.web-0/app",
            "/leno/other/shop.web-0/app",
            "/user.slice/leno/default/shop.web-0/app",
            "/leno/default/shop.web-0/../bank.teller-0/app/..",
        ] {
            assert_eq!(instance(group).filter(|name| name != "shop/web-0"), None, "{group}");
        }
        assert_eq!(instance("/leno/default/shop.web-0/proxy"), None);
    }

    #[tokio::test]
    async fn a_process_is_identified_by_its_connection() {
        let (here, _there) = UnixStream::pair().expect("a pair");
        let own = group_of("self").expect("a group");
        let attestor = CgroupAttestor::of_own_mesh().expect("a group");
        let error = attestor.instance(&here).expect_err("a test is no workload");
        assert!(matches!(&error, AttestError::Group(group) if *group == own), "{error}");
    }
}
