//! Generates routes of every shape.

use std::sync::Arc;
use std::time::Duration;

use leno_types::ServiceName;
use leno_types::routes::{
    Cors, Filter, HeaderChanges, InvalidTarget, Mirror, PathChange, PathMatch, Redirect, Rewrite,
    Route, RouteBackend, RouteKind, RouteMatch, RouteRetry, RouteRule, RouteTarget, RouteTimeouts,
    SessionAffinity, TextMatch, ValueMatch,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

fn text() -> impl Strategy<Value = Arc<str>> {
    "[a-z/]{1,6}".prop_map(Into::into)
}

fn text_match() -> impl Strategy<Value = TextMatch> {
    prop_oneof![text().prop_map(TextMatch::Exact), text().prop_map(TextMatch::Regex)]
}

fn value_matches() -> impl Strategy<Value = Vec<ValueMatch>> {
    let one = (text(), text_match()).prop_map(|(name, value)| ValueMatch { name, value });
    vec(one, 0..3)
}

fn path_match() -> impl Strategy<Value = PathMatch> {
    let grpc = (option::of(text_match()), option::of(text_match()));
    prop_oneof![
        text().prop_map(PathMatch::Exact),
        text().prop_map(PathMatch::Prefix),
        text().prop_map(PathMatch::Regex),
        grpc.prop_map(|(service, method)| PathMatch::Grpc { service, method }),
    ]
}

prop_compose! {
    fn matched()(
        path in path_match(),
        method in option::of(text()),
        headers in value_matches(),
        query in value_matches(),
    ) -> RouteMatch {
        RouteMatch { path, method, headers, query }
    }
}

fn target() -> impl Strategy<Value = RouteTarget> {
    let service = ("[a-z]{1,4}", "[a-z]{1,4}", 1_u16..).prop_map(|(namespace, name, port)| {
        RouteTarget::Service { name: ServiceName::new(&namespace, &name).unwrap(), port }
    });
    let reasons = vec![
        InvalidTarget::NotFound,
        InvalidTarget::NoSuchPort,
        InvalidTarget::NotGranted,
        InvalidTarget::Kind,
    ];
    prop_oneof![service, select(reasons).prop_map(RouteTarget::Invalid)]
}

fn changes() -> impl Strategy<Value = HeaderChanges> {
    let list = || vec((text(), text()), 0..3);
    (list(), list(), vec(text(), 0..3)).prop_map(|(set, add, remove)| HeaderChanges {
        set,
        add,
        remove,
    })
}

fn path_change() -> impl Strategy<Value = PathChange> {
    let maybe_empty = || "[a-z/]{0,6}".prop_map(Arc::<str>::from);
    prop_oneof![
        maybe_empty().prop_map(PathChange::Full),
        maybe_empty().prop_map(PathChange::Prefix)
    ]
}

prop_compose! {
    fn redirect()(
        scheme in option::of(text()),
        hostname in option::of(text()),
        path in option::of(path_change()),
        port in option::of(1_u16..),
        status in select(vec![301_u16, 302, 303, 307, 308]),
    ) -> Redirect {
        Redirect { scheme, hostname, path, port, status }
    }
}

prop_compose! {
    fn cors()(
        lists in [vec(text(), 0..3), vec(text(), 0..3), vec(text(), 0..3), vec(text(), 0..3)],
        credentials: bool,
        max_age_s: u32,
    ) -> Cors {
        let [origins, methods, headers, exposed] = lists;
        Cors { origins, credentials, methods, headers, exposed, max_age_s }
    }
}

fn filters() -> impl Strategy<Value = Vec<Filter>> {
    let rewrite = (option::of(text()), option::of(path_change()));
    let mirror = (target(), any::<u32>(), 1_u32..);
    let one = prop_oneof![
        changes().prop_map(Filter::RequestHeaders),
        changes().prop_map(Filter::ResponseHeaders),
        redirect().prop_map(Filter::Redirect),
        rewrite.prop_map(|(hostname, path)| Filter::Rewrite(Rewrite { hostname, path })),
        mirror.prop_map(|(target, numerator, denominator)| {
            Filter::Mirror(Mirror { target, numerator, denominator })
        }),
        cors().prop_map(Filter::Cors),
    ];
    vec(one, 0..3)
}

prop_compose! {
    fn rule()(
        name in option::of(text()),
        matches in vec(matched(), 0..3),
        filters in filters(),
        backends in vec((target(), any::<u32>(), self::filters()), 0..3),
        timeouts in (option::of(1_u64..), option::of(1_u64..)),
        retry in option::of((vec(400_u16..600, 0..3), option::of(0_u32..10), option::of(1_u64..))),
        session in option::of((text(), any::<(bool, bool)>(), option::of(1_u64..))),
    ) -> RouteRule {
        let retry = retry.map(|(codes, attempts, backoff)| RouteRetry {
            codes, attempts, backoff: backoff.map(Duration::from_millis),
        });
        let session = session.map(|(name, (is_header, is_permanent), time)| SessionAffinity {
            name, is_header, is_permanent,
            absolute: time.map(Duration::from_millis),
            idle: time.map(|time| Duration::from_millis(time / 2 + 1)),
        });
        let backend = |(target, weight, filters)| RouteBackend { target, weight, filters };
        let timeouts = RouteTimeouts {
            request: timeouts.0.map(Duration::from_millis),
            backend_request: timeouts.1.map(Duration::from_millis),
        };
        let backends = backends.into_iter().map(backend).collect();
        RouteRule { name, matches, filters, backends, timeouts, retry, session }
    }
}

prop_compose! {
    fn route()(
        kind in select(vec![RouteKind::Http, RouteKind::Grpc, RouteKind::Tls, RouteKind::Tcp]),
        namespace in text(),
        name in text(),
        created: u64,
        ports in vec(1_u16.., 0..3),
        hostnames in vec(text(), 0..3),
        rules in vec(rule(), 0..3),
    ) -> Arc<Route> {
        Arc::new(Route { kind, namespace, name, created, ports, hostnames, rules })
    }
}

pub(crate) fn routes() -> impl Strategy<Value = Arc<[Arc<Route>]>> {
    vec(route(), 0..3).prop_map(Into::into)
}
