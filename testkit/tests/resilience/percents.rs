//! Tests that actions on a share of the requests affect as many requests as the percentage requires.

use std::time::Duration;

use leno_testkit::peer::FaultyAct;
use leno_testkit::wait;

use crate::balancing::is_share;
use crate::proxied_servers::ProxiedServers;

const REQUESTS: usize = 1_000;

#[test]
fn faults_hit_their_share() {
    let world = ProxiedServers::outbound(
        "  faults:\n    abort: {status: 418, percent: 20}\n    delay: {by: 1ms, percent: 35.5}\n",
        &[|_| FaultyAct::Good],
    );
    let aborted =
        (0..REQUESTS).filter(|number| world.get(&number.to_string()).status == 418).count();
    assert!(is_share(aborted, REQUESTS, 0.2), "{aborted} were answered");
    assert_eq!(world.seen().len(), REQUESTS - aborted);
    assert_eq!(world.metric(&["leno_faults_total", "abort"]), aborted as f64);
    let delayed = world.metric(&["leno_faults_total", "delay"]);
    assert!(is_share(delayed as usize, REQUESTS, 0.355), "{delayed} were delayed");
}

/// A delayed request must be served after the configured delay.
#[test]
fn a_delay_is_as_long_as_it_says() {
    let world = ProxiedServers::outbound(
        "  faults: {delay: {by: 300ms, percent: 100}}\n",
        &[|_| FaultyAct::Good],
    );
    let began = std::time::Instant::now();
    assert!(world.get("1").is_good());
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
}

/// A share of the requests must be mirrored, by percentage and by fraction, each request once.
#[test]
fn mirrors_get_their_share() {
    for (share, chance) in
        [("percent: 30", 0.3), ("fraction: {numerator: 1, denominator: 8}", 0.125)]
    {
        let mirror = crate::proxied_servers::server(|_| FaultyAct::Good);
        let (ip, port) = (mirror.address().ip(), mirror.address().port());
        let more = format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: copy, namespace: t}}\n\
             spec:\n  clusterIP: 10.96.0.11\n  \
             ports: [{{name: x, port: 80, targetPort: 80, appProtocol: http}}]\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: copy-1, namespace: t, labels: {{kubernetes.io/service-name: copy}}}}\n\
             addressType: IPv4\nports: [{{name: x, port: {port}, appProtocol: http}}]\n\
             endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}}}]\n---\n\
             apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
             metadata: {{name: r, namespace: t}}\nspec:\n  \
             parentRefs: [{{group: \"\", kind: Service, name: web}}]\n  rules:\n  \
             - filters: [{{type: RequestMirror, requestMirror: \
             {{backendRef: {{name: copy, port: 80}}, {share}}}}}]\n    \
             backendRefs: [{{name: web, port: 80}}]\n"
        );
        let world = ProxiedServers::outbound_with(
            "  timeouts: {request: 1m}\n",
            &[|_| FaultyAct::Good],
            &more,
        );
        for number in 0..REQUESTS {
            assert!(world.get(&number.to_string()).is_good());
        }
        assert_eq!(world.seen().len(), REQUESTS);
        // On a busy machine, some copies end before they arrive, because their client has left or too many are in
        // progress.
        let counted = |result: &str| world.metric(&["leno_mirrored_requests_total", result]);
        wait::until("the copies to arrive and to be counted", Duration::from_secs(90), || {
            let seen = mirror.seen().len() as f64;
            Ok((counted("\"sent\"") <= seen && seen <= counted("")).then_some(()))
        })
        .unwrap();
        let (all, copies) = (counted("") as usize, mirror.seen());
        assert!(is_share(all, REQUESTS, chance), "{share}: {all} copies");
        assert!(copies.len() > all / 2, "{share}: {} of {all} copies arrived", copies.len());
        assert!(crate::counted(&copies).values().all(|times| *times == 1), "{share}");
    }
}
