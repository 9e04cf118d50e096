//! Setup without a control plane, from YAML documents.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use leno_discovery::Directory;
use leno_index::{Index, MeshSettings, ObjectChange};
use leno_outbound::Fixed as FixedDestination;
use leno_resources::{
    Documents, LimitScope, Object, Proxy, ProxyIdentity, RateLimitSpec, STDIN, egress, load,
};
use leno_tls::{Credentials, Keyring};
use leno_types::mesh::{Resolution, ServerPolicy, Subject};
use leno_types::{Egress, InstanceName, MtlsMode, Removal, ServiceName};
use tokio::sync::watch;

use crate::config::Flags;
use crate::setup::{IdentityState, Setup};

/// Reads the documents, and computes from them what a control plane would send.
pub(crate) fn setup(flags: &Flags, file: &Path) -> anyhow::Result<Setup> {
    let documents = documents(file)?;
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
    let mtls = mtls(proxy)?;
    let index = index(&documents);
    let fixed = destination(proxy, &index, &instance)?;
    if let Some(inbound) = &spec.inbound {
        check_application(inbound.application, inbound.listen)?;
    }
    check_targets(&documents, &index)?;
    let policy = ServerPolicy {
        workload: instance.clone(),
        mtls,
        ports: Vec::new(),
        limits: index.rate_limits(&instance),
        egress: egress_of(&documents, proxy),
        place: leno_resources::place(&metadata.labels),
        ending: false,
        removal: Removal::None,
        authorization: index.authorization(&instance, &metadata.labels),
    };
    let client = Arc::clone(&instance.namespace);
    let directory =
        Directory::fixed(move |subject| index.resolve(subject, &client)).with_server_policy(policy);
    let identity = watch::Sender::new(identity).subscribe();
    Ok(Setup {
        is_static: true,
        workers: u16::try_from(spec.workers).context("spec.workers")?,
        admin: spec.admin,
        outbound: spec.outbound.iter().map(|outbound| outbound.listen).collect(),
        inbound: spec.inbound.iter().map(|inbound| inbound.listen).collect(),
        application: spec.inbound.as_ref().and_then(|inbound| inbound.application),
        fixed,
        is_waypoint: false,
        ..Setup::new(flags, instance, directory, (keyring, identity))?
    })
}

/// The mTLS mode of the document. The default is permissive if the document has an identity, and otherwise disabled.
/// Fails if the mode needs an identity and there is none.
fn mtls(Proxy { spec, .. }: &Proxy) -> anyhow::Result<MtlsMode> {
    let default_mode =
        if spec.identity.is_some() { MtlsMode::Permissive } else { MtlsMode::Disabled };
    let mtls = spec.mtls.unwrap_or(default_mode);
    if mtls != MtlsMode::Disabled && spec.identity.is_none() {
        bail!(
            "mtls: {mtls} needs an identity: set spec.identity with certificate, key and roots, \
             or set mtls: disabled"
        );
    }
    Ok(mtls)
}

fn check_application(application: Option<SocketAddr>, listen: SocketAddr) -> anyhow::Result<()> {
    if application == Some(listen) {
        bail!(
            "spec.inbound: application {listen} is an address on which the proxy itself listens: \
             write the application's address"
        );
    }
    Ok(())
}

fn documents(file: &Path) -> anyhow::Result<Documents> {
    load(&[file]).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", lines.join("\n"))
    })
}

/// The fixed destination of all connections of the application, if the document has one.
fn destination(
    proxy: &Proxy,
    index: &Index,
    instance: &InstanceName,
) -> anyhow::Result<Option<FixedDestination>> {
    let outbound = proxy.spec.outbound.as_ref();
    let Some(wanted) = outbound.and_then(|outbound| outbound.service.as_ref()) else {
        return Ok(None);
    };
    let subject = Subject::Service(wanted.name.clone());
    let Resolution::Service(service) = index.resolve(&subject, &instance.namespace) else {
        bail!("spec.outbound.service: there is no Service {}", wanted.name);
    };
    if service.port(wanted.port).is_none() {
        bail!("spec.outbound.service: {} has no port {}", wanted.name, wanted.port);
    }
    let resolution = watch::Sender::new(Resolution::Service(service)).subscribe();
    Ok(Some(FixedDestination { resolution, port: wanted.port }))
}

fn only_proxy<'a>(documents: &'a Documents, file: &Path) -> anyhow::Result<&'a Proxy> {
    let mut proxies = documents.objects.iter().filter_map(|located| match &located.value {
        Object::Proxy(proxy) => Some(&**proxy),
        _ => None,
    });
    match (proxies.next(), proxies.next()) {
        (Some(proxy), None) => Ok(proxy),
        (None, _) => {
            bail!("{}: has no document of kind Proxy (leno.dev/v1alpha1): add one", file.display())
        }
        (Some(_), Some(_)) => {
            bail!("{}: has more than one Proxy document: keep one", file.display())
        }
    }
}

/// The egress setting in the proxy's annotation, or else in that of its namespace.
fn egress_of(documents: &Documents, proxy: &Proxy) -> Egress {
    let of_namespace = || {
        documents.objects.iter().find_map(|located| match &located.value {
            Object::Namespace(namespace) => {
                let metadata = &namespace.metadata;
                let own = metadata.name.as_deref() == Some(&proxy.metadata.namespace);
                egress(metadata.annotations.as_ref().filter(|_| own)?)
            }
            _ => None,
        })
    };
    egress(&proxy.metadata.annotations).or_else(of_namespace).unwrap_or_default()
}

fn index(documents: &Documents) -> Index {
    let mut index = Index::new(MeshSettings::default());
    for located in &documents.objects {
        index.apply(ObjectChange::Upsert(located.value.clone()));
    }
    index
}

/// Checks that the Services that policies name as targets exist, with their ports, because without a control plane
/// they cannot appear later. Also rejects rate limits with `scope: Global`, which need a control plane.
fn check_targets(documents: &Documents, index: &Index) -> anyhow::Result<()> {
    for located in &documents.objects {
        let (namespace, targets) = match &located.value {
            Object::TrafficPolicy(of) => (&of.metadata.namespace, &of.spec.target_refs),
            Object::RateLimitPolicy(of) => {
                let shared = |limit: &RateLimitSpec| limit.scope == Some(LimitScope::Global);
                if of.spec.limits.iter().any(shared) {
                    let (file, place) = (&located.file, located.place);
                    bail!("{file}:{place}: scope: Global needs a control plane: remove it");
                }
                (&of.metadata.namespace, &of.spec.target_refs)
            }
            _ => continue,
        };
        for target in targets.iter().filter(|target| target.kind == "Service") {
            let name = ServiceName::new(namespace, &target.name)?;
            let place = || format!("{}:{}: targetRefs", located.file, located.place);
            let Some(service) = index.service(&name) else {
                bail!("{}: there is no Service {name}", place());
            };
            let Some(section) = &target.section_name else { continue };
            let mut ports = service.ports.iter();
            if !ports.any(|port| *port.name == **section || section.parse() == Ok(port.port)) {
                bail!("{}: {name} has no port {section}", place());
            }
        }
    }
    Ok(())
}

/// Reads the credentials. Paths are relative to the folder of the document.
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
