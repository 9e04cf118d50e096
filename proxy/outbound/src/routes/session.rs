//! Sessions of a rule: the backend and endpoint on which a client's requests stay (GEP-1619).
//!
//! The client's cookie or header has the whole state of a session: `BACKEND.ENDPOINT.BEGUN.USED`, in hexadecimal
//! digits, with times in seconds of Unix time. Nothing in it is secret: a client that invents a session only reaches an
//! endpoint of the rule.

use std::time::{Duration, SystemTime};

use leno_http::{HeaderLine, RequestView};
use leno_types::routes::SessionAffinity;

use crate::policy::cookie;

/// The session of a request. It has not expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestSession {
    /// The lower half of [`leno_balance::hash`] of the backend's name.
    pub(super) backend: u32,
    /// The endpoint's key.
    pub(crate) endpoint: u64,
    begun: u64,
    used: u64,
}

/// The present time in seconds of Unix time.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The session of a request; `None` if it has no session, or an expired one.
pub(super) fn read(
    session: &SessionAffinity,
    request: RequestView<'_>,
    now: u64,
) -> Option<RequestSession> {
    let value = match session.is_header {
        true => request.header(&session.name)?,
        false => cookie(request, &session.name)?,
    };
    let kept = RequestSession::parse(std::str::from_utf8(value).ok()?)?;
    let is_over = |bound: Option<Duration>, since: u64| {
        bound.is_some_and(|bound| now.saturating_sub(since) > bound.as_secs())
    };
    (!is_over(session.absolute, kept.begun) && !is_over(session.idle, kept.used)).then_some(kept)
}

/// The header line that sends the session to the client; `None` if the client already has it.
pub(super) fn line(
    session: &SessionAffinity,
    kept: Option<RequestSession>,
    (backend, endpoint, path): (u32, u64, &[u8]),
    now: u64,
) -> Option<HeaderLine> {
    let same = kept.filter(|kept| kept.backend == backend && kept.endpoint == endpoint);
    // If sessions end when they are idle, each response must send the time of the last use.
    if same.is_some() && session.idle.is_none() {
        return None;
    }
    let begun = same.map_or(now, |kept| kept.begun);
    let value = RequestSession { backend, endpoint, begun, used: now }.text();
    if session.is_header {
        return HeaderLine::new(&session.name, value.as_bytes()).ok();
    }
    let mut cookie = format!("{}={value}; Path=", session.name).into_bytes();
    cookie.extend_from_slice(path);
    cookie.extend_from_slice(b"; HttpOnly; SameSite=Lax");
    if let Some(absolute) = session.absolute.filter(|_| session.is_permanent) {
        let left = absolute.as_secs().saturating_sub(now.saturating_sub(begun));
        cookie.extend_from_slice(format!("; Max-Age={left}").as_bytes());
    }
    HeaderLine::new("Set-Cookie", &cookie).ok()
}

impl RequestSession {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let mut next = || u64::from_str_radix(parts.next()?, 16).ok();
        let kept = Self {
            backend: u32::try_from(next()?).ok()?,
            endpoint: next()?,
            begun: next()?,
            used: next()?,
        };
        parts.next().is_none().then_some(kept)
    }

    fn text(self) -> String {
        format!("{:08x}.{:016x}.{:x}.{:x}", self.backend, self.endpoint, self.begun, self.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(absolute: Option<u64>, idle: Option<u64>) -> SessionAffinity {
        let seconds = |time: Option<u64>| time.map(Duration::from_secs);
        SessionAffinity {
            name: "s".into(),
            absolute: seconds(absolute),
            idle: seconds(idle),
            is_permanent: absolute.is_some(),
            ..SessionAffinity::default()
        }
    }

    fn told(session: &SessionAffinity, kept: Option<RequestSession>, now: u64) -> Option<String> {
        let line = line(session, kept, (7, 9, b"/a"), now)?;
        Some(String::from_utf8(line.as_bytes().to_vec()).unwrap().trim_end().to_owned())
    }

    #[test]
    fn what_is_told_is_read_back() {
        let kept = RequestSession { backend: u32::MAX, endpoint: u64::MAX, begun: 1, used: 2 };
        assert_eq!(RequestSession::parse(&kept.text()), Some(kept));
        for wrong in ["", "1.2.3", "1.2.3.4.5", "x.2.3.4", "100000000.2.3.4", "1.2.3.-4"] {
            assert_eq!(RequestSession::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_session_is_told_once_and_each_time_where_idleness_ends_it() {
        let first =
            "Set-Cookie: s=00000007.0000000000000009.64.64; Path=/a; HttpOnly; SameSite=Lax";
        let same = Some(RequestSession { backend: 7, endpoint: 9, begun: 100, used: 100 });
        assert_eq!(told(&session(None, None), None, 100).as_deref(), Some(first));
        assert_eq!(told(&session(None, None), same, 110), None);
        let idle = told(&session(None, Some(60)), same, 110).unwrap();
        assert!(idle.contains("s=00000007.0000000000000009.64.6e;"), "{idle}");
        let permanent = told(&session(Some(60), Some(60)), same, 110).unwrap();
        assert!(permanent.ends_with("; Max-Age=50"), "{permanent}");
        // When its endpoint changes, a session begins again.
        let other = Some(RequestSession { backend: 7, endpoint: 8, begun: 50, used: 100 });
        assert_eq!(told(&session(None, None), other, 100).as_deref(), Some(first));
    }
}
