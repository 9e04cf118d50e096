//! Names of services and workload instances.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The longest DNS label, in bytes (RFC 1035 section 2.3.4).
const MAX_LABEL: usize = 63;
/// The longest name that consists of labels joined by dots, in bytes. It is Kubernetes' limit for objects that are not
/// DNS hosts themselves.
const MAX_SUBDOMAIN: usize = 253;

/// The name of a service, `<namespace>/<name>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    /// The namespace, a DNS label.
    pub namespace: Arc<str>,
    /// The name of the service in the namespace, a DNS label.
    pub name: Arc<str>,
}

/// The name of a running workload instance, `<namespace>/<name>`: `shop/web-0`, or a pod's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceName {
    /// The namespace, a DNS label.
    pub namespace: Arc<str>,
    /// The name of the instance in the namespace.
    pub name: Arc<str>,
}

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is not a DNS label.
    #[error("{text:?} is not a {what}: use 1 to 63 of a-z, 0-9 and '-', with no '-' at either end")]
    Label {
        /// What the text should name.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// The text does not consist of labels joined by dots.
    #[error(
        "{text:?} is not a {what}: use 1 to 253 of a-z, 0-9, '-' and '.', with a letter or digit at both ends of each part"
    )]
    Subdomain {
        /// What the text should name.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// The text does not have the form `<namespace>/<name>`.
    #[error("{0:?} is not of the form <namespace>/<name>")]
    Form(String),
}

/// Checks that `text` is a DNS label (RFC 1123 section 2.1), as Kubernetes requires of names.
///
/// # Errors
/// [`NameError::Label`], with `what` the text should name.
pub fn check_label(what: &'static str, text: &str) -> Result<(), NameError> {
    let good = text.len() <= MAX_LABEL && is_part(text);
    if good { Ok(()) } else { Err(NameError::Label { what, text: text.to_owned() }) }
}

/// Checks that `text` is a name as Kubernetes requires of objects that are not DNS hosts, such as service accounts and
/// endpoint slices. Unlike in DNS, a part may be longer than 63 bytes; the whole name may have at most 253.
///
/// # Errors
/// [`NameError::Subdomain`], with `what` the text should name.
pub fn check_subdomain(what: &'static str, text: &str) -> Result<(), NameError> {
    let good = text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_part);
    if good { Ok(()) } else { Err(NameError::Subdomain { what, text: text.to_owned() }) }
}

/// Checks the part between two dots. It must not be empty.
fn is_part(text: &str) -> bool {
    let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-');
    !text.is_empty() && text.bytes().all(allowed) && !text.starts_with('-') && !text.ends_with('-')
}

macro_rules! namespaced {
    ($name:ident, $what:literal) => {
        impl $name {
            /// Checks both parts.
            ///
            /// # Errors
            /// [`NameError::Label`] if a part is not a DNS label.
            pub fn new(namespace: &str, name: &str) -> Result<Self, NameError> {
                check_label("namespace", namespace)?;
                check_label($what, name)?;
                Ok(Self { namespace: namespace.into(), name: name.into() })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", self.namespace, self.name)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let form = || NameError::Form(text.to_owned());
                let (namespace, name) = text.split_once('/').ok_or_else(form)?;
                Self::new(namespace, name)
            }
        }
    };
}

namespaced!(ServiceName, "service name");
namespaced!(InstanceName, "workload name");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_name_survives_its_text() {
        let name: ServiceName = "shop/web".parse().unwrap();
        assert_eq!((&*name.namespace, &*name.name), ("shop", "web"));
        assert_eq!(name.to_string(), "shop/web");
    }

    #[test]
    fn a_label_has_bounds() {
        assert!(check_label("name", &"a".repeat(63)).is_ok());
        for text in ["", "-a", "a-", "A", "a.b", "a/b", "ä", &"a".repeat(64)] {
            assert!(check_label("name", text).is_err(), "{text}");
        }
        assert!("web".parse::<ServiceName>().is_err());
        for text in ["a".repeat(253), "a".repeat(63) + "-ipv4-0", "a.b-c.1".to_owned()] {
            assert!(check_subdomain("name", &text).is_ok(), "{text}");
        }
        for text in ["", ".", "a.", ".a", "a..b", "a.-b", "A", "a_b", &"a".repeat(254)] {
            assert!(check_subdomain("name", text).is_err(), "{text}");
        }
        assert!("shop/web/extra".parse::<ServiceName>().is_err());
    }
}
