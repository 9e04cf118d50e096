//! Sends huge requests to every filter of a route. Each request must be answered.

use std::fmt::Write as _;

use crate::application::Application;
use crate::requests::{exchange, quoted};
use crate::strict;
use crate::worlds::{ProxyWorld, service};

/// The lengths of the huge part, near the sizes of buffers and limits.
const SIZES: [usize; 14] = [
    1, 900, 4_000, 8_100, 8_192, 16_000, 16_384, 17_000, 30_000, 32_700, 33_000, 60_000, 65_600,
    130_000,
];
/// The largest part that is within all limits. A request line may have 32 KiB.
const WITHIN: usize = 30_000;

/// A rule for each filter: the path, the filter, and the status of the answer to a request that is within all
/// limits.
const FILTERS: [(&str, &str, u16); 11] = [
    ("redirect", "type: RequestRedirect, requestRedirect: {scheme: https, port: 8443}", 302),
    (
        "prefix",
        "type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /LONG}}",
        302,
    ),
    (
        "host",
        "type: RequestRedirect, requestRedirect: {hostname: other.example, statusCode: 301}",
        301,
    ),
    (
        "full",
        "type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: /x}}",
        302,
    ),
    ("rewrite", "type: URLRewrite, urlRewrite: {hostname: c0z.example}", 200),
    (
        "replace",
        "type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /LONG}}",
        200,
    ),
    (
        "whole",
        "type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /LONG}}",
        200,
    ),
    (
        "cors",
        "type: CORS, cors: {allowOrigins: [\"*\"], allowMethods: [\"*\"], allowHeaders: [\"*\"], allowCredentials: true}",
        200,
    ),
    (
        "modify",
        "type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-Huge, value: LONG}], add: [{name: X-More, value: LONG}], remove: [Cookie]}",
        200,
    ),
    (
        "answer",
        "type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: X-Serial-Of, value: LONG}], add: [{name: X-More, value: LONG}]}",
        200,
    ),
    ("mirror", "type: RequestMirror, requestMirror: {backendRef: {name: copies, port: 80}}", 200),
];

/// The part of the request that is huge: the path, the query, one field, many fields, or the origin.
const PARTS: [&str; 6] = ["path", "query", "field", "fields", "origin", "preflight"];

pub(crate) fn count() -> usize {
    SIZES.len() * FILTERS.len() * PARTS.len()
}

#[test]
fn huge_requests_are_answered_by_every_filter() {
    let copies = Application::start();
    let mut routes = service("copies", copies.address);
    routes += "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
        metadata: {name: r, namespace: t}\nspec:\n  \
        parentRefs: [{group: \"\", kind: Service, name: web}]\n  rules:\n";
    for (name, filter, _) in FILTERS {
        let filter = filter.replace("LONG", &"l".repeat(900));
        writeln!(
            routes,
            "  - matches: [{{path: {{type: PathPrefix, value: /{name}}}}}]\n    \
             filters: [{{{filter}}}]\n    backendRefs: [{{name: web, port: 80}}]"
        )
        .expect("memory");
    }
    // A rule with a redirect has no backend.
    let lines: Vec<&str> = routes.lines().collect();
    let kept = lines.iter().enumerate().filter(|(at, line)| {
        !(line.contains("backendRefs") && *at > 0 && lines[at - 1].contains("RequestRedirect"))
    });
    let routes = kept.map(|(_, line)| format!("{line}\n")).collect::<String>();
    let world = ProxyWorld::outbound(&routes);
    let mut faults = Vec::new();
    let mut number = 0;
    for size in SIZES {
        for (name, _, status) in FILTERS {
            for part in PARTS {
                number += 1;
                let request = request(name, part, size, &format!("c{number}z"));
                let outcome =
                    ask(&world, &request, (size <= WITHIN).then_some((name, status, part)));
                faults.extend(outcome.err().map(|why| format!("{name} {part} {size}: {why}")));
            }
        }
    }
    world.assert_idle();
    for application in [&world.application, &copies] {
        faults.extend(
            application
                .faults()
                .iter()
                .map(|(_, fault, raw)| format!("the application reads {fault}: {}", quoted(raw))),
        );
    }
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

fn request(name: &str, part: &str, size: usize, marker: &str) -> String {
    let huge = "a".repeat(size);
    let (path, fields) = match part {
        "path" => (format!("/{name}/{huge}"), String::new()),
        "query" => (format!("/{name}?{huge}"), String::new()),
        "field" => (format!("/{name}"), format!("X-Huge: {huge}\r\nCookie: {huge}\r\n")),
        "fields" => (format!("/{name}"), "X-Y: z\r\n".repeat((size / 8).clamp(1, 90))),
        _ => (format!("/{name}"), format!("Origin: https://{huge}.example\r\n")),
    };
    let (method, asked) = match part {
        "preflight" => (
            "OPTIONS",
            format!(
                "Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: {huge}\r\n"
            ),
        ),
        _ => ("GET", String::new()),
    };
    format!("{method} {path} HTTP/1.1\r\nHost: {marker}\r\n{fields}{asked}\r\n")
}

fn ask(world: &ProxyWorld, request: &str, within: Option<(&str, u16, &str)>) -> Result<(), String> {
    let received = exchange(world.connect(), &[request.as_bytes()])?;
    let read = strict::response(&received, "GET");
    let Ok(Some((answer, used))) = read else {
        // A request that is too large may be refused before it is read completely, which may reset the connection.
        let why = format!("{:?}: {}", read.err(), quoted(&received));
        return if within.is_none() && received.is_empty() { Ok(()) } else { Err(why) };
    };
    if used != received.len() || !answer.is_whole {
        return Err(format!("the answer is not whole: {}", quoted(&received)));
    }
    let Some((name, status, part)) = within else {
        let refused = [200, 204, 301, 302, 414, 431, 500];
        let is_known = refused.contains(&answer.status());
        return if is_known { Ok(()) } else { Err(quoted(&received)) };
    };
    // Two fields or origins of 30,000 bytes exceed the limit of the whole head.
    let is_twice = answer.status() == 431 && ["field", "preflight"].contains(&part);
    let is_preflight = name == "cors" && part == "preflight" && answer.status() / 100 == 2;
    if answer.status() != status && !is_twice && !is_preflight {
        return Err(format!("{} and not {status}: {}", answer.status(), quoted(&received)));
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let kept = path.get(name.len() + 1..).unwrap_or_default();
    let location = answer.field("location").unwrap_or_default();
    if status / 100 == 3 && name != "full" && !location.ends_with(kept) {
        return Err(format!("the location is {}", quoted(location.as_bytes())));
    }
    Ok(())
}
