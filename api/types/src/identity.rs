//! SPIFFE identities.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::name::{NameError, check_label, check_subdomain};

/// The longest trust domain name, in bytes (SPIFFE-ID section 2.1).
const MAX_TRUST_DOMAIN: usize = 255;

/// The name of the mesh in its identities, for example `cluster.local`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrustDomain(Arc<str>);

/// The identity of a workload: `spiffe://<trust-domain>/ns/<namespace>/sa/<service-account>`.
///
/// Compared and hashed as a whole; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    trust_domain: TrustDomain,
    namespace: Arc<str>,
    service_account: Arc<str>,
}

/// Why a text is not an identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The text does not have the form `spiffe://<trust-domain>/ns/<namespace>/sa/<service-account>`.
    #[error("{0:?} is not of the form spiffe://<trust-domain>/ns/<namespace>/sa/<service-account>")]
    Form(String),
    /// The trust domain has characters or a length that SPIFFE does not allow.
    #[error("{0:?} is not a trust domain: 1 to 255 of a-z, 0-9, '.', '-' and '_' are allowed")]
    TrustDomain(String),
    /// The namespace or service account is not a Kubernetes name.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl TrustDomain {
    /// Checks the characters and the length that SPIFFE-ID section 2.1 allows.
    ///
    /// # Errors
    /// [`IdentityError::TrustDomain`] for an empty or overlong name or another character.
    pub fn new(name: &str) -> Result<Self, IdentityError> {
        let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
        if name.is_empty() || name.len() > MAX_TRUST_DOMAIN || !name.bytes().all(allowed) {
            return Err(IdentityError::TrustDomain(name.to_owned()));
        }
        Ok(Self(name.into()))
    }

    /// The name itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The SPIFFE ID of the control plane's own servers, as text. It is not an [`Identity`]: no service account has
    /// such a path, whatever its name and namespace are, so that no workload can pretend to be the control plane.
    #[must_use]
    pub fn control_plane(&self) -> String {
        format!("spiffe://{self}/leno/control-plane")
    }
}

impl Default for TrustDomain {
    fn default() -> Self {
        Self("cluster.local".into())
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Identity {
    /// The identity of a service account in a trust domain.
    ///
    /// # Errors
    /// [`IdentityError::Name`] if namespace or service account is not a Kubernetes name.
    pub fn new(
        trust_domain: TrustDomain,
        namespace: &str,
        service_account: &str,
    ) -> Result<Self, IdentityError> {
        check_label("namespace", namespace)?;
        check_subdomain("service account", service_account)?;
        Ok(Self {
            trust_domain,
            namespace: namespace.into(),
            service_account: service_account.into(),
        })
    }

    /// The trust domain that it belongs to.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The namespace of the service account.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The service account.
    #[must_use]
    pub fn service_account(&self) -> &str {
        &self.service_account
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trust_domain, namespace, service_account } = self;
        write!(f, "spiffe://{trust_domain}/ns/{namespace}/sa/{service_account}")
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || IdentityError::Form(text.to_owned());
        let rest = text.strip_prefix("spiffe://").ok_or_else(form)?;
        let mut parts = rest.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(domain), Some("ns"), Some(namespace), Some("sa"), Some(account), None) => {
                Self::new(TrustDomain::new(domain)?, namespace, account)
            }
            _ => Err(form()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_its_text() {
        let text = "spiffe://cluster.local/ns/shop/sa/web";
        let identity: Identity = text.parse().unwrap();
        assert_eq!(identity.namespace(), "shop");
        assert_eq!(identity.service_account(), "web");
        assert_eq!(identity.to_string(), text);
    }

    #[test]
    fn the_control_planes_id_is_no_identity_of_a_service_account() {
        let id = TrustDomain::default().control_plane();
        assert_eq!(id, "spiffe://cluster.local/leno/control-plane");
        assert_eq!(id.parse::<Identity>(), Err(IdentityError::Form(id.clone())));
    }

    #[test]
    fn what_is_not_an_identity_is_refused() {
        for text in [
            "",
            "spiffe://",
            "https://cluster.local/ns/shop/sa/web",
            "spiffe://cluster.local/ns/shop/sa/",
            "spiffe://cluster.local/ns/shop/sa/web/extra",
            "spiffe://cluster.local/ns/shop",
            "spiffe:///ns/shop/sa/web",
            "spiffe://Cluster/ns/shop/sa/web",
            "spiffe://cluster.local/ns/sh op/sa/web",
            "spiffe://cluster.local/ns/../sa/web",
        ] {
            assert!(text.parse::<Identity>().is_err(), "{text}");
        }
    }
}
