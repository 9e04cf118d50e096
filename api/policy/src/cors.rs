//! The CORS protocol of the Fetch standard: what browsers may do with requests from other origins.

use leno_types::routes::Cors;

use crate::request::Request;

/// A header of the response.
pub type CorsHeader = (&'static str, Vec<u8>);

/// Whether a request is a preflight, which asks what a later request may do. The proxy answers it instead of the
/// application (Fetch, section 3.3.3).
#[must_use]
pub fn is_preflight(request: &impl Request) -> bool {
    request.method() == "OPTIONS"
        && request.header("origin").is_some()
        && request.header("access-control-request-method").is_some()
}

/// The headers of the response to a preflight. Empty if the origin is not allowed; the browser then
/// blocks the request by itself.
#[must_use]
pub fn preflight(cors: &Cors, request: &impl Request) -> Vec<CorsHeader> {
    let Some(mut lines) = allowed_origin(cors, request) else { return Vec::new() };
    let lists = [
        ("Access-Control-Allow-Methods", &cors.methods, "access-control-request-method"),
        ("Access-Control-Allow-Headers", &cors.headers, "access-control-request-headers"),
    ];
    for (name, allowed, asked) in lists {
        let value = if allowed.iter().any(|one| &**one == "*") {
            // For requests with credentials, browsers do not treat `*` as a wildcard, so the requested names are
            // returned.
            match (cors.credentials, request.header(asked)) {
                (false, _) => Some(b"*".to_vec()),
                (true, asked) => asked.map(<[u8]>::to_vec),
            }
        } else {
            (!allowed.is_empty()).then(|| allowed.join(", ").into_bytes())
        };
        lines.extend(value.map(|value| (name, value)));
    }
    lines.push(("Access-Control-Max-Age", cors.max_age_s.to_string().into_bytes()));
    lines
}

/// The headers to set on the response to a request that is not a preflight.
#[must_use]
pub fn actual(cors: &Cors, request: &impl Request) -> Vec<CorsHeader> {
    let Some(mut lines) = allowed_origin(cors, request) else { return Vec::new() };
    let all = cors.exposed.iter().any(|one| &**one == "*");
    let hidden = all && cors.credentials;
    if !cors.exposed.is_empty() && !hidden {
        let exposed = if all { "*".to_owned() } else { cors.exposed.join(", ") };
        lines.push(("Access-Control-Expose-Headers", exposed.into_bytes()));
    }
    lines
}

/// The headers that allow the origin; `None` if it is not allowed.
fn allowed_origin(cors: &Cors, request: &impl Request) -> Option<Vec<CorsHeader>> {
    let origin = request.header("origin")?;
    let any = cors.origins.iter().any(|allowed| &**allowed == "*");
    if !any && !cors.origins.iter().any(|allowed| is_origin(allowed, origin)) {
        return None;
    }
    let shown = if any && !cors.credentials { b"*".to_vec() } else { origin.to_vec() };
    let mut lines = Vec::new();
    if shown != b"*" {
        // This header prevents caches from serving one origin's response to another.
        lines.push(("Vary", b"Origin".to_vec()));
    }
    lines.push(("Access-Control-Allow-Origin", shown));
    if cors.credentials {
        lines.push(("Access-Control-Allow-Credentials", b"true".to_vec()));
    }
    Some(lines)
}

/// Whether an origin matches an allowed origin, whose host may begin with `*`. Each of the two may omit the scheme's
/// default port.
fn is_origin(allowed: &str, origin: &[u8]) -> bool {
    let Some(origin) = std::str::from_utf8(origin).ok().and_then(parts) else { return false };
    let Some(allowed) = parts(allowed) else { return false };
    let host = match allowed.host.strip_prefix('*') {
        Some(end) => {
            let own = origin.host.len().checked_sub(end.len());
            own.is_some_and(|own| own > 0 && same(origin.host.get(own..), end))
        }
        None => origin.host.eq_ignore_ascii_case(allowed.host),
    };
    host && origin.scheme == allowed.scheme && origin.port == allowed.port
}

fn same(text: Option<&str>, end: &str) -> bool {
    text.is_some_and(|text| text.eq_ignore_ascii_case(end))
}

struct Parts<'o> {
    scheme: &'o str,
    host: &'o str,
    port: u16,
}

fn parts(origin: &str) -> Option<Parts<'_>> {
    let (scheme, rest) = origin.split_once("://")?;
    let own = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    match rest.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            Some(Parts { scheme, host, port: port.parse().ok()? })
        }
        _ => Some(Parts { scheme, host: rest, port: own }),
    }
}
