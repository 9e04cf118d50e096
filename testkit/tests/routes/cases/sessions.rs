//! Tests session persistence: clients keep using the backend that has served them (GEP-1619).

use anyhow::{Context, Result};

use crate::fixture::RoutesFixture;

fn bed(session: &str) -> Result<RoutesFixture> {
    RoutesFixture::with_rules(&format!(
        "  - matches: [{{path: {{value: /shop}}}}]\n    sessionPersistence: {{{session}}}\n    \
         backendRefs: [{{name: echo-v1, port: 80}}, {{name: echo-v2, port: 80}}]\n"
    ))
}

/// The server that responds to a request with these headers, and the value of one header of the response.
fn ask(bed: &RoutesFixture, headers: &str, name: &str) -> Result<(String, Option<String>)> {
    let response = bed.send(&format!("GET /shop/cart{headers}"))?;
    assert_eq!(response.status, 200);
    let text = response.text();
    let server = text.lines().next().unwrap_or_default().to_owned();
    Ok((server, response.header(name).map(str::to_owned)))
}

#[test]
fn a_cookie_keeps_a_client_with_a_backend() -> Result<()> {
    let bed = bed("sessionName: stick, absoluteTimeout: 1h")?;
    let (server, cookie) = ask(&bed, "", "set-cookie")?;
    let cookie = cookie.context("a session begins")?;
    let (pair, attributes) = cookie.split_once("; ").context("attributes")?;
    assert!(pair.starts_with("stick="), "{cookie}");
    assert_eq!(attributes, "Path=/shop; HttpOnly; SameSite=Lax");
    for _ in 0..20 {
        let again = ask(&bed, &format!("\ncookie: a=b; {pair}"), "set-cookie")?;
        assert_eq!(again, (server.clone(), None));
    }
    // Without the cookie, both backends serve.
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..60 {
        seen.insert(ask(&bed, "", "set-cookie")?.0);
    }
    assert_eq!(seen.len(), 2);
    Ok(())
}

#[test]
fn a_session_that_is_over_begins_again() -> Result<()> {
    let bed = bed("sessionName: stick, absoluteTimeout: 1h, idleTimeout: 10m")?;
    let cookie = ask(&bed, "", "set-cookie")?.1.context("a session begins")?;
    let value = cookie.split(['=', ';']).nth(1).context("a value")?;
    let [backend, endpoint, begun, used] = value.split('.').collect::<Vec<_>>()[..] else {
        anyhow::bail!("{cookie}")
    };
    let begun = u64::from_str_radix(begun, 16)?;
    assert_eq!(u64::from_str_radix(used, 16)?, begun);
    let with = |since: u64, used: u64| -> Result<u64> {
        let value = format!("{backend}.{endpoint}.{since:x}.{used:x}");
        let cookie = ask(&bed, &format!("\ncookie: stick={value}"), "set-cookie")?.1;
        let cookie = cookie.context("idleness has to be told")?;
        let text = cookie.split('.').nth(2).context("when it began")?;
        Ok(u64::from_str_radix(text, 16)?)
    };
    // The first session continues, the second was idle for too long, and the third is too old.
    assert_eq!(with(begun - 1000, begun - 300)?, begun - 1000);
    assert!(with(begun - 1000, begun - 700)? >= begun);
    assert!(with(begun - 4000, begun)? >= begun);
    Ok(())
}

#[test]
fn a_header_keeps_a_client_with_a_backend() -> Result<()> {
    let bed = bed("type: Header, sessionName: x-session")?;
    let (server, value) = ask(&bed, "", "x-session")?;
    let value = value.context("a session begins")?;
    for _ in 0..20 {
        let again = ask(&bed, &format!("\nx-session: {value}"), "x-session")?;
        assert_eq!(again, (server.clone(), None));
    }
    Ok(())
}
