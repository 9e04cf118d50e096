//! Authorization policies: which are accepted, what they mean, and the errors of the others.

use std::time::Duration;

use leno_resources::{AuthorizationPolicy, Object, parse, to_yaml};
use leno_types::TrustDomain;
use leno_types::authorization::{Action, CertificateMatch, PathPermission, SegmentMatch};
use leno_types::authorizer::{AuthorizerBody, AuthorizerProtocol};

const FULL: &str = "\
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: cart, namespace: shop}
spec:
  targetRefs:
  - {group: '', kind: Service, name: cart, sectionName: http}
  - {group: leno.dev, kind: Workload, name: cart}
  - {group: '', kind: Namespace, name: shop}
  action: Allow
  rules:
  - from:
    - {serviceAccounts: [web, bank/teller]}
    - {identities: [{exact: 'spiffe://other/ns/a/sa/b'}, {prefix: 'spiffe://cluster.local/ns/shop'}]}
    - {namespaces: [bank], trustDomains: [cluster.local, other]}
    - {ipBlocks: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}], unauthenticated: true}
    - {certificate: {maxAge: 12h, minAge: 10m, minLeft: 1h30m, maxLeft: 20h}}
    to:
    - {ports: [8080], methods: [GET, HEAD], hosts: [cart, '*.example.com'], paths: [{exact: /a}, {prefix: /b/}]}
    - {headers: [{name: X-Role, values: [admin]}, {name: x-team}]}
    - {grpc: [{service: shop.v1.Cart}, {service: shop.v1.Cart, method: Add}, {method: Check}]}
    - {serverNames: [db.shop]}
  - {}
";

fn policy(text: &str) -> AuthorizationPolicy {
    let documents = parse("a.yaml", text).unwrap_or_else(|problems| panic!("{problems:?}"));
    match &documents.objects[0].value {
        Object::AuthorizationPolicy(policy) => (**policy).clone(),
        other => panic!("{other:?}"),
    }
}

/// The problems of a policy of `shop` with this spec: line, path and reason.
fn problems(spec: &str) -> Vec<String> {
    let head = "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
                metadata: {name: p, namespace: shop}\nspec:\n";
    let text = format!("{head}{spec}");
    let problems = parse("a.yaml", &text).err().unwrap_or_default();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn every_field_is_read_and_written() {
    let read = policy(FULL);
    let written = to_yaml(&Object::AuthorizationPolicy(Box::new(read.clone())));
    assert_eq!(policy(&written), read);
}

#[test]
fn a_policy_means_what_it_says() {
    let meaning = policy(FULL).policy(&TrustDomain::default());
    assert_eq!(meaning.action, Action::Allow);
    let [first, second] = &meaning.rules[..] else { panic!("{meaning:?}") };
    assert!(second.from.is_empty() && second.to.is_empty());
    let [accounts, identities, namespaces, blocks, times] = &first.from[..] else { panic!() };
    let minutes = |minutes| Some(Duration::from_mins(minutes));
    let expected = CertificateMatch {
        max_age: minutes(720),
        min_age: minutes(10),
        min_left: minutes(90),
        max_left: minutes(1200),
    };
    assert_eq!(times.certificate, expected);
    assert_eq!(blocks.certificate, CertificateMatch::default());
    let mesh = [TrustDomain::default()];
    assert_eq!(accounts.service_accounts[0], ("shop".into(), "web".into()));
    assert_eq!(accounts.service_accounts[1], ("bank".into(), "teller".into()));
    assert_eq!(accounts.trust_domains, mesh, "of the mesh unless it says otherwise");
    assert!(identities.trust_domains.is_empty());
    assert_eq!(namespaces.trust_domains.len(), 2);
    assert!(blocks.unauthenticated && blocks.blocks.len() == 1);
    let exact = |text: &str| PathPermission::Segment(SegmentMatch::Exact(text.into()));
    let prefix = |text: &str| PathPermission::Segment(SegmentMatch::Prefix(text.into()));
    assert_eq!(first.to[0].paths, [exact("/a"), prefix("/b")]);
    assert_eq!(&*first.to[1].headers[0].name, "x-role");
    let calls = [
        prefix("/shop.v1.Cart"),
        exact("/shop.v1.Cart/Add"),
        PathPermission::GrpcMethod("Check".into()),
    ];
    assert_eq!(first.to[2].paths, calls);
}

#[test]
fn a_selector_stands_for_targets() {
    let one = "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\n\
               spec: {selector: {matchLabels: {app: cart}}}\n";
    let read = policy(one);
    assert_eq!(read.spec.selector.unwrap().match_labels["app"], "cart");
    assert!(read.spec.rules.is_empty(), "permits nothing");
}

/// Parts of a spec, each with a part of the error that it causes.
const MISTAKES: &[(&str, &str)] = &[
    (
        "  action: Deny\n",
        "spec.rules: is empty, so the policy denies nothing: add a rule, {} for everything",
    ),
    (
        "  action: Audit\n",
        "spec.rules: is empty, so the policy audits nothing: add a rule, {} for everything",
    ),
    (
        "  rules: [{from: [{}]}]\n",
        "spec.rules[0].from[0]: names no client: leave from out for every client, or set unauthenticated: true for clients without an identity",
    ),
    (
        "  rules: [{from: [{namespaces: [a], unauthenticated: true}]}]\n",
        "unauthenticated: has no effect with conditions on an identity: use an entry of its own",
    ),
    (
        "  rules: [{from: [{certificate: {maxAge: 1h}, unauthenticated: true}]}]\n",
        "unauthenticated: has no effect with conditions on an identity: use an entry of its own",
    ),
    (
        "  rules: [{from: [{certificate: {}}]}]\n",
        "certificate: requires nothing: leave it out for every certificate",
    ),
    (
        "  rules: [{from: [{certificate: {minLeft: 1500ms}}]}]\n",
        "certificate.minLeft: is not a number of seconds: use for example 1h",
    ),
    (
        "  rules: [{from: [{certificate: {minAge: 2h, maxAge: 1h}}]}]\n",
        "certificate.minAge: is more than maxAge: no certificate matches",
    ),
    (
        "  rules: [{from: [{certificate: {maxAge: 5m}}]}]\n",
        "certificate.maxAge: is not more than 5m: certificates begin to hold 5m before they are issued",
    ),
    (
        "  rules: [{from: [{identities: [{exact: a, prefix: b}]}]}]\n",
        "identities[0]: must have exactly one of exact and prefix",
    ),
    (
        "  rules: [{from: [{identities: [{prefix: 'https://a'}]}]}]\n",
        "identities[0].prefix: \"https://a\" is not the beginning of an identity",
    ),
    (
        "  rules: [{from: [{identities: [{exact: 'spiffe://a/b'}]}]}]\n",
        "is not of the form spiffe://<trust-domain>/ns/<namespace>/sa/<service-account>",
    ),
    ("  rules: [{from: [{serviceAccounts: [A/b]}]}]\n", ": use NAMESPACE/NAME, or NAME"),
    (
        "  rules: [{from: [{ipBlocks: [{cidr: 10.0.0.1/8}]}]}]\n",
        "\"10.0.0.1/8\" has bits after the prefix: use 10.0.0.0/8",
    ),
    (
        "  rules: [{from: [{ipBlocks: [{cidr: 10.0.0.0/8, except: [11.0.0.0/16]}]}]}]\n",
        "11.0.0.0/16 is not a part of 10.0.0.0/8",
    ),
    ("  rules: [{to: [{}]}]\n", "to[0]: requires nothing: leave to out for everything"),
    ("  rules: [{to: [{ports: [0]}]}]\n", "0 is not a port: use 1 to 65535"),
    (
        "  rules: [{to: [{methods: [get]}]}]\n",
        "\"get\" is not GET, as methods are case-sensitive: use GET",
    ),
    (
        "  rules: [{to: [{methods: ['*']}]}]\n",
        "\"*\" is not a method: leave methods out for every method",
    ),
    (
        "  rules: [{to: [{paths: [{prefix: '/adm*'}]}]}]\n",
        "\"/adm*\" ends in *, which stands for itself: a prefix is whole segments without *",
    ),
    (
        "  rules: [{from: []}]\n",
        "is empty: leave it out for everything, or name at least one entry",
    ),
    ("  rules: [{to: []}]\n", "is empty: leave it out for everything, or name at least one entry"),
    (
        "  rules: [{to: [{hosts: ['a:80']}]}]\n",
        "\"a:80\" is not a host: use a name in lower case without port, or *.NAME",
    ),
    (
        "  rules: [{to: [{paths: [{prefix: admin}]}]}]\n",
        "\"admin\" begins without a slash, and requests with such a path are denied",
    ),
    (
        "  rules: [{to: [{paths: [{exact: '/a?b=1'}]}]}]\n",
        "\"/a?b=1\" has a query: paths are compared without",
    ),
    (
        "  rules: [{to: [{paths: [{exact: '/a%20b'}]}]}]\n",
        "\"/a%20b\" has an escape: write the character itself",
    ),
    (
        "  rules: [{to: [{paths: [{exact: '/a/../b'}]}]}]\n",
        "\"/a/../b\" has a segment . or .., and requests with such a path are denied",
    ),
    (
        "  rules: [{to: [{headers: [{name: x-role, values: [admin, \" ops\\t\"]}]}]}]\n",
        "headers[0].values[1]: \" ops\\t\" matches no header, as white space at the ends of a value is not part of it: use \"ops\"",
    ),
    ("  rules: [{to: [{headers: [{name: Host}]}]}]\n", "is the authority of a request: use hosts"),
    (
        "  rules: [{to: [{headers: [{name: leno-h1}]}]}]\n",
        "leno-h1 of clients is removed, so that nothing matches: use from",
    ),
    (
        "  rules: [{to: [{headers: [{name: Connection}]}]}]\n",
        "connection is of the connection, not of the request: use another header",
    ),
    (
        "  rules: [{to: [{serverNames: [a], methods: [GET]}]}]\n",
        "serverNames: cannot match together with conditions on requests",
    ),
    ("  rules: [{to: [{grpc: [{}]}]}]\n", "names no call: set service, method or both"),
    (
        "  rules: [{to: [{grpc: [{service: a}], paths: [{exact: /a}]}]}]\n",
        "grpc: is a path already: use either grpc or paths",
    ),
    ("  rules: [{when: [{key: a}]}]\n", "spec.rules[0].when: unknown field"),
];

#[test]
fn mistakes_are_told_with_their_line_and_what_to_write() {
    const TARGET: &str = "  selector: {}\n";
    for (spec, expected) in [
        (
            "  rules: [{}]\n",
            "a.yaml:5:3: spec.targetRefs: is empty, so the policy has no effect: name at least one target, or set selector",
        ),
        (
            "  selector: {}\n  targetRefs: [{group: leno.dev, kind: Workload, name: a}]\n",
            "a.yaml:5:13: spec.selector: has no effect with targetRefs: use one of the two",
        ),
        (
            "  targetRefs: [{group: '', kind: Namespace, name: bank}]\n",
            "a.yaml:5:51: spec.targetRefs[0].name: \"bank\" is another namespace: a policy is of the namespace that it applies to",
        ),
        (
            "  targetRefs: [{group: leno.dev, kind: Mesh, name: all}]\n",
            "a.yaml:5:52: spec.targetRefs[0].name: \"all\" is not the mesh: use mesh",
        ),
    ] {
        assert_eq!(problems(spec), [expected], "{spec}");
    }
    for (rest, expected) in MISTAKES {
        let found = problems(&format!("{TARGET}{rest}"));
        assert!(found.len() == 1 && found[0].contains(expected), "{rest}{found:#?}\n{expected}");
    }
}

#[test]
fn the_default_is_of_a_namespace() {
    let namespace = |value: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, annotations: {{leno.dev/default-authorization: {value}}}}}\n"
        )
    };
    for value in ["deny", "same-namespace", "meshed", "all"] {
        parse("a.yaml", &namespace(value)).unwrap();
    }
    let problems = parse("a.yaml", &namespace("denied")).unwrap_err();
    let expected = "\"denied\" is not one of deny, same-namespace, meshed, all";
    assert!(problems[0].to_string().contains(expected), "{problems:?}");
    let workload = "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
        metadata: {name: a, annotations: {leno.dev/default-authorization: deny}}\nspec: {command: [a]}\n";
    let problems = parse("a.yaml", workload).unwrap_err();
    assert!(problems[0].to_string().contains("is for a Namespace"), "{problems:?}");
}

#[test]
fn an_application_reads_paths_in_a_way_that_is_known() {
    let workload = |value: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
             metadata: {{name: a, annotations: {{leno.dev/path-normalisation: '{value}'}}}}\nspec: {{command: [a]}}\n"
        )
    };
    for value in ["strict", "none", "merge-slashes", "resolve-dots,decode-slashes"] {
        parse("a.yaml", &workload(value)).unwrap();
    }
    let problems = parse("a.yaml", &workload("merge")).unwrap_err();
    let expected =
        "\"merge\" is not a setting for paths: use strict, none, or a list of merge-slashes";
    assert!(problems[0].to_string().contains(expected), "{problems:?}");
}

/// A set with one key of Ed25519.
const JWKS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc"}]}"#;

#[test]
fn tokens_are_of_issuers_with_public_keys() {
    let text = format!(
        "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
         metadata: {{name: p, namespace: shop}}\nspec:\n  selector: {{}}\n  tokens:\n  \
         - {{issuer: 'https://id', audiences: [a, b], jwks: '{JWKS}', header: X-Token, clockSkew: 10s}}\n  \
         - {{issuer: 'https://id2', audiences: [a], jwks: '{JWKS}'}}\n  \
         - {{issuer: 'https://id3', audiences: [a], jwksUrl: 'https://id3/keys?a=b'}}\n  \
         - {{issuer: 'https://id4', audiences: [a], jwksConfigMap: keys, claimHeaders: [{{name: X-User, claim: a.b}}]}}\n  \
         - {{issuer: 'https://id5', audiences: [a], jwksSecret: keys}}\n  \
         rules: [{{claims: [{{name: groups, values: [ops]}}, {{name: sub}}]}}]\n"
    );
    let read = policy(&text);
    let written = to_yaml(&Object::AuthorizationPolicy(Box::new(read.clone())));
    assert_eq!(policy(&written), read);
    let meaning = read.policy(&TrustDomain::default());
    let [first, second, third, fourth, fifth] = &meaning.tokens[..] else { panic!("{meaning:?}") };
    assert_eq!((&*first.header, first.clock_skew.as_secs()), ("x-token", 10));
    assert_eq!((&*second.header, second.clock_skew.as_secs()), ("authorization", 30));
    assert_eq!((first.keys.len(), first.keys[0].algorithm.as_str()), (1, "EdDSA"));
    assert!(third.keys.is_empty(), "keys that are still to be fetched");
    assert!(fourth.keys.is_empty() && fifth.keys.is_empty(), "keys that are still to be read");
    let [header] = &fourth.claim_headers[..] else { panic!("{fourth:?}") };
    assert_eq!((&*header.header, &*header.claim), ("x-user", "a.b"));
    assert_eq!(first.keys[0].id.as_deref(), Some("a"));
    assert_eq!(meaning.rules[0].claims.len(), 2);
}

#[test]
fn keys_that_are_not_to_be_used_are_refused() {
    let issuer = format!("issuer: i, audiences: [a], jwks: '{JWKS}'");
    for (rest, expected) in [
        (
            "  tokens: [{issuer: i, audiences: [a], jwksUrl: 'http://id:9000.evil/'}]\n".to_owned(),
            "jwksUrl: is no URL",
        ),
        (
            format!("  tokens: [{{{}}}]\n", issuer.replace("\"kid\"", "\"d\":\"AA\",\"kid\"")),
            "jwks: key 0 has a private part, with which every reader of the set can sign tokens: have the issuer replace",
        ),
    ] {
        let found = problems(&format!("  selector: {{}}\n{rest}"));
        assert!(found.len() == 1 && found[0].contains(expected), "{rest}{found:#?}\n{expected}");
    }
}

#[test]
fn tokens_that_would_not_hold_are_refused() {
    let issuer = format!("issuer: i, audiences: [a], jwks: '{JWKS}'");
    for (rest, expected) in [
        ("  rules: [{claims: [{name: sub}]}]\n".to_owned(), "claims: has no effect without tokens"),
        (
            format!("  action: Deny\n  rules: [{{}}]\n  tokens: [{{{issuer}}}]\n"),
            "by omitting its token",
        ),
        (format!("  tokens: [{{audiences: [a], jwks: '{JWKS}'}}]\n"), "issuer: is empty"),
        (
            format!("  tokens: [{{issuer: i, jwks: '{JWKS}'}}]\n"),
            "audiences: is empty: a token for",
        ),
        ("  tokens: [{issuer: i, audiences: [a]}]\n".to_owned(), "jwks: is not a set of keys"),
        (
            format!("  tokens: [{{{issuer}, jwksUrl: 'https://id/keys'}}]\n"),
            "jwksUrl: is the same",
        ),
        (
            "  tokens: [{issuer: i, audiences: [a], jwksUrl: 'https://u:p@id/keys'}]\n".to_owned(),
            "jwksUrl: is no URL",
        ),
        (
            "  tokens: [{issuer: i, audiences: [a], jwksUrl: 'file:///keys'}]\n".to_owned(),
            "jwksUrl: is no URL",
        ),
        (
            format!("  tokens: [{{{issuer}, jwksConfigMap: keys}}]\n"),
            "jwksConfigMap: is the same as jwks",
        ),
        (
            "  tokens: [{issuer: i, audiences: [a], jwksConfigMap: keys, jwksUrl: 'https://i/k'}]\n"
                .to_owned(),
            "jwksUrl: is the same",
        ),
        (
            "  tokens: [{issuer: i, audiences: [a], jwksConfigMap: keys, jwksSecret: keys}]\n"
                .to_owned(),
            "jwksSecret: is the same as jwksConfigMap",
        ),
        ("  tokens: [{issuer: i, audiences: [a], jwksSecret: 'a/b'}]\n".to_owned(), "jwksSecret: "),
        (
            "  tokens: [{issuer: i, audiences: [a], jwksConfigMap: 'a/b'}]\n".to_owned(),
            "jwksConfigMap: ",
        ),
        (
            format!("  tokens: [{{{issuer}, claimHeaders: [{{name: leno-user, claim: sub}}]}}]\n"),
            "claimHeaders[0].name: leno-user of clients is removed",
        ),
        (
            format!("  tokens: [{{{issuer}, claimHeaders: [{{name: Authorization, claim: sub}}]}}]\n"),
            "claimHeaders[0].name: carries the token",
        ),
        (
            format!("  tokens: [{{{issuer}, claimHeaders: [{{name: x-user}}]}}]\n"),
            "claimHeaders[0].claim: is empty",
        ),
        (format!("  tokens: [{{{issuer}, clockSkew: 6m}}]\n"), "clockSkew: is more than 5m"),
        (
            format!("  tokens: [{{{issuer}, header: leno-x}}]\n"),
            "header: leno-x of clients is removed",
        ),
    ] {
        let found = problems(&format!("  selector: {{}}\n{rest}"));
        assert!(found.len() == 1 && found[0].contains(expected), "{rest}{found:#?}\n{expected}");
    }
}

#[test]
fn only_the_namespace_of_the_control_plane_says_where_keys_come_from() {
    let namespace = |value: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: leno-system, annotations: {{leno.dev/keys-from: \"{value}\"}}}}\n"
        );
        parse("n.yaml", &text).err().map(|problems| problems[0].to_string())
    };
    assert_eq!(namespace("https://id.example.com, http://10.0.0.1:8080"), None);
    for wrong in
        ["id.example.com", "https://id/keys", "https://u@id", "ftp://id", "http://id:9000.evil"]
    {
        let said = namespace(wrong).unwrap_or_default();
        assert!(said.contains("is not an origin"), "{wrong}: {said}");
    }
}

#[test]
fn where_certificates_come_from_is_a_socket_or_off() {
    let namespace = |value: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, annotations: {{leno.dev/spiffe-endpoint-socket: '{value}'}}}}\n"
        );
        parse("n.yaml", &text).err().map(|problems| problems[0].to_string())
    };
    assert_eq!((namespace("off"), namespace("unix:///run/a.sock")), (None, None));
    let said = namespace("/run/a.sock").unwrap_or_default();
    assert!(said.contains("use unix:///PATH") && said.contains("or off"), "{said}");
}

const EXTERNAL: &str = "  selector: {}
  action: External
  rules: [{to: [{paths: [{prefix: /api}]}]}]
";

#[test]
fn an_external_authorizer_is_a_service_with_defaults() {
    let text = |spec: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
             metadata: {{name: p, namespace: shop}}\nspec:\n{EXTERNAL}{spec}"
        )
    };
    let meaning = |spec: &str| {
        let read = policy(&text(spec));
        let written = to_yaml(&Object::AuthorizationPolicy(Box::new(read.clone())));
        assert_eq!(policy(&written), read);
        let meaning = read.policy(&TrustDomain::default());
        assert_eq!(meaning.action, Action::External);
        meaning.external.unwrap()
    };
    let few = meaning("  external: {backendRef: {name: opa, port: 9191}}\n");
    assert_eq!((few.service.to_string().as_str(), few.port), ("shop/opa", 9191));
    assert_eq!(few.protocol, AuthorizerProtocol::Grpc);
    assert_eq!((few.timeout.as_millis(), few.permits_on_failure), (1000, false));
    assert!(few.sent.is_none() && few.on_request.is_empty() && few.on_response.is_empty());
    let all = meaning(
        "  external:
    backendRef: {name: opa, namespace: auth, port: 80}
    protocol: Http
    timeout: 250ms
    onFailure: Allow
    pathPrefix: /check
    headers: {sent: [Authorization], onRequest: [X-User], onResponse: [Set-Cookie]}
    body: {maxBytes: 1024, onLarger: Truncate}
",
    );
    assert_eq!((all.service.to_string().as_str(), &*all.path_prefix), ("auth/opa", "/check"));
    assert_eq!((all.timeout.as_millis(), all.permits_on_failure), (250, true));
    assert_eq!(all.sent.as_deref().unwrap_or_default(), ["authorization".into()]);
    assert_eq!((&*all.on_request[0], &*all.on_response[0]), ("x-user", "set-cookie"));
    let body = AuthorizerBody { max_bytes: 1024, partial: true, as_bytes: false };
    assert_eq!((few.body, all.body), (None, Some(body)));
}

#[test]
fn mistakes_of_external_authorizers_are_told() {
    for (spec, expected) in [
        ("", "spec.external: is missing: name the service that decides"),
        ("  external: {backendRef: {port: 80}}\n", "spec.external.backendRef.name: "),
        ("  external: {backendRef: {name: opa}}\n", "backendRef.port: 0 is not a port"),
        (
            "  external: {backendRef: {name: opa, port: 80}, timeout: 11s}\n",
            "is not between 1ms and 10s",
        ),
        (
            "  external: {backendRef: {name: opa, port: 80}, timeout: 0s}\n",
            "is not between 1ms and 10s",
        ),
        (
            "  external: {backendRef: {name: opa, port: 80}, pathPrefix: /x}\n",
            "spec.external.pathPrefix: has no effect with protocol Grpc: remove it",
        ),
        (
            "  external: {backendRef: {name: opa, port: 80}, protocol: Http, pathPrefix: '/x?'}\n",
            "is not a path prefix: use one such as /check",
        ),
        (
            "  external: {backendRef: {name: opa, port: 80}, headers: {onRequest: [Leno-Error]}}\n",
            "spec.external.headers.onRequest[0]: leno-error of clients is removed",
        ),
        (
            "  external: {backendRef: {name: opa, port: 80}, body: {maxBytes: 65537}}\n",
            "spec.external.body.maxBytes: is not between 1 and 65536",
        ),
        (
            "  external: {backendRef: {name: opa, port: 80}, body: {}}\n",
            "spec.external.body.maxBytes: is not between 1 and 65536",
        ),
        (
            "  external: {backendRef: {name: opa, port: 80}, protocol: Http, \
             body: {maxBytes: 1, packAsBytes: true}}\n",
            "spec.external.body.packAsBytes: has no effect with protocol Http",
        ),
        (
            "  external: {backendRef: {name: opa, port: 80}, header: {}}\n",
            "external.header: unknown field",
        ),
        (
            "  external: {backendRef: {name: opa, port: 80}}\n  tokens: [{issuer: a, audiences: [b]}]\n",
            "spec.tokens: a client could evade the authorizer by omitting its token",
        ),
    ] {
        let found = problems(&format!("{EXTERNAL}{spec}"));
        assert!(found.iter().any(|one| one.contains(expected)), "{spec}{found:#?}\n{expected}");
    }
    for (spec, expected) in [
        (
            "  selector: {}\n  rules: [{}]\n  external: {backendRef: {name: opa, port: 80}}\n",
            "spec.external: has no effect with action Allow: use External",
        ),
        (
            "  selector: {}\n  action: External\n  external: {backendRef: {name: opa, port: 80}}\n",
            "spec.rules: is empty, so the policy asks about nothing",
        ),
        (
            "  selector: {}\n  action: External\n  rules: [{to: [{serverNames: [a]}]}]\n  \
             external: {backendRef: {name: opa, port: 80}}\n",
            "serverNames: are of connections, and an authorizer decides on requests: remove them",
        ),
    ] {
        let found = problems(spec);
        assert!(found.len() == 1 && found[0].contains(expected), "{spec}{found:#?}\n{expected}");
    }
}

#[test]
fn of_a_secret_nothing_is_read_but_keys_of_tokens() {
    let set = JWKS.replace('\'', "''");
    let text = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: keys, namespace: shop}}\n\
         stringData: {{jwks.json: '{set}', password: hunter2}}\n\
         ---\napiVersion: v1\nkind: Secret\nmetadata: {{name: other}}\ndata: {{password: '!'}}\n"
    );
    let documents = parse("p.yaml", &text).unwrap();
    let [object] = &documents.objects[..] else { panic!("{documents:?}") };
    let Object::Secret(secret) = &object.value else { panic!("{object:?}") };
    let data = secret.data.as_ref().unwrap();
    assert_eq!((data.len(), data["jwks.json"].0.as_slice()), (1, JWKS.as_bytes()));
    let written = to_yaml(&object.value);
    assert!(!written.contains("hunter2"), "{written}");
    assert_eq!(parse("p.yaml", &written).unwrap().objects[0].value, object.value);
    assert_eq!(documents.ignored.len(), 1, "a Secret without keys");
}
