//! The tests apply objects to the index, and check what each stream is sent and which streams a change wakes.

use std::collections::HashMap;

use leno_index::{Index, MeshSettings, ObjectChange};
use leno_resources::{Kind, ObjectKey};
use leno_types::TrustDomain;
use leno_types::mesh::Service;
use leno_wire::{decode, names};

use super::*;

/// A proxy at the other end of a stream, with the resources that it has after each batch.
struct Proxy {
    subscriber: Subscriber,
    /// The services that it has, by name, each with its version.
    held: HashMap<String, (String, Service)>,
}

fn state() -> Arc<PlaneState> {
    PlaneState::new(Index::new(MeshSettings::default()))
}

fn apply(state: &PlaneState, documents: &str) {
    let parsed = leno_resources::parse("test.yaml", documents).unwrap();
    state.apply(parsed.objects.into_iter().map(|one| ObjectChange::Upsert(one.value)).collect());
}

fn delete(state: &PlaneState, name: &str) {
    let (kind, namespace) = (Kind::Service, "shop".to_owned());
    state.apply(vec![ObjectChange::Delete(ObjectKey { kind, namespace, name: name.to_owned() })]);
}

/// A service at `10.96.0.<number>`, with endpoints at `10.0.<number>.<last>` for each of `lasts`.
fn service(number: usize, lasts: &[usize]) -> String {
    let endpoint = |last: &usize| format!("{{addresses: [10.0.{number}.{last}]}}");
    let endpoints = lasts.iter().map(endpoint).collect::<Vec<_>>().join(", ");
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: s{number}, namespace: shop}}\n\
         spec: {{clusterIP: 10.96.0.{number}, ports: [{{name: http, port: 80}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  \
         name: s{number}\n  namespace: shop\n  labels: {{kubernetes.io/service-name: s{number}}}\n\
         addressType: IPv4\nports: [{{name: http, port: 8080}}]\nendpoints: [{endpoints}]\n---\n"
    )
}

fn wakeups(state: &PlaneState) -> u64 {
    state.metrics.wakeups.get()
}

fn encodings(state: &PlaneState) -> u64 {
    state.metrics.encodings.get()
}

impl Proxy {
    fn new(state: &Arc<PlaneState>, instance: &str) -> Self {
        let instance: InstanceName = instance.parse().unwrap();
        let identity = Identity::new(TrustDomain::default(), &instance.namespace, "web").unwrap();
        let subscriber = Subscriber::new(Arc::clone(state), instance, identity);
        Self { subscriber, held: HashMap::new() }
    }

    fn ask(&mut self, subscribe: &[&str], unsubscribe: &[&str]) {
        let texts = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        self.subscriber.take(proto::DeltaDiscoveryRequest {
            type_url: ADDRESS_TYPE.to_owned(),
            resource_names_subscribe: texts(subscribe),
            resource_names_unsubscribe: texts(unsubscribe),
            ..Default::default()
        });
    }

    /// Receives every batch as a proxy does. Returns the names that were added, the names that were removed, and
    /// the number of bytes.
    fn receive(&mut self) -> (Vec<String>, Vec<String>, usize) {
        let (mut came, mut went, mut size) = (Vec::new(), Vec::new(), 0);
        while let Some(batch) = self.subscriber.flush() {
            for bytes in batch.resources {
                size += bytes.len();
                let resource = decode::resource(bytes).unwrap();
                let any = resource.resource.unwrap();
                if let decode::AddressResource::Service(update) = decode::address(&any).unwrap() {
                    let held = self.held.get(&resource.name);
                    let held = held.map(|(version, service)| (version.as_str(), service));
                    let service = update.apply(held).unwrap();
                    self.held.insert(resource.name.clone(), (resource.version, service));
                }
                came.push(resource.name);
            }
            for name in batch.removed {
                self.held.remove(&name);
                went.push(name);
            }
        }
        (came, went, size)
    }
}

#[test]
fn names_that_a_client_asks_for_without_reading_answers_are_bounded() {
    let state = state();
    let mut proxy = Proxy::new(&state, "shop/web-0");
    for round in 0..10 {
        let names: Vec<String> =
            (0..10_000).map(|nth| format!("no-subject-{round}-{nth}")).collect();
        proxy.ask(&names.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    }
    proxy.ask(&[&"x".repeat(MAX_NAME + 1)], &[]);
    let (came, went, _) = proxy.receive();
    assert_eq!((came.len(), went.len()), (0, MAX_SUBSCRIPTIONS));
    assert!(went.iter().all(|name| name.len() <= MAX_NAME));
    // Later ones are answered again.
    proxy.ask(&["no-subject"], &[]);
    assert_eq!(proxy.receive().1, ["no-subject"]);
}

#[test]
fn a_change_wakes_the_streams_that_asked_and_is_encoded_once() {
    let state = state();
    (1..=20).for_each(|number| apply(&state, &service(number, &[1])));
    let mut proxies: Vec<Proxy> = (0..10)
        .map(|nth| {
            let mut proxy = Proxy::new(&state, &format!("shop/web-{nth}"));
            let names: Vec<String> = (1..=5).map(|s| format!("ip/10.96.0.{}", nth + s)).collect();
            proxy.ask(&names.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
            assert_eq!(proxy.receive().0.len(), 5);
            proxy
        })
        .collect();
    let (woken, encoded) = (wakeups(&state), encodings(&state));
    assert_eq!(
        (woken, encoded),
        (0, 14),
        "each of the 14 subscribed services once, for 50 answers"
    );
    // Proxies 0 to 4 are subscribed to service 5.
    apply(&state, &service(5, &[1, 2]));
    assert_eq!(wakeups(&state) - woken, 5);
    for (nth, proxy) in proxies.iter_mut().enumerate() {
        let expected: &[&str] = if nth < 5 { &["service/shop/s5"] } else { &[] };
        assert_eq!(proxy.receive().0, expected);
    }
    assert_eq!(encodings(&state) - encoded, 1);
    // No stream is subscribed to this service of the same namespace.
    apply(&state, &service(20, &[1, 2]));
    assert_eq!(wakeups(&state) - woken, 5);
    drop(proxies);
    apply(&state, &service(5, &[1]));
    assert_eq!(wakeups(&state) - woken, 5, "the streams have ended");
    assert!(!state.subscriptions.has(&names::subject("ip/10.96.0.5").unwrap()));
}

#[test]
fn changes_before_a_stream_reads_them_cost_one_wake_up_and_one_answer() {
    let state = state();
    apply(&state, &service(1, &[1]));
    let mut proxy = Proxy::new(&state, "shop/web-0");
    proxy.ask(&["ip/10.96.0.1"], &[]);
    proxy.receive();
    for last in 2..100 {
        apply(&state, &service(1, &[last]));
    }
    assert_eq!((wakeups(&state), encodings(&state)), (1, 1), "nothing is encoded for it yet");
    let (came, _, _) = proxy.receive();
    assert_eq!((came.len(), encodings(&state)), (1, 2));
    let ports = &proxy.held["service/shop/s1"].1.ports;
    assert_eq!(ports[0].endpoints[0].addresses[0].to_string(), "10.0.1.99");
    apply(&state, &service(1, &[99]));
    assert_eq!(proxy.receive().0.len(), 0);
}

#[test]
fn a_delay_does_not_begin_with_a_change_whose_subscription_has_ended() {
    let state = state();
    (1..=2).for_each(|number| apply(&state, &service(number, &[1])));
    for is_collected in [false, true] {
        let mut proxy = Proxy::new(&state, "shop/web-0");
        proxy.ask(&["ip/10.96.0.1", "ip/10.96.0.2"], &[]);
        proxy.receive();
        apply(&state, &service(1, &[1, 2 + usize::from(is_collected)]));
        assert!(!is_collected || proxy.subscriber.collect());
        proxy.ask(&[], &["ip/10.96.0.1"]);
        proxy.subscriber.collect();
        let begin = Instant::now();
        apply(&state, &service(2, &[1, 2 + usize::from(is_collected)]));
        assert_eq!(proxy.subscriber.flush().unwrap().resources.len(), 1);
        let since = proxy.subscriber.sent_since();
        assert!(since.is_some_and(|since| since >= begin), "{since:?} is before {begin:?}");
    }
}

#[test]
fn a_resource_goes_with_the_last_subject_that_leads_to_it() {
    let state = state();
    apply(&state, &service(1, &[1]));
    let mut proxy = Proxy::new(&state, "shop/web-0");
    proxy.ask(&["ip/10.96.0.1", "service/shop/s1"], &[]);
    assert_eq!(proxy.receive().0, ["service/shop/s1"]);
    proxy.ask(&[], &["ip/10.96.0.1"]);
    apply(&state, &service(1, &[2]));
    assert_eq!(proxy.receive().0, ["service/shop/s1"]);
    proxy.ask(&[], &["service/shop/s1"]);
    apply(&state, &service(1, &[3]));
    assert_eq!(proxy.receive(), (vec![], vec![], 0));
    // The proxy has dropped the resource, so it is sent again.
    proxy.ask(&["ip/10.96.0.1"], &[]);
    assert_eq!(proxy.receive().0, ["service/shop/s1"]);
    delete(&state, "s1");
    assert_eq!(proxy.receive().1, ["ip/10.96.0.1", "service/shop/s1"]);
    assert_eq!(state.metrics.cached_resources.get(), 0);
    apply(&state, &service(1, &[3]));
    assert_eq!(proxy.receive().0, ["service/shop/s1"]);
}

#[test]
fn a_policy_wakes_only_its_own_proxy() {
    let state = state();
    let workload = |name: &str, mtls: &str| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
             metadata: {{name: {name}, namespace: shop, annotations: {{leno.dev/mtls: {mtls}}}}}\n\
             spec: {{serviceAccount: web, command: [sleep]}}\n\
             status: {{instances: [{{name: {name}-0, addresses: [10.0.0.1], meshed: true}}]}}\n"
        )
    };
    let mut proxies = ["web", "db"].map(|name| {
        apply(&state, &workload(name, "strict"));
        let mut proxy = Proxy::new(&state, &format!("shop/{name}-0"));
        proxy.subscriber.take(proto::DeltaDiscoveryRequest {
            type_url: SERVER_POLICY_TYPE.to_owned(),
            resource_names_subscribe: vec![format!("shop/{name}-0")],
            ..Default::default()
        });
        assert_eq!(proxy.subscriber.flush().unwrap().resources.len(), 1);
        proxy
    });
    apply(&state, &workload("web", "permissive"));
    assert_eq!(wakeups(&state), 1);
    assert_eq!(proxies[0].subscriber.flush().unwrap().resources.len(), 1);
    assert!(proxies[1].subscriber.flush().is_none());
}

#[test]
fn a_proxy_that_does_not_enforce_authorization_policies_is_counted() {
    let state = state();
    let workload = "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
        metadata: {name: web, namespace: shop}\nspec: {serviceAccount: web, command: [sleep]}\n\
        status: {instances: [{name: web-0, addresses: [10.0.0.1], meshed: true}]}\n";
    apply(&state, workload);
    let node = |features: &[&str]| proto::Node {
        features: features.iter().map(ToString::to_string).collect(),
        ..proto::Node::of("shop/web-0")
    };
    let mut proxies = [node(&[]), node(&[AUTHORIZATION_FEATURE])].map(|node| {
        let mut proxy = Proxy::new(&state, "shop/web-0");
        proxy.subscriber.take(proto::DeltaDiscoveryRequest {
            node: Some(node),
            type_url: SERVER_POLICY_TYPE.to_owned(),
            resource_names_subscribe: vec!["shop/web-0".to_owned()],
            ..Default::default()
        });
        assert!(proxy.subscriber.flush().is_some());
        proxy
    });
    assert_eq!(state.metrics.authorization_not_enforced.get(), 0, "there is no policy yet");
    apply(
        &state,
        "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
         metadata: {name: p, namespace: shop}\nspec: {selector: {}, rules: [{}]}\n",
    );
    proxies.iter_mut().for_each(|proxy| assert!(proxy.subscriber.flush().is_some()));
    assert_eq!(state.metrics.authorization_not_enforced.get(), 1);
}

#[tokio::test]
async fn unknown_keys_count_for_issuers_of_the_proxys_own_policy() {
    let state = state();
    apply(
        &state,
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {name: web, namespace: shop}\nspec: {serviceAccount: web, command: [sleep]}\n\
         status: {instances: [{name: web-0, addresses: [10.0.0.1], meshed: true}]}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\n\
         spec:\n  selector: {}\n  tokens: [{issuer: own, audiences: [a], jwksUrl: 'https://id.example.com/keys'}]\n  \
         rules: [{}]\n",
    );
    let mut proxy = Proxy::new(&state, "shop/web-0");
    let mut report = |issuers: &[&str]| {
        proxy.subscriber.take(proto::DeltaDiscoveryRequest {
            type_url: SERVER_POLICY_TYPE.to_owned(),
            unknown_key_issuers: issuers.iter().map(ToString::to_string).collect(),
            ..Default::default()
        });
    };
    report(&["other"]);
    report(&["other", "own"]);
    report(&["own"]);
    assert_eq!(state.unknown_keys().await, ["own".to_owned()].into());
}

/// If its policies were not sent, the proxy would keep the earlier ones, which may permit more.
#[test]
fn policies_that_are_too_many_or_too_large_are_sent_as_one_that_denies_every_client() {
    let policies = |number: usize, rules: usize, bytes: usize| -> String {
        let rule = format!("{{to: [{{paths: [{{prefix: /{}}}]}}]}}", "y".repeat(bytes));
        let rules = vec![rule; rules].join(", ");
        let policy = |nth| {
            format!(
                "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
                 metadata: {{name: p{nth}, namespace: shop}}\n\
                 spec: {{action: Deny, selector: {{}}, rules: [{rules}]}}\n---\n"
            )
        };
        (0..number).map(policy).collect()
    };
    for (documents, are_applied) in [
        (policies(1_024, 1, 10), true),
        (policies(1_025, 1, 10), false),
        (policies(70, 60, 1_000), true),
        (policies(150, 60, 1_000), false),
    ] {
        let state = state();
        apply(
            &state,
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
             metadata: {name: web, namespace: shop}\nspec: {serviceAccount: web, command: [sleep]}\n\
             status: {instances: [{name: web-0, addresses: [10.0.0.1], meshed: true}]}\n",
        );
        apply(&state, &documents);
        let mut proxy = Proxy::new(&state, "shop/web-0");
        proxy.subscriber.take(proto::DeltaDiscoveryRequest {
            node: Some(proto::Node::of("shop/web-0")),
            type_url: SERVER_POLICY_TYPE.to_owned(),
            resource_names_subscribe: vec!["shop/web-0".to_owned()],
            ..Default::default()
        });
        let batch = proxy.subscriber.flush().unwrap();
        assert!(batch.resources[0].len() < leno_wire::MAX_MESSAGE);
        let any = decode::resource(batch.resources[0].clone()).unwrap().resource.unwrap();
        let sent = decode::server_policy(&any).unwrap().authorization;
        let names: Vec<&str> = sent.policies.iter().map(|policy| &*policy.source.name).collect();
        let denies_all = names == ["too-many-policies"];
        assert!(sent.unusable.is_none() && denies_all != are_applied, "{}", names.len());
    }
}

/// Pseudo-random numbers, which are the same in each run.
fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 3) as usize
}

#[test]
fn a_stream_that_misses_changes_ends_with_the_newest_state() {
    let state = state();
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let mut endpoints: Vec<usize> = (1..100).collect();
    apply(&state, &service(1, &endpoints));
    let mut proxies: Vec<Proxy> =
        (0..4).map(|nth| Proxy::new(&state, &format!("shop/web-{nth}"))).collect();
    proxies.iter_mut().for_each(|proxy| proxy.ask(&["ip/10.96.0.1"], &[]));
    for round in 0..300 {
        match random(&mut seed) % 8 {
            0 => endpoints = (1..=random(&mut seed) % 200).collect(),
            1 | 2 if !endpoints.is_empty() => {
                endpoints.remove(random(&mut seed) % endpoints.len());
            }
            _ => endpoints.push(1 + random(&mut seed) % 250),
        }
        endpoints.sort_unstable();
        endpoints.dedup();
        apply(&state, &service(1, &endpoints));
        // Proxy 0 receives after each change. The others receive now and then, and may reconnect.
        for (nth, proxy) in proxies.iter_mut().enumerate() {
            if nth == 0 || random(&mut seed).is_multiple_of(nth * 20) {
                proxy.receive();
            }
            if nth == 3 && round % 50 == 0 {
                proxy.ask(&["ip/10.96.0.1"], &["ip/10.96.0.1"]);
                proxy.held.clear();
            }
        }
    }
    let newest = state.look(|index| index.service(&"shop/s1".parse().unwrap()).unwrap());
    for proxy in &mut proxies {
        proxy.receive();
        assert_eq!(proxy.held["service/shop/s1"].1, *newest);
    }
}

#[test]
fn one_endpoint_of_hundreds_costs_each_subscriber_tens_of_bytes() {
    let state = state();
    let pods = |first: usize| (first..first + 200).collect::<Vec<_>>();
    apply(&state, &service(1, &pods(1)));
    let mut proxies: Vec<Proxy> =
        (0..3).map(|nth| Proxy::new(&state, &format!("shop/web-{nth}"))).collect();
    for proxy in &mut proxies {
        proxy.ask(&["ip/10.96.0.1"], &[]);
        assert!(proxy.receive().2 > 2_000);
    }
    let encoded = encodings(&state);
    apply(&state, &service(1, &pods(2)));
    for proxy in &mut proxies {
        let (_, _, bytes) = proxy.receive();
        // The message contains one endpoint less and one more, and the names and version of the resource.
        assert!(bytes < 200, "{bytes} bytes");
    }
    assert_eq!(encodings(&state) - encoded, 1, "one encoding for all");
}
