use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use prost::Message as _;
use protox::prost_reflect::prost_types::FileDescriptorProto;
use protox::prost_reflect::prost_types::field_descriptor_proto::Type;
use serde_json::Value;

use leno_program::{Share, Shares};

use super::*;
use crate::hub::Hub;
use crate::serve::tests::two_namespaces;
use crate::visible_namespaces::VisibleNamespaces;

/// Checks that each name in the JSON is a field of the message, so that no value is lost.
fn check(file: &FileDescriptorProto, message: &str, json: &Value, seen: &RefCell<Vec<String>>) {
    let descriptor = |name: &str| file.message_type.iter().find(|one| one.name() == name).unwrap();
    let own = descriptor(message);
    let flat = own.field.iter().find(|field| field.name() == "signals");
    let fields = own.field.iter().chain(flat.iter().flat_map(|_| &descriptor("Signals").field));
    let fields: Vec<_> = fields.collect();
    // A `Name` message is a list in JSON.
    if json.is_array() {
        return;
    }
    for (name, value) in json.as_object().unwrap() {
        let field = fields.iter().find(|field| field.name() == name);
        let field = field.unwrap_or_else(|| panic!("{message} has no field {name}"));
        seen.borrow_mut().push(format!("{message}.{name}"));
        if field.r#type() != Type::Message || value.is_null() {
            continue;
        }
        let of = field.type_name().rsplit('.').next().unwrap();
        if of.ends_with("Entry") {
            continue;
        }
        match value {
            Value::Array(all) => all.iter().for_each(|one| check(file, of, one, seen)),
            one => check(file, of, one, seen),
        }
    }
}

#[test]
fn every_name_of_the_json_is_a_field_of_its_message() {
    let (_directory, hub) = two_namespaces();
    let file =
        FileDescriptorProto::decode(&include_bytes!("../generated/dashboard.bin")[..]).unwrap();
    let seen = RefCell::default();
    for (rpc, target) in [
        ("GetOverview", "overview"),
        ("GetTopology", "topology?window=60000"),
        ("GetRoutes", "routes?window=60000"),
        ("GetSeries", "series?client=shop/front&server=shop/web"),
        ("GetBudget", "budget?servers=shop/web&window=60000&bound=5"),
        ("GetChanges", "changes?from=0"),
        ("GetProxies", "proxies"),
        ("GetPolicies", "policies?window=60000"),
        ("GetFlows", "flows"),
    ] {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = format!("/api/v1/{path}");
        let answer =
            crate::serve::answer((&hub, &VisibleNamespaces::All), &Method::GET, &path, Some(query));
        let body = futures_body(answer);
        let json: Value = serde_json::from_slice(&body).unwrap();
        let service = file.service.first().unwrap();
        let method = service.method.iter().find(|one| one.name() == rpc).unwrap();
        let message = method.output_type().rsplit('.').next().unwrap();
        check(&file, message, &json, &seen);
        let message = (Rpc::named(rpc).unwrap().answer)(&body).unwrap();
        assert!(!message.is_empty(), "{rpc}");
    }
    for wanted in [
        "Problem.about",
        "Workload.success_rate",
        "Policy.denied",
        "ProxyState.connected",
        "Flow.ends",
    ] {
        assert!(
            seen.borrow().iter().any(|one| one == wanted),
            "{wanted} is not in {:?}",
            seen.borrow()
        );
    }
    // The methods in the proto file must be exactly those that this program serves.
    let served = file.service.iter().flat_map(|one| &one.method).map(|one| one.name());
    assert!(served.clone().all(|name| Rpc::named(name).is_some()) && served.count() == 13);
}

fn futures_body(answer: AdminResponse) -> Bytes {
    let collected = answer.into_body().collect();
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(collected)
        .unwrap()
        .to_bytes()
}

const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

/// A place among all connections of the program.
fn share() -> Share<u8> {
    Shares::new(1, 1).take(0).unwrap()
}

/// Makes a call over HTTP/2. Returns its messages, at most the first `most`, and its status.
async fn called(
    hub: &Hub,
    sight: &VisibleNamespaces,
    (path, message): (&str, &[u8]),
    most: usize,
) -> (Vec<Bytes>, HeaderMap) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let answer = async |request: Request<()>| {
        assert_eq!(request.headers().get(AUTHORIZATION).unwrap(), "Bearer x");
        crate::serve::answer(
            (hub, sight),
            request.method(),
            request.uri().path(),
            request.uri().query(),
        )
    };
    let client = async {
        let (mut send, connection) = h2::client::handshake(near).await.unwrap();
        let talk = async {
            let request = Request::post(format!("http://localhost{path}"))
                .header(CONTENT_TYPE, "application/grpc")
                .header(AUTHORIZATION, "Bearer x")
                .body(())
                .unwrap();
            let (response, mut stream) = send.send_request(request, false).unwrap();
            stream.send_data(framed(message), true).unwrap();
            let (head, mut body) = response.await.unwrap().into_parts();
            let mut messages = Vec::new();
            while messages.len() < most
                && let Some(part) = body.data().await
            {
                // The messages are small, so each arrives in one frame.
                messages.push(part.unwrap().slice(5..));
            }
            let trailers = match messages.len() < most {
                true => body.trailers().await.unwrap(),
                false => None,
            };
            (messages, trailers.unwrap_or(head.headers))
        };
        tokio::select! {
            got = talk => got,
            ended = connection => panic!("{ended:?}"),
        }
    };
    let places = ConnectionSlots::new(1);
    tokio::select! {
        got = client => got,
        () = serve(far, (CLIENT, share()), &places, answer) => panic!("the connection has ended"),
    }
}

/// The number of requests that are being answered, and the largest such number so far.
#[derive(Default)]
struct RequestCount(Cell<usize>, Cell<usize>);

impl RequestCount {
    fn begin(&self) -> impl Drop + '_ {
        struct CountedRequest<'a>(&'a RequestCount);
        impl Drop for CountedRequest<'_> {
            fn drop(&mut self) {
                self.0.0.set(self.0.0.get() - 1);
            }
        }
        self.0.set(self.0.get() + 1);
        self.1.set(self.1.get().max(self.0.get()));
        CountedRequest(self)
    }

    async fn wait_for(&self, wanted: usize) {
        let waited = async {
            while self.0.get() != wanted {
                tokio::task::yield_now().await;
            }
        };
        let late = timeout(Duration::from_secs(120), waited).await;
        late.unwrap_or_else(|_| panic!("{} requests, not {wanted}", self.0.get()));
    }
}

/// Begins a call with an empty message.
fn begin(send: &mut h2::client::SendRequest<Bytes>, path: &str) -> SendStream<Bytes> {
    let request = Request::post(format!("http://localhost{path}"))
        .header(CONTENT_TYPE, "application/grpc")
        .body(())
        .unwrap();
    let (_response, mut stream) = send.send_request(request, false).unwrap();
    stream.send_data(framed(&[]), true).unwrap();
    stream
}

const DASHBOARD: &str = "/leno.dashboard.v1.Dashboard/";

/// Tests that a call that is reset is no longer answered, for every kind of method, and that the number of calls
/// on a connection is limited.
#[tokio::test]
async fn calls_that_are_reset_end() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let asked = RequestCount::default();
    let answer = async |_: Request<()>| {
        let _ends = asked.begin();
        std::future::pending::<AdminResponse>().await
    };
    let client = async {
        let (send, connection) = h2::client::handshake(near).await.unwrap();
        let talk = async {
            let mut send = send;
            for method in ["GetTopology", "WatchOverview", "Tap", "GetOverview"] {
                let mut calls = Vec::new();
                for _ in 0..connection::MAX_CALLS {
                    send = send.ready().await.unwrap();
                    calls.push(begin(&mut send, &format!("{DASHBOARD}{method}")));
                }
                asked.wait_for(connection::MAX_CALLS).await;
                calls.iter_mut().for_each(|call| call.send_reset(Reason::CANCEL));
                // For a tap, one more request follows, which closes it.
                if method == "Tap" {
                    return;
                }
                asked.wait_for(0).await;
            }
        };
        tokio::select! {
            () = talk => {}
            ended = connection => panic!("{ended:?}"),
        }
    };
    let places = ConnectionSlots::new(1);
    tokio::select! {
        () = client => {}
        () = serve(far, (CLIENT, share()), &places, answer) => panic!("the connection has ended"),
    }
    assert_eq!(asked.1.get(), connection::MAX_CALLS);
}

/// Tests that connections without a successful call end soon, and that others stay.
#[tokio::test(start_paused = true)]
async fn a_connection_without_an_accepted_call_ends() {
    let (_directory, hub) = two_namespaces();
    let reflection = reflection::PATHS[0];
    for (path, is_let_in, kept) in [
        (reflection, true, 0..30),
        ("/leno.dashboard.v1.Dashboard/WatchOverview", false, 0..30),
        ("/leno.dashboard.v1.Dashboard/WatchOverview", true, 3_000..3_700),
    ] {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let answer = async |request: Request<()>| match is_let_in {
            true => {
                let (uri, method) = (request.uri(), request.method());
                crate::serve::answer(
                    (&hub, &VisibleNamespaces::All),
                    method,
                    uri.path(),
                    uri.query(),
                )
            }
            false => crate::serve::refuse(StatusCode::UNAUTHORIZED, "no token"),
        };
        let client = async {
            let (mut send, connection) = h2::client::handshake(near).await.unwrap();
            let request = Request::post(format!("http://localhost{path}"))
                .header(CONTENT_TYPE, "application/grpc")
                .body(())
                .unwrap();
            let (response, mut stream) = send.send_request(request, false).unwrap();
            stream.send_data(framed(&[]), path != reflection).unwrap();
            let read = async {
                let mut body = response.await.unwrap().into_body();
                while let Some(Ok(part)) = body.data().await {
                    let _room = body.flow_control().release_capacity(part.len());
                }
                std::future::pending().await
            };
            tokio::select! {
                () = read => {}
                _ended = connection => {}
            }
        };
        let begun = tokio::time::Instant::now();
        let places = ConnectionSlots::new(1);
        tokio::join!(client, serve(far, (CLIENT, share()), &places, answer));
        let lasted = begun.elapsed().as_secs();
        assert!(kept.contains(&lasted), "{path} {is_let_in}: {lasted} s");
    }
}

#[tokio::test]
async fn watches_and_connections_are_bounded() {
    let places = ConnectionSlots::new(1);
    let watches: Vec<_> = (0..32).map(|_| places.watch().unwrap()).collect();
    assert_eq!(places.watch().unwrap_err().code, Code::ResourceExhausted);
    assert_eq!((places.counts().watches, places.counts().watches_refused), (32, 1));
    drop(watches);
    assert!(places.watch().is_ok());
    // When a newer unproven connection needs a place, the oldest one of the address with the most connections ends.
    let places = ConnectionSlots::new(3);
    let mut ends = Vec::new();
    let mut io = || {
        let (near, far) = tokio::io::duplex(1024);
        ends.push(near);
        far
    };
    let [reader, first, second, third] = std::array::from_fn(|_| io());
    let stranger = SocketAddr::from(([192, 0, 2, 1], 1));
    let answer = async |_: Request<()>| std::future::pending::<AdminResponse>().await;
    tokio::select! {
        biased;
        () = serve(reader, (CLIENT, share()), &places, answer) => panic!("others have another address"),
        () = serve(first, (stranger, share()), &places, answer) => {}
        () = serve(second, (stranger, share()), &places, answer) => panic!("it is not the oldest"),
        () = serve(third, (stranger, share()), &places, answer) => panic!("it is the newest"),
    }
    assert_eq!(places.counts().evicted, 1);
}

/// Requests the overview, with or without a token, and then keeps the connection open. Returns how long the
/// connection lasted.
async fn keeps(
    io: tokio::io::DuplexStream,
    token: Option<&'static str>,
    answered: &Cell<usize>,
) -> Duration {
    let begun = tokio::time::Instant::now();
    let (mut send, connection) = h2::client::handshake(io).await.unwrap();
    let mut request = Request::get("http://localhost/api/v1/overview");
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, token);
    }
    let (response, _) = send.send_request(request.body(()).unwrap(), true).unwrap();
    let talk = async {
        // A displaced connection gets no answer.
        if response.await.is_ok() {
            answered.set(answered.get() + 1);
        }
    };
    let lasts = async {
        let _ended = connection.await;
        begun.elapsed()
    };
    let ((), lasted) = tokio::join!(talk, lasts);
    // Dropping `send` earlier would end the connection.
    drop(send);
    lasted
}

/// Tests that connections without a token cannot take the places of callers with a token, and that they give back
/// the places of their address.
#[tokio::test(start_paused = true)]
async fn connections_without_a_token_cannot_take_places_of_others() {
    let (_directory, hub) = two_namespaces();
    let answer = async |request: Request<()>| match request.headers().get(AUTHORIZATION) {
        Some(_) => {
            let (uri, method) = (request.uri(), request.method());
            crate::serve::answer((&hub, &VisibleNamespaces::All), method, uri.path(), uri.query())
        }
        None => crate::serve::refuse(StatusCode::UNAUTHORIZED, "no token"),
    };
    let (places, answered) = (ConnectionSlots::new(4), Cell::new(0));
    let outer = Shares::new(100, 100);
    let one = async |token: Option<&'static str>| {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let client = (CLIENT, outer.take(0_u8).unwrap());
        let (lasted, ()) =
            tokio::join!(keeps(near, token, &answered), serve(far, client, &places, answer));
        lasted
    };
    let readers = futures_util::future::join_all((0..4).map(|_| one(Some("Bearer x"))));
    let strangers = async {
        // By now all readers have been answered, so their connections are proven. Clients without a token must not
        // displace them.
        sleep(Duration::from_millis(10)).await;
        assert_eq!((answered.get(), places.counts().proven, outer.held()), (4, 4, 0));
        let strangers = futures_util::future::join_all((0..20).map(|_| one(None))).await;
        assert_eq!((places.counts().evicted, places.counts().late), (16, 4));
        assert!(strangers.iter().all(|lasted| *lasted < Duration::from_secs(7)), "{strangers:?}");
        // A reader beyond the limit gets an answer, and is then disconnected.
        let before = answered.get();
        let lasted = one(Some("Bearer x")).await;
        assert!(lasted < Duration::from_secs(11), "{lasted:?}");
        assert_eq!((answered.get() - before, places.counts().full), (1, 1));
        assert_eq!(places.counts().proven, 4);
    };
    let (readers, ()) = tokio::join!(readers, strangers);
    // The readers' connections end only because they are idle.
    assert!(readers.iter().all(|lasted| *lasted >= Duration::from_secs(60)), "{readers:?}");
    assert_eq!((places.counts().proven, places.counts().unproven), (0, 0));
}

/// Tests that the header that other sites' pages cannot send is not added to requests that are not gRPC calls.
#[tokio::test]
async fn a_request_that_is_not_grpc_keeps_its_headers_and_head_has_no_body() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let answer = async |request: Request<()>| {
        let is_page = request.headers().contains_key(PAGE_HEADER);
        leno_program::respond(StatusCode::OK, "text/plain", if is_page { "page" } else { "other" })
    };
    let client = async {
        let (mut send, connection) = h2::client::handshake(near).await.unwrap();
        let talk = async {
            let mut seen = Vec::new();
            for (method, has_header) in
                [(Method::GET, false), (Method::GET, true), (Method::HEAD, true)]
            {
                let mut request =
                    Request::builder().method(method).uri("http://localhost/api/v1/tap");
                if has_header {
                    request = request.header(PAGE_HEADER, "1");
                }
                let (response, _) = send.send_request(request.body(()).unwrap(), true).unwrap();
                let mut body = response.await.unwrap().into_body();
                let part = body.data().await.map(|part| part.unwrap()).unwrap_or_default();
                seen.push(part);
            }
            seen
        };
        tokio::select! {
            seen = talk => seen,
            ended = connection => panic!("{ended:?}"),
        }
    };
    let places = ConnectionSlots::new(1);
    let seen = tokio::select! {
        seen = client => seen,
        () = serve(far, (CLIENT, share()), &places, answer) => panic!("the connection has ended"),
    };
    assert_eq!(seen, ["other", "page", ""]);
}

#[tokio::test]
async fn calls_are_answered_with_the_rights_of_the_json() {
    let (_directory, hub) = two_namespaces();
    let window =
        proto::WindowRequest { window: Some(60_000), ..Default::default() }.encode_to_vec();
    let path = "/leno.dashboard.v1.Dashboard/GetTopology";
    let status =
        |headers: &HeaderMap| headers.get("grpc-status").unwrap().to_str().unwrap().to_owned();
    let (messages, ended) = called(&hub, &VisibleNamespaces::All, (path, &window), 9).await;
    let all = proto::Topology::decode(messages[0].clone()).unwrap();
    assert_eq!((all.edges.len(), status(&ended)), (4, "0".to_owned()));
    let edge = all.edges.iter().find(|edge| edge.client == "front").unwrap();
    let signals = edge.signals.as_ref().unwrap();
    assert_eq!((edge.mtls, signals.requests), (proto::Mtls::All as i32, 80), "{edge:?}");
    assert!(
        all.problems.iter().any(|one| one.severity == proto::Severity::Bad as i32),
        "{:?}",
        all.problems
    );

    let shop = VisibleNamespaces::Namespaces([("shop".to_owned(), 0)].into());
    let (messages, _) = called(&hub, &shop, (path, &window), 9).await;
    let text = String::from_utf8_lossy(&messages[0]).into_owned();
    assert!(text.contains("shop") && !text.contains("bank") && !text.contains("ledger"), "{text}");
    let none = VisibleNamespaces::Namespaces(BTreeMap::new());
    let (messages, _) = called(&hub, &none, (path, &window), 9).await;
    assert!(proto::Topology::decode(messages[0].clone()).unwrap().workloads.is_empty());
    // A reader who may see all namespaces requests some of them.
    let part = proto::WindowRequest { namespaces: vec!["shop".to_owned()], ..Default::default() };
    let (messages, _) =
        called(&hub, &VisibleNamespaces::All, (path, &part.encode_to_vec()), 9).await;
    assert!(!String::from_utf8_lossy(&messages[0]).contains("ledger"));

    for (path, message, code) in [
        ("/leno.dashboard.v1.Dashboard/Get", &window[..], "12"),
        ("/leno.dashboard.v1.Dashboard/GetSeries", &[], "3"),
        ("/leno.dashboard.v1.Dashboard/GetDocument", &[], "5"),
        ("/leno.dashboard.v1.Dashboard/GetTopology", b"\xff\xff", "3"),
    ] {
        let (messages, ended) = called(&hub, &VisibleNamespaces::All, (path, message), 9).await;
        assert_eq!((messages.len(), &*status(&ended)), (0, code), "{path}: {ended:?}");
        assert!(ended.contains_key("grpc-message"), "{ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_answers_again_and_again() {
    let (_directory, hub) = two_namespaces();
    let path = "/leno.dashboard.v1.Dashboard/WatchOverview";
    let (messages, _) = called(&hub, &VisibleNamespaces::All, (path, &[]), 3).await;
    let read = messages.into_iter().map(|one| proto::Overview::decode(one).unwrap());
    assert!(read.into_iter().all(|one| one.mesh == "default" && one.restarted.len() == 1));
}

#[test]
fn reflection_has_the_one_service() {
    // The request is `list_services` without a host, as grpcurl sends it.
    let answered = reflection::answer(b"\x3a\x01*").unwrap();
    let text = String::from_utf8_lossy(&answered).into_owned();
    assert!(text.contains("leno.dashboard.v1.Dashboard"), "{text}");
    let symbol = [b"\x22\x1b".as_slice(), b"leno.dashboard.v1.Dashboard"].concat();
    let described = reflection::answer(&symbol).unwrap();
    assert!(String::from_utf8_lossy(&described).contains("WindowRequest"));
    let unknown = reflection::answer(b"\x22\x01x").unwrap();
    assert!(String::from_utf8_lossy(&unknown).contains("is unknown"));
}
