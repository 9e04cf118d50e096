//! Tests bad certificates, which are presented to a server or to a client.

use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};

use super::ca::Leaf;
use super::*;

/// Bad certificates: for each the expected reason of the refusal, then the certificate for the client and the one for
/// the server.
pub(super) fn lies(
    mesh: &Ca,
    other: &Ca,
    namesake: &Ca,
) -> Vec<(&'static str, Presented, Presented)> {
    let leaf = |change: &dyn Fn(&mut Leaf), uri| {
        let mut leaf = Leaf::of(uri);
        change(&mut leaf);
        leaf
    };
    let both = |ca: &Ca, change: &dyn Fn(&mut Leaf)| {
        (ca.issue(&leaf(change, WEB)), ca.issue(&leaf(change, CART)))
    };
    let uris = |uris: &'static [&'static str]| move |leaf: &mut Leaf| leaf.uris = uris.into();
    let cases: Vec<(&str, (Presented, Presented))> = vec![
        ("unknown-issuer", both(other, &|_| {})),
        ("bad-signature", both(namesake, &|_| {})),
        ("expired", both(mesh, &|leaf| leaf.years = (2029, 2030))),
        ("not-yet-valid", both(mesh, &|leaf| leaf.years = (2031, 2032))),
        ("no-identity", both(mesh, &uris(&[]))),
        ("several-identities", both(mesh, &uris(&[WEB, CART]))),
        ("several-identities", both(mesh, &uris(&[WEB, WEB]))),
        ("not-an-identity", both(mesh, &uris(&["https://cluster.local/ns/shop/sa/web"]))),
        ("not-an-identity", both(mesh, &uris(&["spiffe://cluster.local/ns/shop/sa/web/x"]))),
        ("trust-domain", both(mesh, &uris(&["spiffe://elsewhere/ns/shop/sa/cart"]))),
        ("invalid", both(mesh, &|leaf| leaf.is_ca = true)),
    ];
    cases.into_iter().map(|(reason, (web, cart))| (reason, web, cart)).collect()
}

pub(super) type Presented =
    (Vec<rustls_pki_types::CertificateDer<'static>>, rustls_pki_types::PrivateKeyDer<'static>);

async fn shown_to_server(mesh: &Mesh, certificate: Option<Presented>) -> HandshakeError {
    let (near, far) = pair().await;
    let client = async {
        let mut client = liar::connect(near, certificate, &["leno-h1"]).await.unwrap();
        // The refusal arrives with the first read.
        let error = client.read_u8().await.unwrap_err();
        assert!(refused_by_server(&error).is_some(), "{error}");
    };
    let (server, ()) = tokio::join!(mesh.acceptor.accept(far, ClientIdentity::Required), client);
    server.unwrap_err()
}

async fn shown_to_client(mesh: &Mesh, certificate: Presented) -> HandshakeError {
    let (near, far) = pair().await;
    let cart = identity(CART);
    let client = mesh.connector.connect(near, &cart, &[Alpn::Http1]);
    let (client, server) = tokio::join!(client, liar::accept(far, certificate, "leno-h1"));
    assert!(server.is_err());
    client.unwrap_err()
}

#[tokio::test]
async fn certificates_that_lie_are_refused_by_name() {
    let mesh = Mesh::new();
    for (reason, web, cart) in lies(&mesh.ca, &Ca::new("other"), &Ca::new("mesh")) {
        let error = shown_to_server(&mesh, Some(web)).await;
        assert_eq!(error.reason(), reason, "to the server: {error:?}");
        let error = shown_to_client(&mesh, cart).await;
        assert_eq!(error.reason(), reason, "to the client: {error:?}");
    }
}

#[tokio::test]
async fn a_certificate_is_for_its_purpose_only() {
    let mesh = Mesh::new();
    let only = |purpose, uri| mesh.ca.issue(&Leaf { purposes: vec![purpose], ..Leaf::of(uri) });
    let error = shown_to_server(&mesh, Some(only(ServerAuth, WEB))).await;
    assert_eq!(error.reason(), "purpose");
    let error = shown_to_client(&mesh, only(ClientAuth, CART)).await;
    assert_eq!(error.reason(), "purpose");
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let error = shown_to_server(&Mesh::new(), None).await;
    assert_eq!(error.reason(), "no-certificate");
}

#[tokio::test]
async fn another_workload_is_not_the_one_expected() {
    let mesh = Mesh::new();
    let error = shown_to_client(&mesh, mesh.ca.issue(&Leaf::of(WEB))).await;
    let HandshakeError::Refused(Refusal::Unexpected { expected, presented }) = error else {
        panic!("{error:?}");
    };
    assert_eq!((expected, presented), (identity(CART), identity(WEB)));
}

#[tokio::test]
async fn tls_without_a_protocol_of_the_mesh_is_refused() {
    let mesh = Mesh::new();
    for alpn in [&["h2", "http/1.1"][..], &[]] {
        let (near, far) = pair().await;
        let certificate = mesh.ca.issue(&Leaf::of(WEB));
        let client = liar::connect(near, Some(certificate), alpn);
        let (server, _client) =
            tokio::join!(mesh.acceptor.accept(far, ClientIdentity::Required), client);
        assert_eq!(server.unwrap_err().reason(), "no-protocol");
    }
}

/// The server is an application that does not use TLS, because its proxy does not run.
#[tokio::test]
async fn what_is_no_tls_is_refused_with_one_alert() {
    let mesh = Mesh::new();
    for answer in [&b"HTTP/1.0 400 Bad Request\r\n\r\n"[..], b"-ERR unknown command\r\n", &[0; 64]]
    {
        let (near, mut far) = pair().await;
        let cart = identity(CART);
        let client = mesh.connector.connect(near, &cart, &[Alpn::Http1]);
        let server = async {
            let mut head = [0; 5];
            far.read_exact(&mut head).await.unwrap();
            let mut hello = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
            far.read_exact(&mut hello).await.unwrap();
            far.write_all(answer).await.unwrap();
            let mut after = Vec::new();
            far.read_to_end(&mut after).await.unwrap();
            after
        };
        let (client, after) = tokio::join!(client, server);
        assert_eq!(client.unwrap_err().reason(), "tls", "{answer:?}");
        // An alert is a record with the version of TLS 1.2 (for compatibility) and two bytes (RFC 8446 section 5.1).
        // The level is fatal (section 6).
        assert_eq!((&after[..6], after.len()), (&[21, 3, 3, 0, 2, 2][..], 7), "{answer:?}");
    }
}

#[test]
fn credentials_that_do_not_fit_are_refused_and_the_old_ones_stay() {
    let (ca, clock) = (Ca::new("mesh"), Clock::new());
    let keyring = Keyring::new();
    keyring.set(ca.configs(WEB, &clock));
    let (chain, _) = ca.issue(&Leaf::of(CART));
    let (_, key) = ca.issue(&Leaf::of(CART));
    let mixed = Credentials::from_der(chain, key, vec![ca.root.clone()]).unwrap();
    let error = keyring.rotate(mixed).unwrap_err();
    assert!(matches!(error, CredentialsError::Unusable("private key", _)), "{error:?}");
    let current = keyring.current().unwrap();
    assert_eq!(*current.credentials().identity(), identity(WEB));
}

#[test]
fn credentials_are_read_from_pem_and_shown_without_the_key() {
    let ca = Ca::new("mesh");
    let (chain, key) = ca.issue(&Leaf::of(WEB));
    let pem = |label: &str, der: &[u8]| to_pem(label, der).into_bytes();
    let chain = pem("CERTIFICATE", &chain[0]);
    let key = pem("PRIVATE KEY", key.secret_der());
    let roots = pem("CERTIFICATE", &ca.root);
    let credentials = Credentials::from_pem(&chain, &key, &roots).unwrap();
    assert_eq!(*credentials.identity(), identity(WEB));
    let year = credentials.not_after().duration_since(credentials.not_before()).unwrap();
    assert_eq!(year, Duration::from_secs(365 * 86_400));
    assert!(!format!("{credentials:?}").contains("key"));
    let none = Credentials::from_pem(b"", &key, &roots).unwrap_err();
    assert!(matches!(none, CredentialsError::Empty("certificate chain")), "{none}");
    let broken = Credentials::from_pem(&chain, b"-----BEGIN", &roots).unwrap_err();
    assert!(matches!(broken, CredentialsError::Pem("private key", _)), "{broken}");
}

/// Encodes as PEM (RFC 7468), with 64 characters of base64 per line.
fn to_pem(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in der.chunks(3) {
        let word = chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= chunk.len() { digit.into() } else { '=' });
        }
    }
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
