//! Encodes certificates as PEM.

use data_encoding::BASE64;

/// How many characters a line of PEM has (RFC 7468, section 2).
const LINE: usize = 64;

/// Encodes a certificate as PEM (RFC 7468).
pub(crate) fn pem(der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, next) = rest.split_at(rest.len().min(LINE));
        pem.extend([line, "\n"]);
        rest = next;
    }
    pem + "-----END CERTIFICATE-----\n"
}
