//! How the proxy of an instance is run: as a user of its own, with no capability.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use leno_types::ports;

use crate::enclosure::{Credentials, Enclosure};
use crate::error::{Error, Result};
use crate::plan::{Instance, subnet};
use crate::process::Task;
use crate::token::Tokens;

/// What the proxies of a mesh have in common.
#[derive(Debug)]
pub struct Settings {
    /// The executable; none when it was not found, which matters once a workload is meshed.
    pub binary: Option<PathBuf>,
    /// What this machine can capture with.
    pub machine: leno_capture::Report,
    /// The tokens by which proxies get their first certificate.
    pub tokens: Tokens,
    /// The roots that the control plane's certificate is checked against.
    pub roots: PathBuf,
    /// The trust domain.
    pub trust_domain: String,
    /// What proxies log.
    pub log: String,
    /// The form of the access log: `off`, `text` or `json`.
    pub access_log: String,
}

impl Settings {
    /// The proxy's process.
    ///
    /// # Errors
    /// When the executable was not found.
    pub fn task(&self, instance: &Instance, token: &Path, enclosure: Enclosure) -> Result<Task> {
        let binary = self.binary.as_ref().ok_or_else(|| missing("leno-proxy"))?;
        let name = &instance.name;
        let control = format!("https://{}:{}", subnet().gateway().v4, ports::CONTROL);
        let environment: [(&str, &str); 10] = [
            ("LENO_NAME", &name.name),
            ("LENO_NAMESPACE", &name.namespace),
            ("LENO_SERVICE_ACCOUNT", &instance.launch.service_account),
            ("LENO_TRUST_DOMAIN", &self.trust_domain),
            ("LENO_CONTROL", &control),
            ("LENO_ROOTS", &self.roots.to_string_lossy()),
            ("LENO_TOKEN", &token.to_string_lossy()),
            ("LENO_WORKERS", "1"),
            ("LENO_LOG", &self.log),
            ("LENO_ACCESS_LOG", &self.access_log),
        ];
        let owned = |(name, value): (&str, &str)| (name.into(), value.into());
        Ok(Task {
            command: vec![binary.into()],
            environment: environment.into_iter().map(owned).collect::<BTreeMap<OsString, _>>(),
            inherit: false,
            directory: Some("/".into()),
            enclosure,
            credentials: Credentials::confined(ports::PROXY_UID),
        })
    }
}

/// Destinations that are never captured: DNS and the control plane, which are not services of the
/// mesh.
#[must_use]
pub fn never_captured() -> Vec<(IpAddr, u8)> {
    let whole = |address: IpAddr| (address, if address.is_ipv4() { 32 } else { 128 });
    subnet().gateway().iter().map(whole).collect()
}

/// Looks for a program of Leno's: beside the running one, else in PATH.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(name)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let listed = std::env::split_paths(&path).map(|directory| directory.join(name));
    beside.into_iter().chain(listed).find(|candidate| candidate.is_file())
}

/// The error for a program of Leno's that was not found.
#[must_use]
pub fn missing(name: &str) -> Error {
    Error::Refused(format!("cannot find {name} beside leno or in PATH: build it with `make build`"))
}
