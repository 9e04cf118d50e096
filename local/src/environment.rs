//! Builds the environment of applications. Few variables of the shell that started `leno up` are passed on, so
//! that its secrets do not reach every workload.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use leno_supervise::ProcessCredentials;
use leno_types::WorkloadApiAddress;

use crate::error::{Attempt, Error, Result};
use crate::plan::PlannedInstance;
use crate::root;

/// The variables that every application gets from the shell: those that programs need in order to run, and the locale
/// and time zone. Others must be named by `env`, `envFile`, `inheritEnv` or `--env-file`.
const PASSED: [&str; 9] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ"];
/// The variables in [`PASSED`] whose values contain paths.
const PATHS: [&str; 3] = ["PATH", "HOME", "SHELL"];
/// Largest file of variables that is read, in bytes: far above the kernel's limit for one variable (128 KiB).
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The sources of the variables of applications.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    shell: BTreeMap<String, String>,
    /// The variables of `--env-file`.
    given: BTreeMap<String, String>,
    /// The address of the control plane's SPIFFE Workload API.
    workload_api: Option<String>,
    /// The address of an external SPIFFE Workload API, if one instead of the control plane issues the proxies'
    /// certificates.
    other_api: Option<WorkloadApiAddress>,
}

/// The variable in which clients of the SPIFFE Workload API find its address (SPIFFE Workload Endpoint, section 4).
const WORKLOAD_API: &str = "SPIFFE_ENDPOINT_SOCKET";

impl Environment {
    /// Takes the shell's variables, and the variables of files that apply to all workloads. A variable that is not
    /// UTF-8 is omitted.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn of_shell(files: &[PathBuf]) -> Result<Self> {
        let shell = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let mut environment = Self { shell, ..Self::default() };
        for file in files {
            let read = environment.read(file)?;
            environment.given.extend(read);
        }
        Ok(environment)
    }

    /// Adds the address of a SPIFFE Workload API, for applications that can see its socket: the external API
    /// `other` if the proxies use one, else the control plane's socket `own`.
    #[must_use]
    pub fn with_workload_api(self, own: &Path, other: Option<&WorkloadApiAddress>) -> Self {
        let own = Some(format!("unix://{}", own.display()));
        Self { workload_api: own, other_api: other.cloned(), ..self }
    }

    /// All variables of an instance's application. This reads the instance's files of variables, so each start of
    /// the application uses their present content.
    ///
    /// # Errors
    /// When one of these files cannot be read.
    pub fn of_instance(
        &self,
        instance: &PlannedInstance,
        credentials: &ProcessCredentials,
    ) -> Result<BTreeMap<String, String>> {
        let launch = &instance.launch;
        let inherited = launch.inherited.iter().map(String::as_str);
        // The shell's paths are invalid inside a separate root file system.
        let elsewhere = |name: &&str| launch.root.is_some() && PATHS.contains(name);
        let passed = PASSED.into_iter().filter(|name| !elsewhere(name));
        let path = launch.root.iter().map(|_| ("PATH".to_owned(), root::PATH.to_owned()));
        let mut all: BTreeMap<String, String> = path
            .chain(passed.chain(inherited).flat_map(|pattern| self.matching(pattern)))
            .collect();
        // Inside a separate root file system, the socket is where a volume is mounted.
        let api = launch.certificates.workload_api(self.other_api.as_ref());
        let api = api.map(ToString::to_string).or_else(|| self.workload_api.clone());
        let api = api.filter(|_| launch.root.is_none());
        all.extend(api.map(|address| (WORKLOAD_API.to_owned(), address)));
        let own = credentials.environment();
        all.extend(own.map(|(name, value)| (name.to_owned(), value.to_string_lossy().into())));
        all.extend(self.given.clone());
        for file in &launch.environment_files {
            all.extend(self.read(file)?);
        }
        all.extend(launch.environment.clone());
        all.insert("LENO_WORKLOAD".into(), instance.name.name.to_string());
        all.insert("LENO_NAMESPACE".into(), instance.name.namespace.to_string());
        Ok(all)
    }

    /// The shell's variables with this name. If the pattern ends with `*`, those whose name begins with the part
    /// before it.
    fn matching(&self, pattern: &str) -> Vec<(String, String)> {
        let fits = |name: &str| match pattern.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == pattern,
        };
        let found = self.shell.iter().filter(|(name, _)| fits(name));
        found.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn read(&self, file: &Path) -> Result<BTreeMap<String, String>> {
        use std::io::Read as _;

        let what = || format!("cannot read the variables in {}", file.display());
        let mut text = String::new();
        let opened = std::fs::File::open(file).attempt(what)?;
        opened.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).attempt(what)?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(Error::Refused(format!(
                "{} is larger than 1 MiB, the limit for files of variables",
                file.display()
            )));
        }
        self.parse(&text).map_err(|(line, reason)| {
            Error::Refused(format!("{}:{line}: {reason}", file.display()))
        })
    }

    /// Parses lines `NAME=VALUE` as Docker does: empty lines and those that begin with `#` are skipped, and `NAME`
    /// alone takes the shell's value. Quotes around a value and `export ` before a name are removed. An error has
    /// the number of its line.
    fn parse(&self, text: &str) -> Result<BTreeMap<String, String>, (usize, String)> {
        let mut all = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let line = line.strip_prefix("export ").unwrap_or(line);
            let (name, value) = match line.split_once('=') {
                Some((name, value)) => (name.trim_end(), Some(unquoted(value.trim()))),
                None => (line, self.shell.get(line).map(String::as_str)),
            };
            if name.is_empty() || name.contains([' ', '\t', '\0']) {
                let reason = format!("{name:?} is not the name of a variable: write NAME=VALUE");
                return Err((index + 1, reason));
            }
            all.extend(value.map(|value| (name.to_owned(), value.to_owned())));
        }
        Ok(all)
    }
}

fn unquoted(value: &str) -> &str {
    let within = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or_else(|| within('\'')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell() -> Environment {
        let pairs = [
            ("PATH", "/bin"),
            ("LC_ALL", "C.UTF-8"),
            ("TOKEN", "secret"),
            ("AWS_PROFILE", "p"),
            ("AWS_REGION", "r"),
        ];
        let shell = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Environment { shell, ..Environment::default() }
    }

    #[test]
    fn patterns_choose_from_the_shell() {
        let names = |pattern: &str| -> Vec<String> {
            shell().matching(pattern).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names("TOKEN"), ["TOKEN"]);
        assert_eq!(names("AWS_*"), ["AWS_PROFILE", "AWS_REGION"]);
        assert_eq!(names("*").len(), 5);
        assert_eq!(names("TOK"), [""; 0]);
        assert!(PASSED.iter().all(|pattern| !names(pattern).contains(&"TOKEN".to_owned())));
    }

    #[test]
    fn files_of_variables_are_read_as_docker_reads_them() {
        let text = "# comment\n\nA=1\nB = two words \nC=\"x=y\"\nexport D='z'\nTOKEN\nABSENT\nE=\n";
        let read = shell().parse(text).unwrap();
        let read: Vec<(&str, &str)> = read.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(
            read,
            [
                ("A", "1"),
                ("B", "two words"),
                ("C", "x=y"),
                ("D", "z"),
                ("E", ""),
                ("TOKEN", "secret"),
            ]
        );
        assert_eq!(
            shell().parse("A=1\nnot a line\n"),
            Err((2, "\"not a line\" is not the name of a variable: write NAME=VALUE".to_owned()))
        );
    }
}
