//! Running without a control plane, from YAML documents.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use leno_discovery::Directory;
use leno_index::{Change, Index, Settings};
use leno_outbound::{Fixed as FixedDestination, TrafficTable};
use leno_resources::{
    Documents, Object, PolicyTarget, Proxy, ProxyIdentity, STDIN, TrafficPolicy, load,
};
use leno_tls::{Credentials, Keyring};
use leno_types::mesh::{Resolution, ServerPolicy, Subject};
use leno_types::traffic::{RateLimit, Scope, Traffic};
use leno_types::{InstanceName, MtlsMode, ServiceName};
use tokio::sync::watch;

use crate::config::Flags;
use crate::setup::{IdentityState, Setup, access_log, budget, drain_timeout};

/// Reads the documents and makes of them what a control plane would have said.
pub(crate) fn setup(flags: &Flags, file: &Path) -> anyhow::Result<Setup> {
    let documents = load(&[file]).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", lines.join("\n"))
    })?;
    let proxy = only_proxy(&documents, file)?;
    let Proxy { metadata, spec } = proxy;
    let instance = InstanceName::new(&metadata.namespace, &metadata.name)?;
    let keyring = Keyring::new();
    let mut identity = IdentityState::default();
    if let Some(files) = &spec.identity {
        let credentials = credentials(files, file)?;
        identity = IdentityState::of(&credentials);
        keyring.rotate(credentials)?;
    }
    let default_mode =
        if spec.identity.is_some() { MtlsMode::Permissive } else { MtlsMode::Disabled };
    let mtls = spec.mtls.unwrap_or(default_mode);
    if mtls != MtlsMode::Disabled && spec.identity.is_none() {
        bail!("mtls: {mtls} needs spec.identity: give certificate, key and roots, or say disabled");
    }
    let index = index(&documents);
    let fixed = match spec.outbound.as_ref().and_then(|outbound| outbound.service.as_ref()) {
        None => None,
        Some(wanted) => {
            let subject = Subject::Service(wanted.name.clone());
            let Resolution::Service(service) = index.resolve(&subject, &instance.namespace) else {
                bail!("spec.outbound.service: there is no Service {}", wanted.name);
            };
            if service.port(wanted.port).is_none() {
                bail!("spec.outbound.service: {} has no port {}", wanted.name, wanted.port);
            }
            let resolution = watch::Sender::new(Resolution::Service(service)).subscribe();
            Some(FixedDestination { resolution, port: wanted.port })
        }
    };
    let traffic = Arc::new(traffic(&documents, &index)?);
    let rate_limits = rate_limits(&documents, &index, &instance)?.into();
    let policy = ServerPolicy { workload: instance.clone(), mtls, ports: Vec::new() };
    let client = Arc::clone(&instance.namespace);
    let directory =
        Directory::fixed(move |subject| index.resolve(subject, &client)).with_server_policy(policy);
    Ok(Setup {
        instance,
        is_static: true,
        workers: u16::try_from(spec.workers).context("spec.workers")?,
        admin: spec.admin,
        outbound: spec.outbound.iter().map(|outbound| outbound.listen).collect(),
        inbound: spec.inbound.iter().map(|inbound| inbound.listen).collect(),
        application: spec.inbound.as_ref().and_then(|inbound| inbound.application),
        fixed,
        policy: directory.server_policy(),
        directory,
        keyring,
        identity: watch::Sender::new(identity).subscribe(),
        drain_timeout: drain_timeout(flags),
        access_log: access_log(flags)?,
        budget: budget(flags),
        traffic,
        rate_limits,
    })
}

fn only_proxy<'a>(documents: &'a Documents, file: &Path) -> anyhow::Result<&'a Proxy> {
    let mut proxies = documents.objects.iter().filter_map(|located| match &located.value {
        Object::Proxy(proxy) => Some(&**proxy),
        _ => None,
    });
    match (proxies.next(), proxies.next()) {
        (Some(proxy), None) => Ok(proxy),
        (None, _) => bail!("{}: has no document of kind Proxy (leno.dev/v1alpha1)", file.display()),
        (Some(_), Some(_)) => bail!("{}: has more than one Proxy", file.display()),
    }
}

fn index(documents: &Documents) -> Index {
    let mut index = Index::new(Settings::default());
    for located in &documents.objects {
        index.apply(Change::Upsert(located.value.clone()));
    }
    index
}

/// What the traffic policies say about services.
fn traffic(documents: &Documents, index: &Index) -> anyhow::Result<TrafficTable> {
    let mut table: HashMap<ServiceName, Vec<Arc<Traffic>>> = HashMap::new();
    for located in &documents.objects {
        let Object::TrafficPolicy(policy) = &located.value else { continue };
        if let Some(part) = not_done(policy) {
            bail!("{}:{}: {part}: no proxy does that yet, remove it", located.file, located.place);
        }
        for target in &policy.spec.target_refs {
            let (name, port) = service_of(target, &policy.metadata.namespace, index)
                .with_context(|| format!("{}:{}", located.file, located.place))?;
            let scope = port.map_or(Scope::Service, Scope::Port);
            table.entry(name).or_default().push(Arc::new(policy.traffic(scope)));
        }
    }
    Ok(table.into_iter().map(|(name, policies)| (name, policies.into())).collect())
}

/// A part of a policy that would be without effect.
fn not_done(policy: &TrafficPolicy) -> Option<&'static str> {
    let spec = &policy.spec;
    let of_route = spec.target_refs.iter().any(|target| target.kind != "Service");
    let balancing = spec.balancing.as_ref();
    let limits = spec.limits.as_ref();
    [
        (of_route, "spec.targetRefs: a target that is no Service"),
        (spec.hedging.is_some(), "spec.hedging"),
        (limits.is_some_and(|limits| limits.connections.is_some()), "spec.limits.connections"),
        (balancing.is_some_and(|of| of.overflow.is_some()), "spec.balancing.overflow"),
    ]
    .into_iter()
    .find_map(|(is_there, part)| is_there.then_some(part))
}

/// The rate limits of the instance that the proxy serves: those of its Workload, and of Services
/// that it is an endpoint of.
fn rate_limits(
    documents: &Documents,
    index: &Index,
    instance: &InstanceName,
) -> anyhow::Result<Vec<RateLimit>> {
    let mut limits = Vec::new();
    for located in &documents.objects {
        let Object::RateLimitPolicy(policy) = &located.value else { continue };
        let namespace = &policy.metadata.namespace;
        for target in &policy.spec.target_refs {
            if target.kind == "Workload" {
                if **namespace == *instance.namespace && is_instance_of(instance, &target.name) {
                    limits.extend(policy.limits(None));
                }
                continue;
            }
            let (name, port) = service_of(target, namespace, index)
                .with_context(|| format!("{}:{}", located.file, located.place))?;
            let service = index.service(&name).context("it was found just now")?;
            let ports = service.ports.iter().filter(|of| port.is_none_or(|port| of.port == port));
            let endpoints = ports.flat_map(|port| port.endpoints.iter());
            let mut own: Vec<u16> = endpoints
                .filter(|endpoint| endpoint.workload.as_ref() == Some(instance))
                .map(|endpoint| endpoint.port)
                .collect();
            own.sort_unstable();
            own.dedup();
            limits.extend(own.into_iter().flat_map(|port| policy.limits(Some(port))));
        }
    }
    if limits.iter().any(|limit| limit.is_global) {
        bail!("a rate limit of scope Global needs a control plane, which --static has none of");
    }
    Ok(limits)
}

/// Whether `<workload>-<number>`, or the workload itself.
fn is_instance_of(instance: &InstanceName, workload: &str) -> bool {
    let number = instance.name.strip_prefix(workload);
    number.is_some_and(|rest| match rest.strip_prefix('-') {
        Some(number) => number.parse::<u32>().is_ok(),
        None => rest.is_empty(),
    })
}

/// The service that a policy is for, and its port where it names one.
fn service_of(
    target: &PolicyTarget,
    namespace: &str,
    index: &Index,
) -> anyhow::Result<(ServiceName, Option<u16>)> {
    let name = ServiceName::new(namespace, &target.name)?;
    let Some(service) = index.service(&name) else {
        bail!("targetRefs: there is no Service {name}");
    };
    let Some(section) = &target.section_name else { return Ok((name, None)) };
    let is_it = |port: &&leno_types::mesh::ServicePort| {
        *port.name == **section || section.parse() == Ok(port.port)
    };
    let port = service.ports.iter().find(is_it).map(|port| port.port);
    let port = port.with_context(|| format!("targetRefs: {name} has no port {section}"))?;
    Ok((name, Some(port)))
}

/// The files are relative to the folder of the document that names them.
fn credentials(files: &ProxyIdentity, document: &Path) -> anyhow::Result<Credentials> {
    let folder = match document.parent() {
        Some(parent) if document != Path::new(STDIN) => parent,
        _ => Path::new("."),
    };
    let read = |path: &PathBuf| {
        let path = folder.join(path);
        std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
    };
    let (chain, key, roots) = (read(&files.certificate)?, read(&files.key)?, read(&files.roots)?);
    Ok(Credentials::from_pem(&chain, &key, &roots)?)
}
