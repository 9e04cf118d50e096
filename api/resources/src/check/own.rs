//! Checks of `Workload` and `Proxy`.

use std::collections::BTreeSet;

use leno_types::{MtlsMode, Protocol, ports};

use super::{Check, Cursor, Name};
use crate::exemption::PodExemption;
use crate::metadata::{DEFAULT_AUTHORIZATION_ANNOTATION, KEYS_FROM_ANNOTATION, Metadata};
use crate::proxy::Proxy;
use crate::workload::{MAX_PORTS, MAX_REPLICAS, Workload};

/// The largest number of worker threads of one proxy. One proxy cannot use more cores.
const MAX_WORKERS: u32 = 256;

pub(super) fn pod_exemption(check: &mut Check<'_>, at: &Cursor<'_>, object: &PodExemption) {
    metadata(check, at, &object.metadata);
    let at = at.key("spec").key("settings");
    let settings = &object.spec.settings;
    if settings.is_empty() {
        check.fail(&at, "is empty: name inject, capture, mtls or egress");
    }
    for (index, setting) in settings.iter().enumerate() {
        if settings[..index].contains(setting) {
            check.fail(&at.index(index), "is the same as an earlier one");
        }
    }
}

pub(super) fn workload(check: &mut Check<'_>, at: &Cursor<'_>, workload: &Workload) {
    metadata(check, at, &workload.metadata);
    let spec = at.key("spec");
    let Workload { spec: wanted, .. } = workload;
    check.name(&spec.key("serviceAccount"), &wanted.service_account, Name::Subdomain);
    if wanted.replicas > MAX_REPLICAS {
        let reason = format!("{} is not from 0 to {MAX_REPLICAS}", wanted.replicas);
        check.fail(&spec.key("replicas"), reason);
    } else if wanted.replicas > 0 {
        let last = workload.instance_name(wanted.replicas - 1);
        if leno_types::check_label("workload name", &last).is_err()
            && leno_types::check_label("name", &workload.metadata.name).is_ok()
        {
            let reason = format!("too long: instances are named {last}, of at most 63 bytes");
            check.fail(&at.key("metadata").key("name"), reason);
        }
    }
    command(check, &spec, workload);
    ports(check, &spec.key("ports"), workload);
    super::process::spec(check, &spec, wanted);
    instances(check, &at.key("status").key("instances"), workload);
}

fn command(check: &mut Check<'_>, spec: &Cursor<'_>, workload: &Workload) {
    words(check, &spec.key("command"), &workload.spec.command);
    for (name, value) in &workload.spec.env {
        let at = spec.key("env").key(name);
        if name.is_empty() || name.contains(['=', '\0']) {
            check.fail(&at, format!("{name:?} is not the name of a variable"));
        }
        if value.contains('\0') {
            check.fail(&at, "has a NUL byte");
        }
    }
    for (index, file) in workload.spec.env_file.iter().enumerate() {
        if file.is_empty() || file.contains('\0') {
            check.fail(&spec.key("envFile").index(index), "is not the name of a file");
        }
    }
    for (index, pattern) in workload.spec.inherit_env.iter().enumerate() {
        let name = pattern.strip_suffix('*').unwrap_or(pattern);
        if pattern.is_empty() || name.contains(['*', '=', '\0']) {
            let reason =
                format!("{pattern:?} is not a variable: use a name, a beginning with * or * alone");
            check.fail(&spec.key("inheritEnv").index(index), reason);
        }
    }
    if workload.spec.working_dir.as_deref().is_some_and(|dir| dir.is_empty() || dir.contains('\0'))
    {
        check.fail(&spec.key("workingDir"), "is not a directory's name");
    }
}

/// A program and its arguments.
pub(super) fn words(check: &mut Check<'_>, at: &Cursor<'_>, command: &[String]) {
    match command.first() {
        None => check.fail(at, "is empty: name the program to run"),
        Some(program) if program.is_empty() => {
            check.fail(&at.index(0), "is empty: name the program to run");
        }
        Some(_) => {}
    }
    for (index, word) in command.iter().enumerate() {
        if word.contains('\0') {
            check.fail(&at.index(index), "has a NUL byte");
        }
    }
}

fn ports(check: &mut Check<'_>, at: &Cursor<'_>, workload: &Workload) {
    let ports = &workload.spec.ports;
    if ports.len() > MAX_PORTS {
        check.fail(at, format!("{} are more than {MAX_PORTS}", ports.len()));
    }
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let at = at.index(index);
        check.port_name(&at.key("name"), &port.name, &mut names, ports.len());
        if !numbers.insert(port.port) {
            let reason = format!("{} is used by an earlier port", port.port);
            check.fail(&at.key("port"), reason);
        }
        let protocol = Protocol::from_app_protocol(port.app_protocol.as_deref());
        if let Some(what) = use_of_proxy(port.port, protocol) {
            let reason = format!("{} is a port of the workload's own proxy: {what}", port.port);
            check.fail(&at.key("port"), reason);
        }
    }
}

/// The use of a port by the workload's proxy, if the application cannot have that port. The application may have the
/// port of HBONE; its proxy then does not use it.
fn use_of_proxy(port: u16, protocol: Protocol) -> Option<&'static str> {
    match port {
        ports::OUTBOUND => Some("connections of the application come there"),
        ports::INBOUND => Some("connections to the application come there"),
        ports::ADMIN => Some("its metrics and its state are there"),
        ports::DATAGRAMS if protocol == Protocol::Udp => {
            Some("datagrams of other proxies come there")
        }
        _ => None,
    }
}

fn instances(check: &mut Check<'_>, at: &Cursor<'_>, workload: &Workload) {
    let Some(status) = &workload.status else {
        return;
    };
    let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    for (index, instance) in status.instances.iter().enumerate() {
        let at = at.index(index);
        check.label(&at.key("name"), "workload name", &instance.name);
        if !names.insert(&instance.name) {
            let reason = format!("{:?} is used by an earlier instance", instance.name);
            check.fail(&at.key("name"), reason);
        }
        for (index, address) in instance.addresses.iter().enumerate() {
            let at = at.key("addresses").index(index);
            check.address(&at, &address.to_string());
            if !addresses.insert(address) {
                check.fail(&at, format!("{address} appears twice"));
            }
        }
    }
}

pub(super) fn proxy(check: &mut Check<'_>, at: &Cursor<'_>, proxy: &Proxy) {
    metadata(check, at, &proxy.metadata);
    let spec = at.key("spec");
    let wanted = &proxy.spec;
    if !(1..=MAX_WORKERS).contains(&wanted.workers) {
        let reason = format!("{} is not from 1 to {MAX_WORKERS}", wanted.workers);
        check.fail(&spec.key("workers"), reason);
    }
    if wanted.outbound.is_none() && wanted.inbound.is_none() {
        check.fail(&spec, "has neither outbound nor inbound: the proxy would do nothing");
    }
    if wanted.identity.is_none() && matches!(wanted.mtls, Some(MtlsMode::Strict)) {
        check.fail(&spec.key("mtls"), "strict needs an identity");
    }
}

fn metadata(check: &mut Check<'_>, at: &Cursor<'_>, metadata: &Metadata) {
    let at = at.key("metadata");
    check.label(&at.key("name"), "name", &metadata.name);
    check.label(&at.key("namespace"), "namespace", &metadata.namespace);
    check.own_settings(&at.key("annotations"), &metadata.annotations);
    check.own_settings(&at.key("labels"), &metadata.labels);
    let annotations = at.key("annotations");
    if metadata.annotations.contains_key(DEFAULT_AUTHORIZATION_ANNOTATION) {
        let reason = "is for a Namespace: write an AuthorizationPolicy for a workload of its own";
        check.fail(&annotations.key(DEFAULT_AUTHORIZATION_ANNOTATION), reason);
    }
    if metadata.annotations.contains_key(KEYS_FROM_ANNOTATION) {
        let reason = "is for the Namespace of the control plane";
        check.fail(&annotations.key(KEYS_FROM_ANNOTATION), reason);
    }
}
