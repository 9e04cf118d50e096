//! Records the captured pods in files, from which the next agent takes them over.
//!
//! There is one file for each pod, in a directory that is emptied when the node reboots, which also ends the
//! captures. The file is written before the pod is captured, so that every capture has a record.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use leno_capture::{Backend, CaptureTarget};
use leno_types::ports;
use serde::{Deserialize, Serialize};

use crate::host::NetnsId;

/// The prefix of a pod's name among the captured workloads of the node.
const OWNER: &str = "pod-";
/// The suffix of the name of every record's file.
const SUFFIX: &str = ".json";

/// A captured pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CaptureRecord {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The runtime's ID of the pod's sandbox; `None` if the pod was captured after its containers had started.
    pub(crate) container: Option<String>,
    pub(crate) netns: PathBuf,
    pub(crate) netns_id: NetnsId,
    /// The pod's control group; `None` if the backend needs none.
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) backend: String,
    /// When the pod was captured, in seconds since 1970; `None` in a record of an earlier version.
    #[serde(default)]
    pub(crate) since_unix_s: Option<u64>,
    /// Which of its datagrams the proxy carries, as a value of `leno.dev/udp`; empty in a record of an earlier
    /// version.
    #[serde(default)]
    pub(crate) datagrams: String,
    /// Whether the pod ran without a proxy when it was captured, and no node proxy has accepted its connections yet.
    #[serde(default)]
    pub(crate) entering: bool,
    /// Whether the pod leaves node mode, and its connections pass its proxy already.
    #[serde(default)]
    pub(crate) leaving: bool,
}

impl CaptureRecord {
    /// The capture's input. Connections are refused while the proxy does not listen. In a healthy pod it listens
    /// from before the first container starts until after the last one ends. Those of a pod that enters node mode pass
    /// until its node proxy listens.
    pub(crate) fn workload(&self) -> CaptureTarget {
        let cgroup = self.cgroup.clone().unwrap_or_default();
        CaptureTarget {
            name: owner(&self.uid),
            netns: self.netns.clone(),
            // The containers have no control groups yet, so the proxy is recognised by its user.
            proxy_cgroup: cgroup.clone(),
            proxy_process: None,
            cgroup,
            fail_closed: !self.entering,
            excluded: Vec::new(),
            proxy_uid: ports::PROXY_UID,
            datagrams: self.datagrams.parse().unwrap_or_default(),
        }
    }

    /// The backend that captures the pod; `None` if this version does not have that backend.
    pub(crate) fn backend(&self) -> Option<Backend> {
        self.backend.parse().ok()
    }

    /// Whether the namespace that was captured still exists.
    pub(crate) fn is_alive(&self) -> bool {
        NetnsId::of(&self.netns) == Some(self.netns_id)
    }
}

/// The name of a pod among the captured workloads.
pub(crate) fn owner(uid: &str) -> String {
    format!("{OWNER}{uid}")
}

/// The uid of the pod with this name among the captured workloads; `None` if it is not a pod of this agent.
pub(crate) fn pod_of(owner: &str) -> Option<&str> {
    owner.strip_prefix(OWNER)
}

/// The directory of all records.
#[derive(Clone, Debug)]
pub(crate) struct CaptureRecords(PathBuf);

impl CaptureRecords {
    /// Opens the directory, and creates it if it is missing.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(Self(directory.to_owned()))
    }

    pub(crate) fn write(&self, record: &CaptureRecord) -> io::Result<()> {
        let text = serde_json::to_string(record)?;
        // Renamed when complete. With a half-written record, the capture would have no record.
        let fresh = self.0.join(format!("{}.new", record.uid));
        fs::write(&fresh, text)?;
        fs::rename(fresh, self.file(&record.uid))
    }

    /// The present record of a pod; `None` if there is none, or if it cannot be read.
    pub(crate) fn of(&self, uid: &str) -> Option<CaptureRecord> {
        serde_json::from_str(&fs::read_to_string(self.file(uid)).ok()?).ok()
    }

    /// Removes the record of a pod. Succeeds if there is none.
    pub(crate) fn remove(&self, uid: &str) -> io::Result<()> {
        match fs::remove_file(self.file(uid)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// All records that can be read.
    pub(crate) fn all(&self) -> io::Result<Vec<CaptureRecord>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            if !path.to_string_lossy().ends_with(SUFFIX) {
                continue;
            }
            match fs::read_to_string(&path).map(|text| serde_json::from_str(&text)) {
                Ok(Ok(record)) => all.push(record),
                Ok(Err(error)) => {
                    tracing::warn!(file = %path.display(), %error, "a record of a captured pod cannot be parsed");
                }
                // The file was removed since the directory was listed.
                Err(error) => tracing::debug!(file = %path.display(), %error, "a record is gone"),
            }
        }
        Ok(all)
    }

    fn file(&self, uid: &str) -> PathBuf {
        self.0.join(format!("{uid}{SUFFIX}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_outlive_their_writer() {
        let folder = tempfile::tempdir().unwrap();
        let netns = folder.path().join("netns");
        fs::write(&netns, "").unwrap();
        let record = CaptureRecord {
            namespace: "shop".into(),
            name: "web-0".into(),
            uid: "u".into(),
            container: Some("sandbox".into()),
            netns_id: NetnsId::of(&netns).unwrap(),
            netns: netns.clone(),
            cgroup: None,
            backend: "nftables".into(),
            since_unix_s: Some(12),
            datagrams: "enabled".into(),
            entering: false,
            leaving: false,
        };
        assert!(record.workload().fail_closed);
        assert!(!CaptureRecord { entering: true, ..record.clone() }.workload().fail_closed);
        let directory = folder.path().join("pods");
        CaptureRecords::open(&directory).unwrap().write(&record).unwrap();
        fs::write(directory.join("broken.json"), "{").unwrap();
        let records = CaptureRecords::open(&directory).unwrap();
        assert_eq!(records.all().unwrap(), std::slice::from_ref(&record));
        assert!(record.is_alive());
        fs::remove_file(netns).unwrap();
        assert!(!record.is_alive());
        let mut earlier = serde_json::to_value(&record).unwrap();
        let fields = earlier.as_object_mut().unwrap();
        fields.retain(|name, _| !["since_unix_s", "entering", "leaving"].contains(&name.as_str()));
        let earlier: CaptureRecord = serde_json::from_value(earlier).unwrap();
        assert_eq!(earlier, CaptureRecord { since_unix_s: None, ..record });
        records.remove("u").unwrap();
        records.remove("u").unwrap();
        assert_eq!(records.all().unwrap(), []);
    }

    #[test]
    fn a_pod_is_found_by_the_name_it_is_captured_under() {
        assert_eq!(pod_of(&owner("u-1")), Some("u-1"));
        assert_eq!(pod_of("web-0"), None, "of a mesh on one machine");
    }
}
