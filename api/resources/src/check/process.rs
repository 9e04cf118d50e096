//! Checks how the process of a `Workload` is run.

use std::path::{Component, Path};

use super::own::words;
use super::{Check, Cursor, Name, did_you_mean};
use crate::cron::Cron;
use crate::process::{MAX_SECONDS, MAX_THRESHOLD, PortRef, Probe, Scheme, Volume};
use crate::workload::WorkloadSpec;

/// The largest number of dependencies, of init commands, and of volumes that a workload may have.
const MAX_PARTS: usize = 50;
/// The longest grace period, in seconds. It is the same as for `leno up --grace`.
const MAX_GRACE_SECONDS: u64 = 86_400;
/// The longest delay that a scheduled run may have, in seconds: a year.
const MAX_LATE_SECONDS: u32 = 31_536_000;
/// Paths at which Leno provides files, or that programs need to run at all.
const KEPT: [&str; 5] = ["/proc", "/sys", "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"];

pub(super) fn spec(check: &mut Check<'_>, at: &Cursor<'_>, spec: &WorkloadSpec) {
    for (field, number) in [
        ("init", spec.init.len()),
        ("volumes", spec.volumes.len()),
        ("dependsOn", spec.depends_on.len()),
    ] {
        if number > MAX_PARTS {
            check.fail(&at.key(field), format!("{number} are more than {MAX_PARTS}"));
        }
    }
    for (index, init) in spec.init.iter().enumerate() {
        words(check, &at.key("init").index(index).key("command"), &init.command);
    }
    for (index, one) in spec.volumes.iter().enumerate() {
        let at = at.key("volumes").index(index);
        volume(check, &at, one);
        // Paths are compared by their components, so a slash at the end makes no difference.
        let onto = |volume: &Volume| Path::new(&volume.mount_path).to_owned();
        if spec.volumes[..index].iter().any(|earlier| onto(earlier) == onto(one)) {
            let reason = format!("{:?} is used by an earlier volume", one.mount_path);
            check.fail(&at.key("mountPath"), reason);
        }
    }
    for name in spec.depends_on.keys() {
        let at = at.key("dependsOn").key(name);
        for part in name.splitn(2, '/') {
            check.name(&at, part, Name::Label);
        }
    }
    if let Some(grace) = spec.stop_grace_period
        && grace.0.as_secs() > MAX_GRACE_SECONDS
    {
        check.fail(&at.key("stopGracePeriod"), format!("{grace} is more than 24h"));
    }
    if let Some(root) = &spec.root {
        own_root(check, at, root, spec);
    }
    if let Some(cron) = &spec.cron {
        runs(check, at, cron, spec);
    }
    if let Some(readiness) = &spec.readiness {
        probe(check, &at.key("readiness"), readiness, spec);
    }
    if let Some(liveness) = &spec.liveness {
        probe(check, &at.key("liveness"), liveness, spec);
        if liveness.success_threshold != 1 {
            let reason = "is 1 for liveness: one success shows that the process lives";
            check.fail(&at.key("liveness").key("successThreshold"), reason);
        }
    }
}

fn own_root(check: &mut Check<'_>, at: &Cursor<'_>, root: &str, spec: &WorkloadSpec) {
    if root.is_empty() || root.contains('\0') {
        check.fail(&at.key("root"), "is not the name of a directory");
    }
    if let Some(directory) = spec.working_dir.as_deref().filter(|one| !one.starts_with('/')) {
        let reason =
            format!("{directory:?} is not in the root: write an absolute path, such as /srv");
        check.fail(&at.key("workingDir"), reason);
    }
}

fn runs(check: &mut Check<'_>, at: &Cursor<'_>, cron: &Cron, spec: &WorkloadSpec) {
    for (field, given) in [
        ("ports", !spec.ports.is_empty()),
        ("readiness", spec.readiness.is_some()),
        ("liveness", spec.liveness.is_some()),
    ] {
        if given {
            let reason = "a workload that runs on a schedule takes no traffic: remove it, or cron";
            check.fail(&at.key(field), reason);
        }
    }
    let at = at.key("cron");
    if let Some(seconds) = cron.starting_deadline_seconds
        && !(1..=MAX_LATE_SECONDS).contains(&seconds)
    {
        let reason = format!("{seconds} is not from 1 to {MAX_LATE_SECONDS}");
        check.fail(&at.key("startingDeadlineSeconds"), reason);
    }
    if let Some(zone) = &cron.time_zone {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-');
        let sound = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphabetic()) && part.chars().all(plain)
        };
        if !zone.split('/').all(sound) {
            let reason =
                format!("{zone:?} is not the name of a time zone: write UTC or Europe/Berlin");
            check.fail(&at.key("timeZone"), reason);
        }
    }
}

fn volume(check: &mut Check<'_>, at: &Cursor<'_>, volume: &Volume) {
    let from = at.key("path");
    if volume.path.is_empty() || volume.path.contains('\0') {
        check.fail(&from, "is not the name of a file or directory");
    }
    let onto = at.key("mountPath");
    let path = Path::new(&volume.mount_path);
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || !path.components().all(plain) || volume.mount_path.contains('\0') {
        let reason = format!("{:?} is not an absolute path without ..", volume.mount_path);
        return check.fail(&onto, reason);
    }
    if let Some(kept) = KEPT.iter().find(|kept| Path::new(kept).starts_with(path)) {
        check.fail(&onto, format!("would hide {kept}: mount it below, or elsewhere"));
    }
}

fn probe(check: &mut Check<'_>, at: &Cursor<'_>, probe: &Probe, spec: &WorkloadSpec) {
    let kinds = [
        probe.http_get.is_some(),
        probe.grpc.is_some(),
        probe.tcp_socket.is_some(),
        probe.exec.is_some(),
    ];
    match kinds.iter().filter(|given| **given).count() {
        1 => {}
        0 => check.fail(at, "probes nothing: write httpGet, grpc, tcpSocket or exec"),
        _ => check.fail(at, "probes in several ways: keep one of httpGet, grpc, tcpSocket, exec"),
    }
    if let Some(get) = &probe.http_get {
        let at = at.key("httpGet");
        port(check, &at.key("port"), &get.port, spec);
        let printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !get.path.starts_with('/') || !printable(&get.path) {
            let reason = format!("{:?} is not a path: write /ready", get.path);
            check.fail(&at.key("path"), reason);
        }
        if get.scheme == Some(Scheme::Https) {
            let reason = "https is not probed: use exec with a command such as curl -k";
            check.fail(&at.key("scheme"), reason);
        }
        for (index, header) in get.http_headers.iter().enumerate() {
            let at = at.key("httpHeaders").index(index);
            if header.name.is_empty() || !printable(&header.name) || header.name.contains(':') {
                check.fail(&at.key("name"), format!("{:?} is not a header's name", header.name));
            }
            if header.value.contains(['\r', '\n', '\0']) {
                check.fail(&at.key("value"), "has a line break or a NUL byte");
            }
        }
    }
    if let Some(grpc) = &probe.grpc {
        port(check, &at.key("grpc").key("port"), &grpc.port, spec);
    }
    if let Some(socket) = &probe.tcp_socket {
        port(check, &at.key("tcpSocket").key("port"), &socket.port, spec);
    }
    if let Some(exec) = &probe.exec {
        words(check, &at.key("exec").key("command"), &exec.command);
    }
    for (field, value, bounds) in [
        ("initialDelaySeconds", probe.initial_delay_seconds, (0, MAX_SECONDS)),
        ("periodSeconds", probe.period_seconds, (1, MAX_SECONDS)),
        ("timeoutSeconds", probe.timeout_seconds, (1, MAX_SECONDS)),
        ("successThreshold", probe.success_threshold, (1, MAX_THRESHOLD)),
        ("failureThreshold", probe.failure_threshold, (1, MAX_THRESHOLD)),
    ] {
        let (least, most) = bounds;
        if !(least..=most).contains(&value) {
            check.fail(&at.key(field), format!("{value} is not from {least} to {most}"));
        }
    }
}

fn port(check: &mut Check<'_>, at: &Cursor<'_>, port: &PortRef, spec: &WorkloadSpec) {
    let PortRef::Name(name) = port else { return };
    let names = || spec.ports.iter().map(|port| port.name.as_str()).filter(|name| !name.is_empty());
    if names().any(|one| one == name) {
        return;
    }
    let meant = did_you_mean(name, names());
    check.fail(at, format!("{name:?} is not the name of a port of this workload{meant}"));
}
