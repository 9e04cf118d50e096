//! Checks of a rule's retries and session persistence (GEP-1731, GEP-1619).

use super::super::{Check, Cursor};
use crate::gateway::{CookieLifetime, HttpRetry, SessionPersistence, SessionPersistenceType};

/// The largest number of retries, as in a `TrafficPolicy`.
const MAX_ATTEMPTS: u32 = 10;

/// The longest session name, as in the Gateway API.
const MAX_NAME: usize = 128;

pub(super) fn retry(check: &mut Check<'_>, at: &Cursor<'_>, retry: &HttpRetry) {
    for (index, code) in retry.codes.iter().flatten().enumerate() {
        if !(400..=599).contains(code) {
            check.fail(&at.key("codes").index(index), format!("{code} is not from 400 to 599"));
        }
    }
    if retry.attempts.is_some_and(|attempts| attempts > MAX_ATTEMPTS) {
        check.fail(&at.key("attempts"), format!("is more than {MAX_ATTEMPTS}"));
    }
}

pub(super) fn session(check: &mut Check<'_>, at: &Cursor<'_>, session: &SessionPersistence) {
    if let Some(name) = &session.session_name {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(fits) {
            let reason = format!("{name:?} is not the name of a header or cookie");
            check.fail(&at.key("sessionName"), reason);
        }
    }
    for (key, timeout) in
        [("absoluteTimeout", session.absolute_timeout), ("idleTimeout", session.idle_timeout)]
    {
        if timeout.is_some_and(|timeout| timeout.0.is_zero()) {
            check.fail(&at.key(key), "is 0: leave it out for a session that does not expire");
        }
    }
    let Some(config) = session.cookie_config else { return };
    let of_cookie = at.key("cookieConfig");
    if session.kind == Some(SessionPersistenceType::Header) {
        check.fail(&of_cookie, "applies only to cookies: remove it, or set type: Cookie");
    }
    if config.lifetime_type == Some(CookieLifetime::Permanent) && session.absolute_timeout.is_none()
    {
        let reason = "a permanent cookie needs a time limit: set absoluteTimeout";
        check.fail(&of_cookie.key("lifetimeType"), reason);
    }
}
