//! Encodes resources. Each version is encoded once, and all streams share the bytes.
//!
//! A proxy only gets those parts of a service that differ from the version that it has: routes and policy as a
//! whole, and endpoints as changes to that version (`services`).
//!
//! Each resource has a separate lock for its encodings. So streams that need different resources never wait for
//! each other. Streams that need the same one wait until the first of them has encoded it.

mod services;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest::{SHA256, digest};
use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, DefaultAuthorization, PermissionRule,
};
use leno_types::mesh::{ServerPolicy, Service, Workload};
use leno_types::traffic::PolicySource;
use leno_wire::{encode, names, proto};

use crate::metrics::Metrics;

use services::ServiceVersions;

/// The number of parts of the table, each with a separate lock. It exceeds the number of threads.
const SHARDS: usize = 16;
/// The policy that denials name if the policies of a workload cannot be applied, because there are too many or because
/// they are too large.
const TOO_MANY_POLICIES: &str = "too-many-policies";
/// Largest resource, in bytes. The rest of a message is for other fields, such as the names of removed resources.
pub(crate) const MAX_RESOURCE: usize = leno_wire::MAX_MESSAGE - (4 << 20);
/// How many bytes of the SHA-256 digest a version has. With 72 bits, different contents practically never have the same
/// version.
const VERSION_BYTES: usize = 9;

/// The encodings of all resources that streams have subscribed to, by name.
#[derive(Debug)]
pub(crate) struct Encodings {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    metrics: Arc<Metrics>,
}

type Shard = HashMap<Arc<str>, Arc<Mutex<Versions>>>;

/// The value from which a resource is encoded. The index never changes a value in place, so the same `Arc` always
/// has the same encoding.
#[derive(Clone, Debug)]
pub(crate) enum ResourceValue {
    Service(Arc<Service>),
    Workload(Arc<Workload>),
    Policy(Arc<ServerPolicy>),
}

/// A resource to send. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub(crate) struct EncodedResource {
    /// The version. The same content has the same version on every control plane, because a proxy that reconnects
    /// reports its versions to another one.
    pub(crate) version: Arc<str>,
    /// The encoded message `Resource`.
    pub(crate) bytes: leno_wire::Bytes,
}

/// The encodings of one resource: of a service, those of its parts; of anything else, that of the last value.
#[derive(Debug)]
enum Versions {
    Service(ServiceVersions),
    Other(Option<(ResourceValue, EncodedResource)>),
}

impl Encodings {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { shards: Default::default(), hasher: RandomState::new(), metrics }
    }

    /// The resource that updates a proxy to `value` from the version that it has, if any. `None` if it has `value`
    /// already.
    pub(crate) fn changed(
        &self,
        name: &Arc<str>,
        value: &ResourceValue,
        held: Option<&str>,
    ) -> Option<EncodedResource> {
        let versions = self.versions(name, value);
        let mut versions = versions.lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut *versions, value) {
            (Versions::Service(versions), ResourceValue::Service(service)) => {
                versions.changed((name, service), held, &self.metrics)
            }
            (Versions::Other(Some((known, encoded))), value) if known.is(value) => {
                (held != Some(&*encoded.version)).then(|| encoded.clone())
            }
            (versions, value) => {
                let encoded = EncodedResource::new(name, value);
                self.metrics.encodings.increment();
                *versions = Versions::Other(Some((value.clone(), encoded.clone())));
                (held != Some(&*encoded.version)).then_some(encoded)
            }
        }
    }

    /// Drops the encodings of a resource, because no stream needs them now.
    pub(crate) fn forget(&self, name: &str) {
        for name in [name, &of_waypoint(name)] {
            if self.shard(name).remove(name).is_some() {
                self.metrics.cached_resources.decrement();
            }
        }
    }

    fn versions(&self, name: &Arc<str>, value: &ResourceValue) -> Arc<Mutex<Versions>> {
        let name = match value {
            // A waypoint gets other endpoints of the service than clients. If both shared one log of endpoints,
            // each set would look like a change of the other.
            ResourceValue::Service(service) if service.waypoint.is_some() => {
                &of_waypoint(name).into()
            }
            _ => name,
        };
        let mut shard = self.shard(name);
        if let Some(versions) = shard.get(name) {
            return Arc::clone(versions);
        }
        self.metrics.cached_resources.increment();
        let versions = match value {
            ResourceValue::Service(_) => Versions::Service(ServiceVersions::default()),
            ResourceValue::Workload(_) | ResourceValue::Policy(_) => Versions::Other(None),
        };
        Arc::clone(shard.entry(Arc::clone(name)).or_insert_with(|| Arc::new(Mutex::new(versions))))
    }

    fn shard(&self, name: &str) -> MutexGuard<'_, Shard> {
        let shard = self.hasher.hash_one(name) as usize % SHARDS;
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResourceValue {
    /// The name of its resource.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Service(service) => names::of_service(&service.name),
            Self::Workload(workload) => names::of_workload(&workload.name),
            Self::Policy(policy) => policy.workload.to_string(),
        }
    }

    /// Whether both are the same value, not just equal ones.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Service(a), Self::Service(b)) => Arc::ptr_eq(a, b),
            (Self::Workload(a), Self::Workload(b)) => Arc::ptr_eq(a, b),
            (Self::Policy(a), Self::Policy(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl EncodedResource {
    fn new(name: &str, value: &ResourceValue) -> Self {
        let (any, ips) = match value {
            ResourceValue::Service(service) => (encode::service(service), service.vips.as_slice()),
            ResourceValue::Workload(workload) => (encode::workload(workload), &*workload.addresses),
            ResourceValue::Policy(policy) => (self::policy(policy), [].as_slice()),
        };
        let version = version_of(&any.value).into();
        Self::of(name, version, any, ips)
    }

    fn of(name: &str, version: Arc<str>, any: proto::Any, ips: &[IpAddr]) -> Self {
        let aliases = ips.iter().copied().map(names::of_address).collect();
        let (name, resource) = (name.to_owned(), Some(any));
        let message = proto::Resource { version: version.to_string(), resource, name, aliases };
        Self { version, bytes: encode::resource(&message) }
    }
}

/// The policy for a proxy. If the workload's policies cannot be applied, this is a policy that denies every client
/// and names the problem, which is small even if the real policies are too large.
fn policy(policy: &ServerPolicy) -> proto::Any {
    let workload = &policy.workload;
    match &policy.authorization.unusable {
        Some(reason) => {
            tracing::warn!(%workload, %reason, "its proxy is ordered to deny every client")
        }
        None => {
            let any = encode::server_policy(policy);
            let bytes = any.value.len();
            if bytes <= MAX_RESOURCE {
                return any;
            }
            tracing::error!(%workload, bytes, "its policies are too large: its proxy is ordered to \
                                               deny every client");
        }
    }
    let denying = denying(policy);
    let any = encode::server_policy(&denying);
    if any.value.len() <= MAX_RESOURCE {
        return any;
    }
    encode::server_policy(&ServerPolicy { limits: [].into(), ..denying })
}

fn denying(policy: &ServerPolicy) -> ServerPolicy {
    let namespace = Arc::clone(&policy.workload.namespace);
    let deny = AuthorizationPolicy {
        source: PolicySource { created: 0, namespace, name: TOO_MANY_POLICIES.into() },
        action: Action::Deny,
        ports: None,
        rules: [PermissionRule::default()].into(),
        tokens: [].into(),
        external: None,
    };
    let authorization = Authorization {
        policies: [deny].into(),
        default: DefaultAuthorization::Deny,
        paths: policy.authorization.paths,
        trust_domain: policy.authorization.trust_domain.clone(),
        unusable: None,
    };
    ServerPolicy { authorization: authorization.into(), ..policy.clone() }
}

/// The key in the cache for the encodings of a service for its waypoint. No resource has this name.
fn of_waypoint(name: &str) -> String {
    format!("{name} of its waypoint")
}

/// The version of a content. It is the same on every control plane.
pub(crate) fn version_of(content: &[u8]) -> String {
    let digest = digest(&SHA256, content);
    data_encoding::BASE64URL_NOPAD.encode(&digest.as_ref()[..VERSION_BYTES])
}
