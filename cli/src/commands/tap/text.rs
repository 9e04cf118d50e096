//! Prints one line per request, for people.

use leno_tap::{RequestLatency, TappedRequest};

/// The line of a request, with its headers below it.
pub(in crate::commands) fn lines(request: &TappedRequest) -> String {
    let arrow = if request.mtls { "->" } else { "-(no mTLS)->" };
    let unknown = |name: &str| if name.is_empty() { "?".to_owned() } else { name.to_owned() };
    let mut text = format!(
        "{} {} {arrow} {}  {} {}  {}",
        time(request.at_unix_us),
        unknown(&request.client),
        unknown(&request.server),
        request.method,
        address(request),
        request.status,
    );
    if let Some(status) = request.grpc_status {
        text += &format!(" (gRPC {status})");
    }
    if let Some(error) = &request.error {
        text += &format!(" {error}");
    }
    text += &format!("  {}", latency(&request.latency));
    if let Some(route) = &request.route {
        text += &format!("  {route}");
    }
    if request.retries > 0 {
        text += &format!("  retries {}", request.retries);
    }
    text += "\n";
    for (name, value) in &request.headers {
        text += &format!("    {name}: {value}\n");
    }
    text
}

fn address(request: &TappedRequest) -> String {
    match request.target.starts_with('/') {
        true => format!("{}{}", request.authority, request.target),
        false => request.target.to_string(),
    }
}

/// The latency and its parts: `12.3 ms (client proxy 0.1, network 0.2, server proxy 0.1, application 11.7,
/// response 0.2)`.
fn latency(latency: &RequestLatency) -> String {
    let parts = [
        ("client proxy", latency.client_proxy_us),
        ("network", latency.network_us),
        ("server proxy", latency.server_proxy_us),
        ("application", latency.application_us),
        ("response", latency.response_us),
    ];
    let known = parts.into_iter().filter_map(|(name, us)| Some(format!("{name} {}", ms(us?))));
    let known: Vec<String> = known.collect();
    let total = ms(latency.total_us);
    match known.is_empty() {
        true => format!("{total} ms"),
        false => format!("{total} ms ({})", known.join(", ")),
    }
}

pub(in crate::commands) fn ms(us: u64) -> String {
    format!("{}.{:02}", us / 1000, us % 1000 / 10)
}

/// The time of day, in UTC.
fn time(unix_us: u64) -> String {
    let (ms, second) = (unix_us / 1000 % 1000, unix_us / 1_000_000 % 86_400);
    format!("{:02}:{:02}:{:02}.{ms:03}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_is_known() {
        let request = TappedRequest {
            at_unix_us: 3_723_004_000,
            direction: "outbound".into(),
            client: "shop/web-0".to_owned(),
            client_identity: None,
            server: "shop/cart-0".to_owned(),
            server_identity: None,
            service: "cart".to_owned(),
            mtls: true,
            protocol: "HTTP/1.1".into(),
            method: "GET".into(),
            authority: "cart".into(),
            target: "/items".into(),
            route: Some("HTTPRoute shop/cart rule 0".into()),
            retries: 1,
            status: 503,
            grpc_status: None,
            request_bytes: 1,
            response_bytes: 2,
            error: Some("failfast".into()),
            latency: RequestLatency {
                total_us: 12_345,
                client_proxy_us: Some(90),
                ..RequestLatency::default()
            },
            headers: vec![("accept".into(), "*/*".into())],
            mark: None,
            ..TappedRequest::default()
        };
        assert_eq!(
            lines(&request),
            "01:02:03.004 shop/web-0 -> shop/cart-0  GET cart/items  503 failfast  12.34 ms (client proxy 0.09)  \
             HTTPRoute shop/cart rule 0  retries 1\n    accept: */*\n"
        );
    }
}
