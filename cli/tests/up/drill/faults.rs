//! The faults of the drill, and what `leno why` must report about each.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Drill;
use leno_local::status::MeshStatus;
use leno_testkit::stopped::StoppedThreads;

/// A fault.
pub(super) struct Fault {
    pub(super) name: &'static str,
    /// A text that the culprit that is named first must contain.
    pub(super) culprit: &'static str,
    /// A text that the culprit or its evidence must contain.
    pub(super) evidence: &'static str,
    pub(super) inject: fn(&Drill),
    /// An action that is repeated while the culprit is looked for.
    pub(super) again: Option<fn(&Drill)>,
    pub(super) mend: fn(&Drill),
}

const NOTHING: fn(&Drill) = |_| {};

/// A fault without a repeated action.
const fn fault(
    name: &'static str,
    (culprit, evidence): (&'static str, &'static str),
    inject: fn(&Drill),
    mend: fn(&Drill),
) -> Fault {
    Fault { name, culprit, evidence, inject, again: None, mend }
}

fn as_documented(drill: &Drill) {
    drill.edit(&[]);
}

pub(super) const FAULTS: &[Fault] = &[
    fault(
        "slow",
        ("the application of shop/images", "took"),
        |drill| drill.turn("images-0", r#"{"slow": 0.5}"#),
        |drill| drill.turn("images-0", ""),
    ),
    fault(
        "failing",
        ("the application of shop/index", "by the application itself"),
        |drill| drill.turn("index-0", r#"{"fail": 1}"#),
        |drill| drill.turn("index-0", ""),
    ),
    fault(
        "one-instance",
        ("the instance pricing-1", "pricing-1 fails"),
        |drill| drill.turn("pricing-1", r#"{"fail": 1}"#),
        |drill| drill.turn("pricing-1", ""),
    ),
    fault(
        "hangs",
        ("the application of shop/auth", "given up by the client"),
        |drill| drill.turn("auth-0", r#"{"slow": 1000}"#),
        |drill| drill.turn("auth-0", ""),
    ),
    fault(
        "ends",
        ("the application of shop/mail", "exited with 3"),
        |drill| drill.turn("mail-0", r#"{"exit": true}"#),
        |drill| drill.turn("mail-0", ""),
    ),
    fault(
        "memory",
        ("the application of shop/stock", "memory"),
        |drill| drill.turn("stock-0", r#"{"leak": true}"#),
        |drill| drill.turn("stock-0", ""),
    ),
    fault(
        "cpu-limit",
        ("the CPU limit of shop/catalog-db", "was throttled by its CPU limit"),
        |drill| drill.turn("catalog-db-0", r#"{"burn": 0.2}"#),
        |drill| drill.turn("catalog-db-0", ""),
    ),
    fault(
        "unknown-name",
        ("that shop/users looks up", "auht.shop"),
        |drill| drill.turn("users-0", r#"{"calls": ["http://auht:8080/"]}"#),
        |drill| drill.turn("users-0", ""),
    ),
    fault(
        "half-open",
        ("the application of shop/orders-db", ""),
        |drill| signal(drill, "orders-db-0", Signal::SIGSTOP),
        |drill| signal(drill, "orders-db-0", Signal::SIGCONT),
    ),
    fault(
        "resets",
        ("the application of shop/bank", ""),
        |drill| drill.turn("bank-0", r#"{"reset": true}"#),
        |drill| drill.turn("bank-0", ""),
    ),
    fault(
        "denied",
        ("an authorization policy of shop/mail, which denies shop/orders", "denied"),
        |drill| {
            drill.edit(&[(
                "",
                "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {name: mail, namespace: shop}\n\
                 spec:\n  selector: {matchLabels: {app: mail}}\n  rules: [{from: [{serviceAccounts: [others]}]}]",
            )]);
        },
        as_documented,
    ),
    fault(
        "denied-by-name",
        ("an authorization policy of shop/stock, which denies shop/orders", "denied"),
        |drill| {
            drill.edit(&[(
                "",
                "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {name: stock, namespace: shop}\n\
                 spec:\n  selector: {matchLabels: {app: stock}}\n  action: Deny\n  \
                 rules: [{to: [{paths: [{prefix: /}]}]}]",
            )]);
        },
        as_documented,
    ),
    fault(
        "no-token",
        ("an authorization policy of shop/auth, which denies shop/users", "denied"),
        |drill| {
            drill.edit(&[(
                "",
                "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {name: auth, namespace: shop}\n\
                 spec:\n  selector: {matchLabels: {app: auth}}\n  rules: [{}]\n  tokens:\n  \
                 - {issuer: 'https://id.example.com', audiences: [auth], jwks: '{\"keys\":[{\"kty\":\"OKP\",\
                 \"crv\":\"Ed25519\",\"kid\":\"a\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}]}'}",
            )]);
        },
        as_documented,
    ),
    fault(
        "no-authorizer",
        ("the external authorizer of shop/search", "authorizer-failed"),
        |drill| {
            drill.edit(&[(
                "",
                "apiVersion: v1\nkind: Service\nmetadata: {name: judge, namespace: shop}\n\
                 spec: {selector: {app: judge}, ports: [{name: http, port: 80, appProtocol: http}]}\n---\n\
                 apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
                 metadata: {name: search, namespace: shop}\n\
                 spec:\n  selector: {matchLabels: {app: search}}\n  action: External\n  rules: [{}]\n  \
                 external: {backendRef: {name: judge, namespace: shop, port: 80}, protocol: Http}",
            )]);
        },
        as_documented,
    ),
    fault(
        "outside",
        ("the TLS of shop/outside", "external-tls-failed"),
        |drill| {
            // The server does not speak TLS.
            drill.edit(&[(
                "",
                "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
                 metadata: {name: plain, namespace: shop, labels: {app: plain}, annotations: {leno.dev/inject: disabled}}\n\
                 spec:\n  command: [python3, app.py]\n  workingDir: .\n  ports: [{port: 8080, appProtocol: http}]\n\
                 ---\napiVersion: v1\nkind: Service\nmetadata: {name: outside, namespace: shop}\n\
                 spec: {selector: {app: plain}, ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]}\n\
                 ---\napiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\n\
                 metadata: {name: outside, namespace: shop}\n\
                 spec:\n  targetRefs: [{group: '', kind: Service, name: outside}]\n  \
                 validation: {hostname: pay.example.com, wellKnownCACertificates: System}",
            )]);
            drill.turn("payments-0", r#"{"calls": ["http://outside/"]}"#);
        },
        |drill| {
            drill.turn("payments-0", "");
            as_documented(drill);
        },
    ),
    fault(
        "large-head",
        ("the application of shop/cart, whose requests", "head-too-large"),
        |drill| drill.turn("cart-0", r#"{"header": 70000}"#),
        |drill| drill.turn("cart-0", ""),
    ),
    fault(
        "not-found",
        ("the application of shop/bank, which answers 4xx", "answered 4xx"),
        |drill| drill.turn("bank-0", r#"{"status": 404}"#),
        |drill| drill.turn("bank-0", ""),
    ),
    fault(
        "rollout",
        ("Workload shop/search", "by the application itself"),
        |drill| {
            let before = "env: {CALLS: 'http://index:8080/'}";
            drill.edit(&[(before, "env: {CALLS: 'http://index:8080/', FAIL: '1'}")]);
        },
        as_documented,
    ),
    fault(
        "route-weight",
        ("the routes of shop/index", "HTTPRoute shop/index"),
        |drill| {
            drill.edit(&[(
                "",
                "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: index, namespace: shop}\n\
                 spec:\n  parentRefs: [{group: '', kind: Service, name: index}]\n  rules:\n  - backendRefs:\n    \
                 - {name: index, port: 8080, weight: 1}\n    - {name: index-v2, port: 8080, weight: 1}",
            )]);
        },
        as_documented,
    ),
    fault(
        "injected",
        ("a policy of shop/pricing that makes requests fail", "fault-abort"),
        |drill| {
            drill.edit(&[("", &policy("pricing", "faults: {abort: {status: 503, percent: 50}}"))])
        },
        as_documented,
    ),
    fault(
        "timeout",
        ("shop/payments, which is slower than its timeout", "response-timeout"),
        |drill| {
            drill.turn("payments-0", r#"{"slow": 0.05}"#);
            drill.edit(&[("", &policy("payments", "timeouts: {response: 20ms}"))]);
        },
        |drill| {
            drill.turn("payments-0", "");
            as_documented(drill);
        },
    ),
    fault(
        "rate-limit",
        ("a limit of shop/users", "rate-limited"),
        |drill| {
            drill.edit(&[(
                "",
                "apiVersion: leno.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: users, namespace: shop}\n\
                 spec:\n  targetRefs: [{group: leno.dev, kind: Workload, name: users}]\n  \
                 limits: [{requests: 1, burst: 1}]",
            )]);
        },
        as_documented,
    ),
    fault(
        "full",
        ("a limit of shop/images", "overloaded"),
        |drill| {
            drill.turn("images-0", r#"{"slow": 0.6}"#);
            drill.edit(&[("", &policy("images", "limits: {requests: 1, pending: 0}"))]);
        },
        |drill| {
            drill.turn("images-0", "");
            as_documented(drill);
        },
    ),
    fault(
        "wrong-port",
        ("shop/index", "does not listen on port 8080"),
        |drill| {
            let before = "env: {CALLS: ''}\n  ports: [{port: 8080, appProtocol: http}]\n---\napiVersion: \
                          leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: auth,";
            drill.edit(&[(before, &before.replace("CALLS: ''", "CALLS: '', PORT: '9090'"))]);
        },
        as_documented,
    ),
    fault(
        "lost-packets",
        ("the network between", "shop/images"),
        |drill| drop_packets(drill, "-A"),
        |drill| drop_packets(drill, "-D"),
    ),
    fault(
        "proxy-stands-still",
        ("the proxy of shop/auth-0, which does not answer", "shop/auth-0"),
        |drill| {
            let stop = |pid: Pid| StoppedThreads::of_process(pid.as_raw().cast_unsigned()).unwrap();
            drill.stopped.replace(proxy(drill).map(stop).collect());
        },
        |drill| drill.stopped.take().into_iter().for_each(|one| one.resume().unwrap()),
    ),
    Fault {
        name: "proxy-ends",
        culprit: "auth",
        evidence: "",
        inject: kill_proxy,
        again: Some(kill_proxy),
        mend: NOTHING,
    },
    fault(
        "retries",
        ("the application of shop/stock", "retries"),
        |drill| {
            drill.turn("stock-0", r#"{"fail": 0.6}"#);
            let retries =
                "retries: {attempts: 3, on: [5xx], budget: {percent: 100, minPerSecond: 10}}";
            drill.edit(&[("", &policy("stock", retries))]);
        },
        |drill| {
            drill.turn("stock-0", "");
            as_documented(drill);
        },
    ),
    fault(
        "refused-edit",
        ("the last edit", "mesh.yaml"),
        |drill| {
            drill.edit(&[("", "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: x, namespace: shop}\nspec: {rules: 5}")])
        },
        as_documented,
    ),
];

/// A traffic policy for the clients of a service.
fn policy(service: &str, spec: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {{name: {service}, namespace: shop}}\nspec:\n  \
         targetRefs: [{{group: '', kind: Service, name: {service}}}]\n  {spec}"
    )
}

fn signal(drill: &Drill, instance: &str, signal: Signal) {
    kill(Pid::from_raw(drill.mesh.application(instance)), signal).unwrap();
}

/// Adds or removes rules that drop a quarter of the packets that reach an instance, in both address families.
fn drop_packets(drill: &Drill, action: &str) {
    let rule = "INPUT ! -i lo -p tcp -m statistic --mode random --probability 0.25 -j DROP";
    for tool in ["iptables", "ip6tables"] {
        let rule: Vec<&str> = [tool, "-w", action].into_iter().chain(rule.split(' ')).collect();
        drill.within("images-0", &rule);
    }
}

fn kill_proxy(drill: &Drill) {
    proxy(drill).for_each(|pid| drill.mesh.kill_process(pid.as_raw()));
}

/// The processes of the proxy of `auth-0`.
fn proxy(drill: &Drill) -> impl Iterator<Item = Pid> {
    let status = MeshStatus::read(drill.mesh.layout()).unwrap();
    let group = status.find(None, "auth-0").unwrap().surroundings.cgroup.with_file_name("proxy");
    let processes = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let pids: Vec<Pid> =
        processes.lines().filter_map(|line| line.parse().ok()).map(Pid::from_raw).collect();
    pids.into_iter()
}
