//! The tokens of users that requests carry.

use std::time::{Duration, SystemTime};

use leno_http::{HeaderLine, RequestView};
use leno_tokens::{TokenCache, TokenError};
use leno_types::authorization::Authorization;
use leno_types::tokens::{ClaimMatch, TokenIssuer};

/// The scheme of the header (RFC 6750 section 2.1), and the space behind it.
const SCHEME: &[u8] = b"bearer ";

/// The time of the machine, as issuers have it; before 1970 no token is valid.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// Until when a request has a valid token for a policy, with these claims; `None` if its token lacks claims.
///
/// # Errors
/// Why it has no valid one.
pub(crate) fn has_token(
    (cache, of): (&TokenCache, &Authorization),
    request: RequestView<'_>,
    policy: usize,
    claims: &[ClaimMatch],
) -> Result<Option<Duration>, TokenError> {
    let issuers = of.policies.get(policy).map(|policy| &*policy.tokens).unwrap_or_default();
    let now = now();
    let mut outcome = Err(TokenError::Missing);
    for (index, issuer) in issuers.iter().enumerate() {
        let is_same = |one: &&TokenIssuer| one.header == issuer.header;
        if issuers.iter().take(index).any(|one| is_same(&one)) {
            continue;
        }
        let of_header: Vec<&TokenIssuer> = issuers.iter().filter(is_same).collect();
        let is_header = |name: &str| name.eq_ignore_ascii_case(&issuer.header);
        let mut lines = request.forwarded(is_header).map(|(_, line)| line);
        let verified = match (lines.next(), lines.next()) {
            (None, _) => Err(TokenError::Missing),
            // Applications differ in which one they read.
            (Some(_), Some(_)) => Err(TokenError::Malformed),
            (Some(line), None) => match token(line, &issuer.header) {
                Some(token) => cache.verify(token, (policy, &of_header), now),
                None => Err(TokenError::Missing),
            },
        };
        match verified {
            Ok(verified) if verified.fulfil(claims) => return Ok(Some(verified.until())),
            Ok(_) => outcome = Ok(None),
            Err(TokenError::Missing) => {}
            Err(error) if outcome != Ok(None) => outcome = Err(error),
            Err(_) => {}
        }
    }
    outcome
}

/// The token of a header's line. In `Authorization` it is behind its scheme, elsewhere also without.
fn token<'l>(line: &'l [u8], header: &str) -> Option<&'l [u8]> {
    let scheme = line.get(..SCHEME.len()).filter(|start| start.eq_ignore_ascii_case(SCHEME));
    match scheme {
        Some(_) => line.get(SCHEME.len()..).map(<[u8]>::trim_ascii),
        None => (header != "authorization").then_some(line),
    }
}

/// `WWW-Authenticate` of an answer to a request without a valid token (RFC 6750 section 3).
pub(crate) fn challenge(error: TokenError) -> Option<HeaderLine> {
    let value = match error {
        TokenError::Missing => "Bearer",
        _ => "Bearer error=\"invalid_token\"",
    };
    HeaderLine::new("WWW-Authenticate", value.as_bytes()).ok()
}
