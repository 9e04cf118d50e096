//! The Kubernetes version of the API server.

use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Client;

/// The minor version of the API server; see [`minor_of`].
///
/// # Errors
/// If the API server does not answer.
pub async fn minor_version(client: &Client) -> Result<u32, kube::Error> {
    Ok(minor_of(&client.apiserver_version().await?))
}

/// The minor version, such as 34 for Kubernetes 1.34. A later major version counts as later than every minor
/// version.
#[must_use]
pub fn minor_of(version: &Info) -> u32 {
    // Some providers add a sign: `30+`.
    let digits: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
    if version.major == "1" { digits.parse().unwrap_or(0) } else { u32::MAX }
}
