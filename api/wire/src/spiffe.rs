//! The SPIFFE Workload API: how a process on this machine gets its certificate, its key and its trust bundles without
//! already having a secret. Leno serves it to applications, and proxies can be its clients.

#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::too_many_lines,
    reason = "generated; the proto file has the comments"
)]
mod proto {
    include!("generated/spiffe.rs");
}

pub use proto::{
    JwtBundlesRequest, JwtBundlesResponse, JwtsvidRequest, JwtsvidResponse, ValidateJwtsvidRequest,
    ValidateJwtsvidResponse, X509BundlesRequest, X509BundlesResponse, X509svid, X509svidRequest,
    X509svidResponse, spiffe_workload_api_client, spiffe_workload_api_server,
};

/// The header of every call, with the value `true`. A browser or a proxy that was tricked into a call does not send
/// this header (SPIFFE Workload Endpoint, section 7).
pub const SECURITY_HEADER: &str = "workload.spiffe.io";
