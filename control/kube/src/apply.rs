//! Applies objects, and recognises the API server's errors.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::{Api, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Applies an object as `kubectl apply --server-side --force-conflicts` does, with this field manager: creates the
/// object, or changes the fields that `object` contains. Returns the stored object.
///
/// # Errors
/// The API server does not answer, or rejects it.
pub async fn apply<K>(
    api: &Api<K>,
    manager: &str,
    name: &str,
    document: &(impl Serialize + Debug),
) -> Result<K, Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    api.patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(document)).await
}

/// Whether the API server has answered with this HTTP status.
#[must_use]
pub fn is_status(error: &Error, code: u16) -> bool {
    matches!(error, Error::Api(status) if status.code == code)
}
