//! TLS to the control plane, whose certificate must have its SPIFFE ID.

use std::sync::Arc;

use leno_spiffe::ServerIdVerifier;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, Error, RootCertStore};

use crate::certificate::Certificate;

/// The protocol inside TLS.
const ALPN: &[u8] = b"h2";

/// A configuration that accepts the server `control_plane` if its certificate is signed by one of `roots`. It presents
/// the certificate `own` if there is one.
pub(crate) fn config(
    roots: RootCertStore,
    control_plane: String,
    own: Option<&Certificate>,
) -> Result<ClientConfig, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = ServerIdVerifier::new(roots, control_plane, &provider);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = own.chain_der.iter().cloned().map(CertificateDer::from).collect();
            let key = PrivateKeyDer::Pkcs8(own.key_der.clone().into());
            builder.with_client_auth_cert(chain, key)?
        }
    };
    // A configuration is used for one connection, so a cache for 256 sessions would waste memory.
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}
