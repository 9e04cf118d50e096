//! The state of an authority: the key with which it signs and the roots that verifiers trust, in each phase of a
//! rotation of the root.
//!
//! ```text
//!             begin                advance                 advance                  advance
//!   Stable ──────────► Add ──────────────────► Switch ──────────────────► Remove ───────────► Stable
//!   signs:   to        from                    to                         to                  to
//!   trusted: to        from, to                from, to                   to                  to
//!   next when proxies:  trust both              have a certificate of `to` trust only `to`
//! ```
//! Aborting reverses a rotation: `from` and `to` are exchanged, and it continues through the same phases from the
//! matching one. Add becomes Remove, Switch stays Switch, and Remove becomes Add. So no verifier ever receives a
//! certificate of a root that it does not trust.

use std::collections::BTreeMap;
use std::path::Path;

use leno_types::{Identity, MAX_REVOKED, Revocations};
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use super::signer::{SignerPem, certificates};
use super::{MAX_LIFETIME, OpenError, TooManyRoots, webhook_secret};

/// The phase of a rotation of the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RotationPhase {
    /// No rotation is under way: there is one signer, and its roots are trusted.
    Stable,
    /// The new root is being added to the trusted ones. The old root signs.
    Add,
    /// The new root signs, and proxies renew their certificates. Both roots are trusted.
    Switch,
    /// The old root is being removed from the trusted ones.
    Remove,
}

/// The whole state of an authority, including keys. It must be stored as a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityState {
    /// The phase of the rotation.
    pub phase: RotationPhase,
    /// The signer at the end of the rotation.
    pub to: SignerPem,
    /// The signer before the rotation; `None` in [`RotationPhase::Stable`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<SignerPem>,
    /// Whether the rotation was aborted. `to` is then the signer from before the rotation.
    #[serde(default)]
    pub aborted: bool,
    /// When the phase began, in seconds of Unix time.
    #[serde(default)]
    pub since_unix_s: u64,
    /// The ID of the last request that was handled, so that no request is handled twice.
    #[serde(default)]
    pub last_request: String,
    /// Why that request was rejected, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_refused: Option<String>,
    /// The secret for webhooks from before the first rotation; `None` if it is derived from the present key.
    #[serde(default)]
    pub webhook_secret: Option<String>,
    /// The issuer of a rotation that the operator has aborted. The same issuer does not begin another rotation.
    #[serde(default)]
    pub rejected: Option<SignerPem>,
    /// Revoked certificates, by the identity that they contain.
    #[serde(default)]
    pub revoked: BTreeMap<String, IdentityRevocation>,
}

/// Which certificates of an identity are revoked: those whose validity began up to a certain time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityRevocation {
    /// That time, in seconds since 1970.
    pub last_not_before_unix_s: i64,
    /// When the last of these certificates has expired, in seconds since 1970. The revocation is dropped then.
    pub until_unix_s: u64,
}

/// Why a rotation cannot begin or be aborted, or why certificates cannot be revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RotationError {
    /// A rotation is already under way.
    #[error(
        "a rotation of the root is under way: wait for its end, or abort it with `leno identity rotate-root --abort`"
    )]
    UnderWay,
    /// No rotation is under way.
    #[error("no rotation of the root is under way")]
    None,
    /// The root belongs to an issuer that the operator provides.
    #[error(
        "the mesh signs with the issuer of --issuer, whose root it cannot replace: replace the \
         files of the issuer, and the mesh rotates to it"
    )]
    Given,
    /// The name whose certificates should be revoked is not an identity.
    #[error("the identity is not that of a service account")]
    NotAnIdentity,
    /// A trust bundle has no room for the roots of the rotation.
    #[error(transparent)]
    TooManyRoots(#[from] TooManyRoots),
    /// Too many identities have revoked certificates.
    #[error(
        "the certificates of {MAX_REVOKED} identities are revoked already, which is the limit: \
         replace the root with `leno identity rotate-root`"
    )]
    TooManyRevoked,
}

impl RotationPhase {
    /// The name of the phase on the command line and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Add => "add",
            Self::Switch => "switch",
            Self::Remove => "remove",
        }
    }
}

impl AuthorityState {
    /// A state without a rotation.
    #[must_use]
    pub fn stable(signer: SignerPem, now_unix_s: u64) -> Self {
        Self {
            phase: RotationPhase::Stable,
            to: signer,
            from: None,
            aborted: false,
            since_unix_s: now_unix_s,
            last_request: String::new(),
            last_refused: None,
            webhook_secret: None,
            rejected: None,
            revoked: BTreeMap::new(),
        }
    }

    /// Revokes the certificates of an identity whose validity began at `last_begin` or before. Both times are in
    /// seconds since 1970.
    ///
    /// # Errors
    /// [`RotationError::TooManyRevoked`].
    pub fn revoke(
        &self,
        identity: &Identity,
        last_begin: u64,
        now_unix_s: u64,
    ) -> Result<Self, RotationError> {
        let mut next = self.without_ended(now_unix_s).unwrap_or_else(|| self.clone());
        let name = identity.to_string();
        if next.revoked.len() >= MAX_REVOKED && !next.revoked.contains_key(&name) {
            return Err(RotationError::TooManyRevoked);
        }
        // What an earlier revocation covers stays covered, although the clock may have been set back since.
        let before = next.revoked.get(&name);
        let begin = i64::try_from(last_begin).unwrap_or(i64::MAX);
        let begin = before.map_or(begin, |before| begin.max(before.last_not_before_unix_s));
        // Uses the longest lifetime, because a longer one than at present may have been configured when the
        // certificate was issued.
        let until_unix_s = now_unix_s + MAX_LIFETIME.as_secs();
        let until_unix_s =
            before.map_or(until_unix_s, |before| until_unix_s.max(before.until_unix_s));
        next.revoked
            .insert(name, IdentityRevocation { last_not_before_unix_s: begin, until_unix_s });
        Ok(next)
    }

    /// The earliest time at which the validity of the next certificate of an identity may begin, in seconds since
    /// 1970: one second after that of the last revoked certificate.
    pub(super) fn earliest_begin(&self, identity: &Identity) -> Option<u64> {
        let revoked = self.revoked.get(&identity.to_string())?;
        u64::try_from(revoked.last_not_before_unix_s.saturating_add(1)).ok()
    }

    /// This state without revocations whose certificates have all expired; `None` if there are no such
    /// revocations.
    #[must_use]
    pub fn without_ended(&self, now_unix_s: u64) -> Option<Self> {
        let is_kept = |one: &IdentityRevocation| one.until_unix_s > now_unix_s;
        if self.revoked.values().all(is_kept) {
            return None;
        }
        let mut next = self.clone();
        next.revoked.retain(|_, one| is_kept(one));
        Some(next)
    }

    /// The revocations in the form that proxies receive.
    #[must_use]
    pub fn revocations(&self) -> Revocations {
        let parsed = self.revoked.iter().filter_map(|(name, one)| {
            Some((name.parse::<Identity>().ok()?, one.last_not_before_unix_s))
        });
        Revocations::new(parsed)
    }

    /// The signer that signs at present.
    #[must_use]
    pub fn signing(&self) -> &SignerPem {
        match (&self.from, self.phase) {
            (Some(from), RotationPhase::Add) => from,
            _ => &self.to,
        }
    }

    /// The roots that verifiers trust at present, in PEM.
    #[must_use]
    pub fn roots_pem(&self) -> String {
        match (&self.from, self.phase) {
            (Some(from), RotationPhase::Add | RotationPhase::Switch) => {
                let mut pem = from.roots.clone();
                let known = certificates(&from.roots).unwrap_or_default();
                let added = certificates(&self.to.roots).unwrap_or_default();
                if !added.iter().all(|root| known.contains(root)) {
                    if !pem.ends_with('\n') {
                        pem.push('\n');
                    }
                    pem.push_str(&self.to.roots);
                }
                pem
            }
            _ => self.to.roots.clone(),
        }
    }

    /// The roots that verifiers trust at present.
    pub(super) fn roots(&self) -> Vec<CertificateDer<'static>> {
        match self.phase {
            RotationPhase::Add | RotationPhase::Switch => self.all_roots(),
            RotationPhase::Stable | RotationPhase::Remove => {
                certificates(&self.to.roots).unwrap_or_default()
            }
        }
    }

    /// The roots of all phases: those of the signers before and after the rotation.
    pub(super) fn all_roots(&self) -> Vec<CertificateDer<'static>> {
        let read = |signer: &SignerPem| certificates(&signer.roots).unwrap_or_default();
        let mut all = self.from.as_ref().map(read).unwrap_or_default();
        for root in read(&self.to) {
            if !all.contains(&root) {
                all.push(root);
            }
        }
        all
    }

    /// Begins the replacement of the signer by `next`.
    ///
    /// # Errors
    /// [`RotationError::UnderWay`].
    pub fn begin(&self, next: SignerPem, now_unix_s: u64) -> Result<Self, RotationError> {
        if self.phase != RotationPhase::Stable {
            return Err(RotationError::UnderWay);
        }
        let secret = self.webhook_secret.clone().unwrap_or_else(|| webhook_secret(&self.to));
        Ok(Self {
            phase: RotationPhase::Add,
            to: next,
            from: Some(self.to.clone()),
            aborted: false,
            since_unix_s: now_unix_s,
            webhook_secret: Some(secret),
            rejected: None,
            last_request: self.last_request.clone(),
            last_refused: self.last_refused.clone(),
            revoked: self.revoked.clone(),
        })
    }

    /// The state in the next phase.
    #[must_use]
    pub fn advance(&self, now_unix_s: u64) -> Self {
        let phase = match self.phase {
            RotationPhase::Stable | RotationPhase::Remove => RotationPhase::Stable,
            RotationPhase::Add => RotationPhase::Switch,
            RotationPhase::Switch => RotationPhase::Remove,
        };
        let from = self.from.clone().filter(|_| phase != RotationPhase::Stable);
        let aborted = self.aborted && phase != RotationPhase::Stable;
        Self { phase, from, aborted, since_unix_s: now_unix_s, ..self.clone() }
    }

    /// The state after the rotation is aborted, in which it is reversed. Aborting a second time reverses it again.
    ///
    /// # Errors
    /// [`RotationError::None`].
    pub fn abort(&self, now_unix_s: u64) -> Result<Self, RotationError> {
        let Some(from) = &self.from else { return Err(RotationError::None) };
        let phase = match self.phase {
            RotationPhase::Stable => return Err(RotationError::None),
            RotationPhase::Add => RotationPhase::Remove,
            RotationPhase::Switch => RotationPhase::Switch,
            RotationPhase::Remove => RotationPhase::Add,
        };
        let aborted = !self.aborted;
        Ok(Self {
            phase,
            to: from.clone(),
            from: Some(self.to.clone()),
            aborted,
            since_unix_s: now_unix_s,
            rejected: aborted.then(|| self.to.clone()).filter(|to| !to.is_own_root()),
            ..self.clone()
        })
    }

    /// The state after the operator has renewed or replaced the issuer; `None` if there is nothing to change now.
    ///
    /// An issuer with the same roots replaces `to` at once, because verifiers already trust these roots. Another issuer
    /// begins a rotation, unless one is under way. An issuer whose rotation was aborted is ignored.
    #[must_use]
    pub fn with_issuer(&self, given: &SignerPem, now_unix_s: u64) -> Option<Self> {
        if self.to == *given || self.rejected.as_ref() == Some(given) {
            return None;
        }
        if same_roots(&self.to.roots, &given.roots) && !self.aborted {
            return Some(Self { to: given.clone(), ..self.clone() });
        }
        self.begin(given.clone(), now_unix_s).ok()
    }

    /// Parses the output of [`to_json`](Self::to_json).
    ///
    /// # Errors
    /// [`OpenError::State`]; `kept` is the place that the error names.
    pub fn from_json(kept: &Path, json: &[u8]) -> Result<Self, OpenError> {
        serde_json::from_slice(json)
            .map_err(|source| OpenError::State { path: kept.to_owned(), source })
    }

    /// The state as JSON, including keys.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers are always JSON")
    }
}

fn same_roots(one: &str, other: &str) -> bool {
    let sorted = |pem: &str| {
        certificates(pem).map(|mut roots| {
            roots.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
            roots
        })
    };
    sorted(one) == sorted(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(name: &str) -> SignerPem {
        let root = crate::authority::root::Root::generate(
            &leno_types::TrustDomain::default(),
            std::time::SystemTime::now(),
        );
        let root = root.unwrap();
        assert!(!name.is_empty());
        root.signer()
    }

    fn roots(state: &AuthorityState) -> usize {
        certificates(&state.roots_pem()).unwrap().len()
    }

    #[test]
    fn a_rotation_trusts_the_new_root_before_it_signs_and_the_old_one_while_it_has_signed() {
        let (old, new) = (signer("old"), signer("new"));
        let state = AuthorityState::stable(old.clone(), 1);
        let mut seen = vec![state.begin(new.clone(), 2).unwrap()];
        while seen.last().unwrap().phase != RotationPhase::Stable {
            seen.push(seen.last().unwrap().advance(3));
        }
        let facts = |state: &AuthorityState| {
            (state.phase, *state.signing() == old, roots(state), state.from.is_some())
        };
        assert_eq!(
            seen.iter().map(facts).collect::<Vec<_>>(),
            [
                (RotationPhase::Add, true, 2, true),
                (RotationPhase::Switch, false, 2, true),
                (RotationPhase::Remove, false, 1, true),
                (RotationPhase::Stable, false, 1, false),
            ]
        );
        assert_eq!(seen[0].begin(old.clone(), 4), Err(RotationError::UnderWay));
        assert_eq!(seen[3].abort(4), Err(RotationError::None));
        assert_eq!(seen[3].webhook_secret, Some(webhook_secret(&old)), "webhooks are called on");
    }

    #[test]
    fn an_abort_goes_back_through_phases_in_which_all_certificates_are_trusted() {
        let (old, new) = (signer("old"), signer("new"));
        let add = AuthorityState::stable(old.clone(), 1).begin(new.clone(), 2).unwrap();
        let switch = add.advance(3);
        let remove = switch.advance(4);
        for (state, phase, trusted) in [
            (&add, RotationPhase::Remove, 1),
            (&switch, RotationPhase::Switch, 2),
            (&remove, RotationPhase::Add, 2),
        ] {
            let mut back = state.abort(5).unwrap();
            assert_eq!((back.phase, roots(&back), back.aborted), (phase, trusted, true));
            // In Remove all certificates are already signed by the new root, so it continues to sign until all
            // verifiers trust the old root again.
            assert_eq!(*back.signing() == old, phase != RotationPhase::Add);
            assert_eq!(back.abort(6).unwrap().to, new, "aborted again, it goes forward");
            while back.phase != RotationPhase::Stable {
                back = back.advance(7);
            }
            assert_eq!((back.to, back.from, back.aborted), (old.clone(), None, false));
        }
    }

    #[test]
    fn a_renewed_issuer_takes_over_at_once_and_one_of_another_root_by_a_rotation() {
        let (one, other) = (signer("one"), signer("other"));
        let state = AuthorityState::stable(one.clone(), 1);
        assert_eq!(state.with_issuer(&one, 2), None);
        let renewed = SignerPem { certificates: other.certificates.clone(), ..one.clone() };
        let next = state.with_issuer(&renewed, 2).unwrap();
        assert_eq!((next.phase, &next.to), (RotationPhase::Stable, &renewed));
        let next = state.with_issuer(&other, 2).unwrap();
        assert_eq!((next.phase, &next.to), (RotationPhase::Add, &other));
        assert_eq!(next.with_issuer(&one, 3), None, "it waits for the end of the rotation");
    }

    #[test]
    fn a_revocation_covers_what_was_issued_and_is_forgotten_once_that_has_ended() {
        let state = AuthorityState::stable(signer("old"), 1);
        let web: Identity = "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap();
        let (begin, now) = (999_700, 1_000_000);
        let revoked = state.revoke(&web, begin, now).unwrap();
        assert_eq!(revoked.earliest_begin(&web), Some(begin + 1));
        let set_back = revoked.revoke(&web, begin - 600, now - 600).unwrap();
        assert_eq!(set_back, revoked, "a clock that was set back takes nothing back");
        let covers = |begin: u64| revoked.revocations().covers(&web, begin.try_into().unwrap());
        assert!(covers(begin) && !covers(begin + 1));
        let rotated = revoked.begin(signer("new"), now).unwrap().advance(now);
        assert_eq!(rotated.revocations(), revoked.revocations());
        assert_eq!(revoked.without_ended(now + 1), None);
        let later = now + MAX_LIFETIME.as_secs();
        assert!(revoked.without_ended(later).unwrap().revocations().is_empty());
    }

    #[test]
    fn the_state_survives_its_json() {
        let state = AuthorityState::stable(signer("old"), 1).begin(signer("new"), 2).unwrap();
        let place = Path::new("authority.json");
        assert_eq!(AuthorityState::from_json(place, &state.to_json()).unwrap(), state);
        let error = AuthorityState::from_json(place, b"{").unwrap_err();
        assert!(error.to_string().contains("authority.json"), "{error}");
    }
}
