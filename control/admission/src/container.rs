//! The proxy's container and its volumes.

use leno_types::ports::{ADMIN, HBONE, PROXY_UID};

use crate::probes::{Probes, VARIABLE};
use crate::settings::{ContainerShape, InjectionSettings};
use crate::value::JsonValue;
use crate::{
    CONTAINER, IDENTITY_VOLUME, ROOTS, ROOTS_KEY, TOKEN_VOLUME, WORKLOAD_API_VOLUME, workload_api,
};

/// The name of the proxy's container in a waypoint's pod.
const WAYPOINT_CONTAINER: &str = "waypoint";
/// The audience of the token with which the proxy authenticates.
const AUDIENCE: &str = "leno";
/// The lifetime of a token, in seconds; the kubelet replaces it at 80 %.
const TOKEN_LIFETIME_S: u32 = 3600;
const TOKEN_PATH: &str = "/var/run/leno/token";
const ROOTS_PATH: &str = "/var/run/leno/roots";
const IDENTITY_PATH: &str = "/var/run/leno/identity";
/// The files in [`IDENTITY_PATH`]: the key with its certificate, and the mesh's roots.
const CREDENTIALS: &str = "credentials.pem";
const IDENTITY_ROOTS: &str = "roots.pem";
/// The signer of the certificate, and the object that contains the roots.
const SIGNER: &str = "leno.dev/identity";
const TRUST_BUNDLE: &str = "leno.dev:identity:mesh";
/// The period of the startup probe, in seconds, and how many times it may fail. Together they allow two minutes,
/// in which a control plane that was restarted is available again.
const START_PERIOD_S: u32 = 1;
const START_FAILURES: u32 = 120;
/// The liveness probe: its period, its timeout, and how many times it may fail. Together they allow a minute, in
/// which a proxy answers even on a node without a free CPU. A restart would close the connections of the pod.
const LIVE_PERIOD_S: u32 = 10;
const LIVE_TIMEOUT_S: u32 = 10;
const LIVE_FAILURES: u32 = 6;

/// The proxy's container for a pod with these settings and probes.
pub(crate) fn container(settings: &InjectionSettings, probes: &Probes) -> JsonValue {
    let mut container =
        JsonValue::from([("name", CONTAINER.into()), ("image", settings.image.as_str().into())]);
    if let Some(policy) = &settings.pull_policy {
        container.set("imagePullPolicy", policy.as_str());
    }
    if settings.shape == ContainerShape::Sidecar {
        container.set("restartPolicy", "Always");
    }
    container.set("env", environment(settings, probes));
    let port = JsonValue::from([("name", "leno-admin".into()), ("containerPort", admin())]);
    container.set("ports", [port]);
    container.set("livenessProbe", live());
    match settings.shape {
        ContainerShape::Sidecar => container.set("startupProbe", ready()),
        ContainerShape::Container => container.set("lifecycle", lifecycle()),
    }
    container.set("resources", settings.resources.value());
    container.set("securityContext", security());
    container.set("terminationMessagePolicy", "FallbackToLogsOnError");
    let mut mounts = vec![mount(TOKEN_VOLUME, TOKEN_PATH), mount(ROOTS, ROOTS_PATH)];
    if settings.workload_api.is_some() {
        mounts.push(mount(WORKLOAD_API_VOLUME, workload_api::FOLDER));
    }
    if settings.serves_workload_api {
        mounts.push(workload_api::proxy_mount());
    }
    if settings.requests_by_kubelet() {
        mounts.push(mount(IDENTITY_VOLUME, IDENTITY_PATH));
    }
    container.set("volumeMounts", JsonValue::List(mounts));
    container
}

/// The spec of a waypoint's pods, without the service account. Such a pod contains only the proxy, and nothing
/// captures its traffic.
#[must_use]
pub fn waypoint_pod(settings: &InjectionSettings) -> JsonValue {
    let of_sidecar = ["LENO_AWAIT_CAPTURE"];
    let mut proxy = container(settings, &Probes::default());
    for field in ["restartPolicy", "lifecycle", "startupProbe"] {
        let _unset = proxy.remove(field);
    }
    // If the container had the name of a sidecar's container, the pod would be taken for a workload with a
    // sidecar.
    proxy.set("name", WAYPOINT_CONTAINER);
    let (variables, _) = proxy.list_in("env");
    variables.retain(|one| !one.name().is_some_and(|name| of_sidecar.contains(&name)));
    let listen = format!("0.0.0.0:{HBONE},[::]:{HBONE}");
    for (name, value) in [("LENO_WAYPOINT", "true"), ("LENO_INBOUND", &listen)] {
        variables.push([("name", name.into()), ("value", value.into())].into());
    }
    let (ports, _) = proxy.list_in("ports");
    ports.push([("name", "hbone".into()), ("containerPort", u32::from(HBONE).into())].into());
    proxy.set("startupProbe", ready());
    let get = JsonValue::from([("path", "/ready".into()), ("port", admin())]);
    proxy.set("readinessProbe", JsonValue::from([("httpGet", get)]));
    let mut pod = JsonValue::from([
        ("containers", [proxy].into()),
        ("volumes", JsonValue::List(volumes(settings))),
    ]);
    if !settings.pull_secrets.is_empty() {
        let secret = |name: &String| JsonValue::from([("name", name.as_str().into())]);
        let secrets = settings.pull_secrets.iter().map(secret).collect();
        pod.set("imagePullSecrets", JsonValue::List(secrets));
    }
    pod
}

/// The volumes of the proxy's container.
pub(crate) fn volumes(settings: &InjectionSettings) -> Vec<JsonValue> {
    let token = JsonValue::from([
        ("path", "token".into()),
        ("audience", AUDIENCE.into()),
        ("expirationSeconds", TOKEN_LIFETIME_S.into()),
    ]);
    let source = JsonValue::from([("serviceAccountToken", token)]);
    let projected = JsonValue::from([("sources", [source].into())]);
    let roots = JsonValue::from([("name", ROOTS.into())]);
    let mut all = vec![
        [("name", TOKEN_VOLUME.into()), ("projected", projected)].into(),
        [("name", ROOTS.into()), ("configMap", roots)].into(),
    ];
    if let Some(api) = &settings.workload_api {
        all.push([("name", WORKLOAD_API_VOLUME.into()), api.value()].into());
    }
    if settings.serves_workload_api {
        all.push(workload_api::volume());
    }
    if settings.requests_by_kubelet() {
        all.push(identity(settings.pod_certificates));
    }
    all
}

/// The volume with the certificate that the kubelet requests. A pod starts even if the roots do not exist yet,
/// because the proxy needs them only together with the certificate.
fn identity(longest_s: Option<u32>) -> JsonValue {
    let mut certificate = JsonValue::from([
        ("signerName", SIGNER.into()),
        ("keyType", "ECDSAP256".into()),
        ("credentialBundlePath", CREDENTIALS.into()),
    ]);
    if let Some(longest_s) = longest_s {
        certificate.set("maxExpirationSeconds", longest_s);
    }
    let roots = JsonValue::from([
        ("name", TRUST_BUNDLE.into()),
        ("path", IDENTITY_ROOTS.into()),
        ("optional", true.into()),
    ]);
    let sources: [JsonValue; 2] =
        [[("podCertificate", certificate)].into(), [("clusterTrustBundle", roots)].into()];
    let projected = JsonValue::from([("sources", sources.into())]);
    [("name", IDENTITY_VOLUME.into()), ("projected", projected)].into()
}

fn environment(settings: &InjectionSettings, probes: &Probes) -> JsonValue {
    let said =
        |name: &str, value: &str| JsonValue::from([("name", name.into()), ("value", value.into())]);
    let field = |name: &str, path: &str| {
        let path = JsonValue::from([("fieldPath", path.into())]);
        JsonValue::from([("name", name.into()), ("valueFrom", [("fieldRef", path)].into())])
    };
    let mut all = vec![
        field("LENO_NAME", "metadata.name"),
        field("LENO_NAMESPACE", "metadata.namespace"),
        field("LENO_SERVICE_ACCOUNT", "spec.serviceAccountName"),
        said("LENO_TRUST_DOMAIN", &settings.trust_domain),
        said("LENO_CONTROL", &settings.control),
        said("LENO_ROOTS", &format!("{ROOTS_PATH}/{ROOTS_KEY}")),
        said("LENO_TOKEN", &format!("{TOKEN_PATH}/token")),
        // With this setting, the startup probe delays the containers of a pod until the agent has captured the
        // pod.
        said("LENO_AWAIT_CAPTURE", "true"),
    ];
    if let Some(api) = &settings.workload_api {
        let address = format!("unix://{}/{}", workload_api::FOLDER, api.socket());
        all.push(said("SPIFFE_ENDPOINT_SOCKET", &address));
    }
    if settings.serves_workload_api {
        let path = format!("{}/{}", workload_api::FOLDER, workload_api::SOCKET);
        all.push(said("LENO_WORKLOAD_API", &path));
    }
    if settings.carries_datagrams {
        all.push(said("LENO_DATAGRAMS", "true"));
    }
    if settings.requests_by_kubelet() {
        all.push(said("LENO_CERTIFICATE", &format!("{IDENTITY_PATH}/{CREDENTIALS}")));
        all.push(said("LENO_CERTIFICATE_ROOTS", &format!("{IDENTITY_PATH}/{IDENTITY_ROOTS}")));
    }
    if let Some(log) = &settings.log {
        all.push(said("LENO_LOG", &log.replace('$', "$$")));
    }
    if let Some(workload) = &settings.workload {
        all.push(said("LENO_WORKLOAD", workload));
    }
    if let Some(traces) = &settings.traces {
        all.push(said("LENO_TRACES", traces));
    }
    if let Some(compat) = &settings.metrics_compat {
        all.push(said("LENO_METRICS_COMPAT", compat));
    }
    if let Some(scrapers) = &settings.scrape_from {
        all.push(said("LENO_SCRAPE_FROM", scrapers));
    }
    if let Some(profile) = &settings.tls_profile {
        all.push(said("LENO_TLS_PROFILE", profile));
    }
    if settings.tap_bodies {
        all.push(said("LENO_TAP_BODIES", "true"));
    }
    if let Some(log) = &settings.access_log {
        all.push(said("LENO_ACCESS_LOG", &log.replace('$', "$$")));
    }
    if !probes.is_empty() {
        all.push(said(VARIABLE, &probes.text()));
    }
    JsonValue::List(all)
}

/// The probe that succeeds once the proxy has an identity and listens.
fn ready() -> JsonValue {
    let get = JsonValue::from([("path", "/ready".into()), ("port", admin())]);
    JsonValue::from([
        ("httpGet", get),
        ("periodSeconds", START_PERIOD_S.into()),
        ("failureThreshold", START_FAILURES.into()),
    ])
}

/// The liveness probe. It fails if the proxy does not answer, or if one of its threads that serve connections
/// hangs.
fn live() -> JsonValue {
    let get = JsonValue::from([("path", "/live".into()), ("port", admin())]);
    JsonValue::from([
        ("httpGet", get),
        ("periodSeconds", LIVE_PERIOD_S.into()),
        ("timeoutSeconds", LIVE_TIMEOUT_S.into()),
        ("failureThreshold", LIVE_FAILURES.into()),
    ])
}

/// The hooks of a proxy in an ordinary container. The kubelet starts the next container when the first hook has
/// returned, and signals the proxy when the second one has.
fn lifecycle() -> JsonValue {
    let run = |what: &str| {
        let command = JsonValue::texts([CONTAINER, "--hook", what]);
        JsonValue::from([("exec", [("command", command)].into())])
    };
    JsonValue::from([("postStart", run("started")), ("preStop", run("ending"))])
}

/// The settings that Pod Security requires for the level `restricted`. All are set explicitly.
fn security() -> JsonValue {
    JsonValue::from([
        ("allowPrivilegeEscalation", false.into()),
        ("capabilities", [("drop", JsonValue::texts(["ALL"]))].into()),
        ("privileged", false.into()),
        ("readOnlyRootFilesystem", true.into()),
        ("runAsGroup", PROXY_UID.into()),
        ("runAsNonRoot", true.into()),
        ("runAsUser", PROXY_UID.into()),
        ("seccompProfile", [("type", "RuntimeDefault".into())].into()),
    ])
}

fn mount(volume: &str, path: &str) -> JsonValue {
    [("name", volume.into()), ("mountPath", path.into()), ("readOnly", true.into())].into()
}

fn admin() -> JsonValue {
    u32::from(ADMIN).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waypoint_is_a_proxy_that_listens_for_hbone_and_waits_for_no_capture() {
        let settings = InjectionSettings {
            pull_secrets: vec!["of-us".to_owned()],
            ..InjectionSettings::default()
        };
        let pod = waypoint_pod(&settings);
        let [proxy] = pod.list("containers") else { panic!("{pod:?}") };
        let variable = |name: &str| {
            let found = proxy.list("env").iter().find(|one| one.name() == Some(name));
            found.and_then(|one| one.get("value")?.text().map(str::to_owned))
        };
        assert_eq!(variable("LENO_WAYPOINT").as_deref(), Some("true"));
        assert_eq!(variable("LENO_INBOUND").as_deref(), Some("0.0.0.0:15008,[::]:15008"));
        assert_eq!(variable("LENO_AWAIT_CAPTURE"), None);
        assert_ne!(proxy.name(), Some(CONTAINER), "it is no workload with a sidecar");
        assert!(proxy.get("restartPolicy").is_none() && proxy.get("readinessProbe").is_some());
        assert_eq!(pod.list("imagePullSecrets")[0].name(), Some("of-us"));
        assert_eq!(pod.list("volumes").len(), volumes(&settings).len());
    }
}
