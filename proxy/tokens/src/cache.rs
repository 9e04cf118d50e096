//! A cache of tokens that were already verified. It is worthwhile because a client sends the same token for minutes,
//! and verifying a signature costs more than everything else in a request.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use leno_types::tokens::TokenIssuer;

use crate::{Claims, TokenError, verify};

/// The largest number of bytes of tokens that one worker (a thread of the proxy) remembers: about a thousand tokens of
/// the usual size. If there are more, the worker forgets all of them, and verifies each token that is still used once
/// more.
const MAX_BYTES: usize = 1024 * 1024;

/// The claims of tokens by their texts.
type Verified = HashMap<Box<[u8]>, Rc<Claims>>;

/// What a token was verified for. A policy may expect the tokens of different issuers in different headers, so the same
/// text in another header is verified again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenUse {
    /// The position of the policy in the caller's list.
    pub policy: usize,
    /// The position, among the policy's issuers, of the first one that uses this header.
    pub header: usize,
}

/// The tokens of one worker, by the use that they were verified for.
#[derive(Debug, Default)]
pub struct TokenCache {
    known: RefCell<HashMap<TokenUse, Verified>>,
    /// About how much memory the tokens take.
    bytes: Cell<usize>,
}

impl TokenCache {
    /// Verifies a token, unless it was verified before for the same use; then only its time is checked. The issuers of
    /// a use must not change while the cache exists. `now` is the time since the beginning of 1970.
    ///
    /// # Errors
    /// Why the token is not valid. This is not cached, because clients can make any number of such tokens.
    pub fn verify(
        &self,
        token: &[u8],
        (of, issuers): (TokenUse, &[&TokenIssuer]),
        now: Duration,
    ) -> Result<Rc<Claims>, TokenError> {
        if let Some(known) = self.known.borrow().get(&of).and_then(|known| known.get(token)) {
            return match (now < known.from, now <= known.until) {
                (true, _) => Err(TokenError::NotYet),
                (_, false) => Err(TokenError::Expired),
                _ => Ok(Rc::clone(known)),
            };
        }
        let claims = Rc::new(verify(token, issuers, now)?);
        // The text, and about as much again for the claims.
        let size = token.len().saturating_mul(2);
        let mut known = self.known.borrow_mut();
        if self.bytes.get().saturating_add(size) > MAX_BYTES {
            known.clear();
            self.bytes.set(0);
        }
        self.bytes.set(self.bytes.get().saturating_add(size));
        known.entry(of).or_default().insert(token.into(), Rc::clone(&claims));
        Ok(claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::tests::{NOW, issuer, token};

    const USE: TokenUse = TokenUse { policy: 0, header: 0 };

    #[test]
    fn a_known_token_ends_with_its_time() {
        let cache = TokenCache::default();
        let issuer = issuer();
        let text = token(r#"{"iss":"https://id","aud":"shop","exp":1000,"nbf":900}"#);
        let verify = |now: u64| {
            cache.verify(text.as_bytes(), (USE, &[&issuer]), Duration::from_secs(now)).map(|_| ())
        };
        assert_eq!(verify(NOW), Ok(()));
        assert_eq!(verify(NOW + 1), Ok(()));
        assert_eq!(verify(1031), Err(TokenError::Expired));
        assert_eq!(verify(869), Err(TokenError::NotYet));
        // The same text for another policy or in another header has other issuers.
        for other in [TokenUse { policy: 1, ..USE }, TokenUse { header: 1, ..USE }] {
            let other = cache.verify(text.as_bytes(), (other, &[]), Duration::from_secs(NOW));
            assert_eq!(other.map(|_| ()), Err(TokenError::Issuer));
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let cache = TokenCache::default();
        let issuer = issuer();
        for number in 0..4_000 {
            let claims = format!(r#"{{"iss":"https://id","aud":"shop","exp":1000,"n":{number}}}"#);
            let text = token(&claims);
            let now = Duration::from_secs(NOW);
            cache.verify(text.as_bytes(), (USE, &[&issuer]), now).expect("a valid token");
            assert!(cache.bytes.get() <= MAX_BYTES);
        }
        let kept = cache.known.borrow().values().map(HashMap::len).sum::<usize>();
        assert!((1..4_000).contains(&kept), "{kept}");
    }
}
