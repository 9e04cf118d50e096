//! Tests whether this kernel can run Leno's programs: tries each one, and reports which backend replaces those
//! that fail.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;

use leno_bpf::hooks::{self, HookSharing, OtherPrograms, ProgramRole, ProgramTrial};
use leno_checks::{Check, CheckResult, is_well};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde::Serialize;

use crate::backend::Backend;
use crate::error::{self, Error};
use crate::probe::{self, BackendReport, ProbeReport};

/// Where file systems are mounted for the trial. The mounts are in a mount namespace that ends with the trial. The
/// directory exists in every root, and the trial does not need its content.
const MOUNT_POINT: &str = "/dev";

/// The results.
#[derive(Clone, Debug, Serialize)]
pub struct Preflight {
    /// The kernel's release.
    pub kernel: String,
    /// Whether nothing that Leno needs is missing.
    pub ready: bool,
    /// Every finding.
    pub findings: Vec<CheckResult>,
    /// How many instructions the verifier has followed for each program, by the subject of the program's finding.
    /// The kernel reports this since Linux 5.16.
    pub verified_instructions: BTreeMap<String, u32>,
}

impl Preflight {
    /// Loads every program and attaches it, in a control group and a network namespace that end with this call.
    #[must_use]
    pub fn run() -> Self {
        let report = ProbeReport::probe();
        let mut findings = vec![kernel(&report), btf(&report), capabilities(&report)];
        let mut verified_instructions = BTreeMap::new();
        match in_namespaces(try_in_namespaces) {
            Ok(tried) => {
                findings.extend(tried.findings(&report));
                verified_instructions = tried.verified();
            }
            Err(error) => findings.push(program("programs").bad(error.chain())),
        }
        findings.extend([jit(), memory(), run_times(), cookies()]);
        findings.push(capture(&report));
        Self { kernel: report.kernel, ready: is_well(&findings), findings, verified_instructions }
    }
}

/// The results of the attempts inside the namespaces.
struct Trial {
    cgroup2: Result<(), Error>,
    bpffs: Result<(), Error>,
    hooks: Vec<ProgramTrial>,
    others: Vec<OtherPrograms>,
}

/// A control group without processes. Dropping this removes it.
struct EmptyGroup(PathBuf);

impl Drop for EmptyGroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove a control group");
        }
    }
}

/// Runs `work` on a thread with its own mount and network namespaces, so that the machine does not change.
fn in_namespaces<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Error::io("create namespaces to try programs in")(errno.into()))?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
            .map_err(|errno| Error::io("keep mounts from the machine")(errno.into()))?;
        work()
    };
    thread::scope(|scope| scope.spawn(inside).join().expect("the trial does not panic"))
}

fn try_in_namespaces() -> Result<Trial, Error> {
    let netns = Path::new("/proc/thread-self/ns/net");
    let netns = File::open(netns).map_err(Error::io("open a network namespace"))?;
    let bpffs = mount_here("bpf");
    let cgroup2 = mount_here("cgroup2");
    if cgroup2.is_err() {
        return Ok(Trial { cgroup2, bpffs, hooks: Vec::new(), others: Vec::new() });
    }
    let root = Path::new(MOUNT_POINT);
    let open = |path: &Path| {
        File::open(path).map_err(Error::io(format!("open the control group {}", path.display())))
    };
    let others = hooks::others(&open(root)?);
    let path = root.join(format!("leno-check-{}", std::process::id()));
    fs::create_dir(&path).map_err(Error::io("create a control group"))?;
    let group = EmptyGroup(path);
    let hooks = hooks::try_each(&open(&group.0)?, &netns)?;
    Ok(Trial { cgroup2, bpffs, hooks, others })
}

fn mount_here(kind: &str) -> Result<(), Error> {
    mount(Some(kind), MOUNT_POINT, Some(kind), MsFlags::empty(), None::<&str>)
        .map_err(|errno| Error::io(format!("mount a file system {kind}"))(errno.into()))
}

impl Trial {
    fn verified(&self) -> BTreeMap<String, u32> {
        let counts = self.hooks.iter().filter_map(|tried| {
            let count = *tried.outcome.as_ref().ok()?;
            (count > 0).then(|| (subject(tried), count))
        });
        counts.collect()
    }

    fn findings(&self, report: &ProbeReport) -> Vec<CheckResult> {
        let mut all = vec![
            mounted("cgroup2", &report.cgroup2, &self.cgroup2, report),
            mounted("bpffs", &report.bpffs, &self.bpffs, report),
        ];
        all.extend(self.hooks.iter().map(|tried| hook(tried, report)));
        let is_refused =
            |hook: &str| self.hooks.iter().any(|one| one.hook == hook && one.outcome.is_err());
        all.extend(self.others.iter().map(|others| shared(others, is_refused(others.hook))));
        all
    }
}

fn program(subject: impl Into<String>) -> Check {
    Check::new(subject, "Does the kernel load this program and attach it?")
}

/// The backend that is used if the kernel programs cannot be; `None` if none works.
fn stand_in(report: &ProbeReport) -> Option<Backend> {
    let usable = report.backends.iter().filter(|one| one.usable && one.backend != Backend::Ebpf);
    usable.map(|one| one.backend).next()
}

/// A finding about something that is missing for capture with eBPF.
fn lacks_capture(check: Check, why: &str, report: &ProbeReport) -> CheckResult {
    match stand_in(report) {
        Some(backend) => check.warning(format!("{why}; {backend} captures instead")),
        None => check.bad(format!("{why}; no other backend works either")),
    }
}

fn kernel(report: &ProbeReport) -> CheckResult {
    Check::new("kernel", "Which kernel runs here?").good(report.kernel.clone())
}

fn btf(report: &ProbeReport) -> CheckResult {
    let check = Check::new("BTF", "Does the kernel describe its types?");
    if report.btf {
        return check.good("the kernel describes its types");
    }
    let why = "the kernel does not describe its types (BTF), so no program can be adapted to it";
    lacks_capture(check, why, report).remedy("use one with CONFIG_DEBUG_INFO_BTF=y")
}

fn capabilities(report: &ProbeReport) -> CheckResult {
    let check =
        Check::new("capabilities", "Does this process have the capabilities that capture needs?");
    let lacking = report.capabilities.iter().filter(|one| !one.held).map(|one| one.name);
    let lacking: Vec<&str> = lacking.collect();
    if lacking.is_empty() {
        return check.good("all held");
    }
    check.bad(format!("{} not held", lacking.join(", "))).remedy("run as root")
}

fn file_system(kind: &str) -> Check {
    Check::new(kind, "Can this file system be mounted?")
}

fn mounted(
    kind: &str,
    place: &str,
    tried: &Result<(), Error>,
    report: &ProbeReport,
) -> CheckResult {
    match tried {
        Ok(()) => file_system(kind).good(place),
        Err(error) => lacks_capture(file_system(kind), &error.chain(), report),
    }
}

fn subject(tried: &ProgramTrial) -> String {
    format!("{} ({})", tried.hook, tried.program)
}

fn hook(tried: &ProgramTrial, report: &ProbeReport) -> CheckResult {
    let check = program(subject(tried));
    let by = tried.stand_in.map(|one| format!(" by {one}, in place of tcx")).unwrap_or_default();
    match &tried.outcome {
        Ok(0) => check.good(format!("loaded and attached{by}")),
        Ok(count) => check.good(format!("loaded and attached{by}; {count} instructions verified")),
        Err(error) => {
            let why = error.reason();
            match tried.part {
                ProgramRole::Capture => lacks_capture(check, &why, report),
                ProgramRole::Flows if tried.hook == "tc" => check.warning(format!(
                    "{why}; `leno.dev/flow-metrics: packets` counts sockets instead"
                )),
                ProgramRole::Flows if tried.hook.starts_with("tp_btf/") => {
                    check.warning(format!("{why}; dropped packets are not counted"))
                }
                ProgramRole::Flows => check.warning(format!("{why}; there are no flow metrics")),
            }
        }
    }
}

/// A finding about programs of other owners on a hook: whether they and Leno's programs both run.
fn shared(others: &OtherPrograms, is_refused: bool) -> CheckResult {
    let subject = format!("others at {}", others.hook);
    let check = Check::new(subject, "Do other programs share the hook with Leno's?");
    let names: Vec<String> =
        others.programs.iter().map(|(name, id)| format!("{name} (id {id})")).collect();
    let names = names.join(", ");
    let owner = "have their owner attach them with BPF_F_ALLOW_MULTI";
    match others.sharing {
        HookSharing::All => check.good(format!(
            "{names}: run after Leno's, which are on control groups below; of a captured connection they see \
             127.0.0.1 or ::1 as its destination"
        )),
        HookSharing::Overridden => {
            let text = "attached with BPF_F_ALLOW_OVERRIDE, so Leno's programs replace them for \
                        its workloads";
            let finding = check.warning(format!("{names}: {text}"));
            finding.remedy(format!("if they are needed, {owner}"))
        }
        HookSharing::Exclusive if is_refused => {
            let text = "attached exclusively, so the kernel rejects further programs";
            check.warning(format!("{names}: {text}")).remedy(owner)
        }
        HookSharing::Exclusive => {
            check.good(format!("{names}: do not prevent Leno's programs from being attached"))
        }
    }
}

fn jit() -> CheckResult {
    let check = Check::new("JIT", "Does the kernel compile programs?");
    let path = "/proc/sys/net/core/bpf_jit_enable";
    match fs::read_to_string(path).map(|text| text.trim().to_owned()) {
        Ok(value) if value == "0" => check
            .warning("the kernel interprets programs, which takes several times the CPU")
            .remedy("`sysctl net.core.bpf_jit_enable=1`"),
        Ok(_) => check.good("programs are compiled"),
        Err(error) => check.warning(format!("{path}: {error}")),
    }
}

/// The finding on whether the maps of one workload, and a table of flows of the usual size, can be created within
/// the limits of this process.
fn memory() -> CheckResult {
    let check = Check::new("memory", "Is there memory for the maps of a workload and of flows?");
    let text = probe::read("/proc/self/limits");
    let limit = text.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let limit = limit.and_then(|rest| rest.split_whitespace().next()).unwrap_or("unknown");
    let told = if limit == "unlimited" { limit.to_owned() } else { format!("{limit} bytes") };
    match leno_bpf::flows::try_memory() {
        Ok(()) => check.good(format!(
            "there is memory for the flow table in its default size (RLIMIT_MEMLOCK \
             {told})"
        )),
        Err(error) => {
            let why = error.reason();
            check.warning(format!("{why}; there are no flow metrics")).remedy(format!(
                "raise RLIMIT_MEMLOCK ({told}; applies before Linux 5.11) or the memory limit of \
                 the control group, or lower --flow-map-size"
            ))
        }
    }
}

fn run_times() -> CheckResult {
    let check = Check::new("run times", "Can the kernel measure what programs cost?");
    match leno_bpf::RunTimeCounting::start() {
        Ok(_counting) => check.good("the kernel can measure what programs cost"),
        Err(error) => {
            check.warning(format!("{}; the CPU time of programs is unknown", error::chain(&error)))
        }
    }
}

fn cookies() -> CheckResult {
    let check = Check::new("namespace cookies", "Do network namespaces have cookies?");
    match leno_bpf::has_netns_cookies() {
        true => check.good("network namespaces have them"),
        false => check.warning(
            "network namespaces have none (before Linux 5.14): a capture applies to processes of \
             its control group in every namespace, and flows distinguish namespaces by inode",
        ),
    }
}

fn capture(report: &ProbeReport) -> CheckResult {
    let check = Check::new("capture", "Can traffic be captured here?");
    match report.chosen {
        Some(Backend::Ebpf) => check.good(format!("ebpf: {}", report.why)),
        Some(backend) => check.warning(format!(
            "{backend}: {}; it cannot capture datagrams (leno.dev/udp)",
            report.why
        )),
        None => check.bad(format!("none: {}", report.why)),
    }
}

/// The finding on whether one backend works. Another backend may be used instead.
fn backend(one: &BackendReport) -> CheckResult {
    let check = Check::new(one.backend.to_string(), "Can this backend capture here?");
    match one.usable {
        true => check.good(format!("usable: {}", one.reason)),
        false => check.warning(format!("not usable: {}", one.reason)),
    }
}

impl ProbeReport {
    /// The findings that `leno check` prints about this report.
    #[must_use]
    pub fn findings(&self) -> Vec<CheckResult> {
        let mut all = vec![
            kernel(self),
            btf(self),
            file_system("cgroup2").good(&self.cgroup2),
            file_system("bpffs").good(&self.bpffs),
            capabilities(self),
        ];
        all.extend(self.backends.iter().map(backend));
        all.push(capture(self));
        all
    }
}
