//! Caches the results of recent reviews by the digest of the token. The tokens themselves are not kept.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};

use super::served_pods::TokenBearer;

/// Most cached results, of about 300 bytes each. It is enough for all proxies of a large mesh that connect again
/// at once.
const MAX_RESULTS: usize = 8_192;
/// How long a valid token is accepted without another review. The API server's own cache has the same time. A
/// token whose pod was deleted is accepted for this time longer.
const GOOD_FOR: Duration = Duration::from_secs(10);
/// How long the result for an invalid token is cached. A proxy that repeats its request causes one review in this
/// time.
const BAD_FOR: Duration = Duration::from_secs(5);

/// The result of a review: the owner of the token, or why the token is invalid.
pub(super) type Reviewed = Result<TokenBearer, String>;

/// The digest of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenDigest([u8; 32]);

impl TokenDigest {
    pub(super) fn of(token: &str) -> Self {
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        Self(key)
    }
}

/// The cached results.
#[derive(Debug, Default)]
pub(super) struct ReviewCache {
    /// Each result with the time until which it is valid.
    results: HashMap<TokenDigest, (Reviewed, Instant)>,
}

impl ReviewCache {
    pub(super) fn get(&self, key: TokenDigest, now: Instant) -> Option<Reviewed> {
        let (reviewed, until) = self.results.get(&key)?;
        (now < *until).then(|| reviewed.clone())
    }

    /// Caches the result for a token that expires in `left`.
    pub(super) fn put(
        &mut self,
        key: TokenDigest,
        reviewed: Reviewed,
        left: Duration,
        now: Instant,
    ) {
        if self.results.len() >= MAX_RESULTS {
            self.results.retain(|_, (_, until)| now < *until);
        }
        if self.results.len() >= MAX_RESULTS
            && let Some(any) = self.results.keys().next().copied()
        {
            self.results.remove(&any);
        }
        let longest = if reviewed.is_ok() { GOOD_FOR } else { BAD_FOR };
        self.results.insert(key, (reviewed, now + longest.min(left)));
    }
}

#[cfg(test)]
mod tests {
    use leno_serve::ProvenIdentity;

    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn good() -> Reviewed {
        let identity = "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap();
        Ok(TokenBearer {
            proven: ProvenIdentity { identity, instance: None },
            uid: None,
            node: None,
        })
    }

    #[test]
    fn a_result_holds_for_a_while_and_never_longer_than_its_token() {
        let (mut cache, now) = (ReviewCache::default(), Instant::now());
        let (long, short, bad) =
            (TokenDigest::of("long"), TokenDigest::of("short"), TokenDigest::of("bad"));
        cache.put(long, good(), HOUR, now);
        cache.put(short, good(), Duration::from_secs(1), now);
        cache.put(bad, Err("no".to_owned()), HOUR, now);
        assert_eq!(cache.get(long, now), Some(good()));
        assert_eq!(cache.get(bad, now), Some(Err("no".to_owned())));
        assert_eq!(cache.get(TokenDigest::of("other"), now), None);
        assert_eq!(cache.get(short, now + Duration::from_secs(1)), None);
        assert_eq!(cache.get(bad, now + BAD_FOR), None);
        assert_eq!(cache.get(long, now + BAD_FOR), Some(good()));
        assert_eq!(cache.get(long, now + GOOD_FOR), None);
    }

    #[test]
    fn no_number_of_tokens_makes_it_larger_than_its_bound() {
        let (mut cache, now) = (ReviewCache::default(), Instant::now());
        for token in 0..MAX_RESULTS + 10 {
            cache.put(TokenDigest::of(&token.to_string()), Err(String::new()), HOUR, now);
        }
        assert_eq!(cache.results.len(), MAX_RESULTS);
        assert!(cache.get(TokenDigest::of(&(MAX_RESULTS + 9).to_string()), now).is_some());
        cache.put(TokenDigest::of("later"), good(), HOUR, now + BAD_FOR);
        assert_eq!(cache.results.len(), 1, "what has ended makes room");
    }
}
