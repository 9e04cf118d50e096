//! Verifies the tokens (JWTs) of users that requests carry, and passes their claims on in headers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use leno_discovery::Directory;
use leno_http::{HeaderLine, RequestView};
use leno_tokens::{Claims, TokenCache, TokenError, TokenUse};
use leno_types::authorization::Authorization;
use leno_types::tokens::{ClaimHeader, ClaimMatch, TokenIssuer};

/// The scheme in the header (RFC 6750 section 2.1), and the space after it.
const SCHEME: &[u8] = b"bearer ";

/// How often a worker reports that tokens of one issuer name a key which it does not have. The interval is limited
/// because clients decide how many such tokens there are.
const REPORT_PERIOD: Duration = Duration::from_secs(5);

/// Reports to the control plane that tokens name keys which policies do not have, so that it fetches them.
#[derive(Debug)]
pub(crate) struct UnknownKeys {
    directory: Directory,
    /// When each issuer was reported last. Only issuers that policies name are in it, so it stays small.
    reported: RefCell<BTreeMap<Box<str>, Instant>>,
}

impl UnknownKeys {
    pub(crate) fn new(directory: Directory) -> Self {
        Self { directory, reported: RefCell::default() }
    }

    fn report(&self, issuer: &str) {
        let now = leno_transport::now();
        let mut reported = self.reported.borrow_mut();
        let is_recent = |last: &Instant| now.saturating_duration_since(*last) < REPORT_PERIOD;
        if !reported.get(issuer).is_some_and(is_recent) {
            reported.insert(issuer.into(), now);
            self.directory.report_unknown_key(issuer);
        }
    }
}

/// The values that are needed to verify the tokens of requests for a policy.
#[derive(Clone, Copy)]
pub(crate) struct TokenRules<'p> {
    pub(crate) cache: &'p TokenCache,
    pub(crate) of: &'p Authorization,
    pub(crate) unknown: &'p UnknownKeys,
}

/// The time since 1970 by the clock of this machine, which must agree with the clocks of issuers.
pub(crate) fn now() -> Duration {
    since_1970(SystemTime::now())
}

/// Before 1970, a clock that cannot be right (Linux lets no program set one, settimeofday(2)), the result is the
/// latest time, at which every token has expired. At the beginning of 1970, expired tokens would seem valid.
fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::MAX)
}

/// Verifies the tokens of a request for a policy. The policy names issuers and the header in which each sends its tokens;
/// there is one result for each of these headers.
fn verified<'p>(
    TokenRules { cache, of, unknown }: TokenRules<'p>,
    request: RequestView<'p>,
    policy: usize,
) -> impl Iterator<Item = Result<(Rc<Claims>, &'p TokenIssuer), TokenError>> {
    let issuers = of.policies.get(policy).map(|policy| &*policy.tokens).unwrap_or_default();
    let now = now();
    issuers.iter().enumerate().filter_map(move |(index, issuer)| {
        let is_same = |one: &&TokenIssuer| one.header == issuer.header;
        if issuers.iter().take(index).any(|one| is_same(&one)) {
            return None;
        }
        let of_header: Vec<&TokenIssuer> = issuers.iter().filter(is_same).collect();
        let is_header = |name: &str| name.eq_ignore_ascii_case(&issuer.header);
        let mut lines = request.forwarded(is_header).map(|(_, line)| line);
        let claims = match (lines.next(), lines.next()) {
            (None, _) => Err(TokenError::Missing),
            // Some applications would use the first line, others the second.
            (Some(_), Some(_)) => Err(TokenError::Malformed),
            (Some(line), None) => match token(line, &issuer.header) {
                Some(token) => {
                    cache.verify(token, (TokenUse { policy, header: index }, &of_header), now)
                }
                None => Err(TokenError::Missing),
            },
        };
        if let Err(TokenError::Key(position)) = claims
            && let Some(issuer) = of_header.get(position)
        {
            unknown.report(&issuer.issuer);
        }
        Some(claims.and_then(|claims| {
            let issuer = of_header.get(claims.issuer()).copied().ok_or(TokenError::Issuer)?;
            Ok((claims, issuer))
        }))
    })
}

/// Returns until when a request's token for a policy is valid, if it has these claims. `None` if valid tokens do not
/// have the claims.
///
/// # Errors
/// Why the request has no valid token.
pub(crate) fn has_token(
    of: TokenRules<'_>,
    request: RequestView<'_>,
    policy: usize,
    claims: &[ClaimMatch],
) -> Result<Option<Duration>, TokenError> {
    let mut outcome = Err(TokenError::Missing);
    for verified in verified(of, request, policy) {
        match verified {
            Ok((verified, _)) if verified.fulfil(claims) => return Ok(Some(verified.until())),
            Ok(_) => outcome = Ok(None),
            Err(TokenError::Missing) => {}
            Err(error) if outcome != Ok(None) => outcome = Err(error),
            Err(_) => {}
        }
    }
    outcome
}

/// Returns the headers with claims for the application. The claims are from the valid tokens that a request has for a
/// policy.
pub(crate) fn claim_headers(
    of: TokenRules<'_>,
    request: RequestView<'_>,
    policy: usize,
) -> Vec<HeaderLine> {
    let mut lines: Vec<HeaderLine> = Vec::new();
    for (claims, issuer) in verified(of, request, policy).filter_map(Result::ok) {
        for ClaimHeader { header, claim } in &issuer.claim_headers {
            // A text that cannot be in a header is left out.
            let text = claims.text(claim);
            let line = text.and_then(|text| HeaderLine::new(header, text.as_bytes()).ok());
            lines.extend(line.filter(|line| lines.iter().all(|one| one.name() != line.name())));
        }
    }
    lines
}

/// Returns the token in a line of a header. In `Authorization` it follows the scheme. In other headers the scheme may
/// be missing.
fn token<'l>(line: &'l [u8], header: &str) -> Option<&'l [u8]> {
    let scheme = line.get(..SCHEME.len()).filter(|start| start.eq_ignore_ascii_case(SCHEME));
    match scheme {
        Some(_) => line.get(SCHEME.len()..).map(<[u8]>::trim_ascii),
        None => (header != "authorization").then_some(line),
    }
}

/// The `WWW-Authenticate` header of an answer to a request without a valid token (RFC 6750 section 3).
pub(crate) fn challenge(error: TokenError) -> Option<HeaderLine> {
    let value = match error {
        TokenError::Missing => "Bearer",
        _ => "Bearer error=\"invalid_token\"",
    };
    HeaderLine::new("WWW-Authenticate", value.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_a_time_before_1970_every_token_has_expired() {
        let second = Duration::from_secs(1);
        assert_eq!(since_1970(SystemTime::UNIX_EPOCH + second), second);
        assert_eq!(since_1970(SystemTime::UNIX_EPOCH - second), Duration::MAX);
    }
}
