//! Tests which settings of a namespace apply to pods that get a sidecar, and that no setting was forgotten.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use leno_admission::{AdmissionReview, InjectionSettings, StoredObjects};
use leno_resources::SETTINGS;
use serde_json::{Value, json};

/// Which program applies a setting that a namespace may have as an annotation.
enum Follower {
    /// The injector. A namespace with this value changes what is injected into its pods, or whether the proxy is
    /// injected at all.
    Injector(&'static str),
    /// Another program, or the setting has no meaning for a namespace's sidecars. The text names the program or the
    /// reason.
    Other(&'static str),
}

fn follower(setting: &str) -> Follower {
    use Follower::{Injector, Other};
    match setting {
        "leno.dev/inject" => {
            Other("the API server asks for pods of namespaces with the label alone")
        }
        "leno.dev/mode" => Injector("node"),
        "leno.dev/workload-api" => Injector("enabled"),
        "leno.dev/spiffe-endpoint-socket" => Injector("off"),
        "leno.dev/udp" => Injector("all"),
        "leno.dev/capture" => Injector("nftables"),
        "leno.dev/flow-metrics" => Injector("packets"),
        "leno.dev/flow-cpu-budget" => Injector("0.2%"),
        "leno.dev/share" | "leno.dev/promote-after" => Other("the agent, in node mode"),
        "leno.dev/mtls"
        | "leno.dev/egress"
        | "leno.dev/default-authorization"
        | "leno.dev/path-normalisation"
        | "leno.dev/tunnel"
        | "leno.dev/use-waypoint"
        | "leno.dev/use-waypoint-namespace" => Other("the control plane, while the pod runs"),
        "leno.dev/keys-from" => Other("the control plane, of its own namespace"),
        "leno.dev/waypoint" | "leno.dev/waypoint-from" => Other("labels of pods"),
        "leno.dev/flow-map-size" | "leno.dev/flow-ring-size" => Other("the agent, of its node"),
        forgotten => panic!("{forgotten}: follow it of namespaces, or say here what does"),
    }
}

/// The changes that the webhook makes to a pod of a namespace with these annotations. `of_spire` is whether SPIRE
/// issues the mesh's certificates.
fn change(annotations: &Value, of_spire: bool) -> Option<String> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "shop", "labels": {"leno.dev/inject": "enabled"}, "annotations": annotations}});
    let mut objects = StoredObjects::default();
    let parsed = leno_resources::parse("", &namespace.to_string()).unwrap();
    parsed.objects.iter().for_each(|located| objects.put(&located.value));
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "u", "namespace": "shop", "object": pod}});
    let review = AdmissionReview::parse(review.to_string().as_bytes()).unwrap();
    let workload_api = of_spire.then(|| "csi:csi.spiffe.io/spire-agent.sock".parse().unwrap());
    let settings = InjectionSettings { workload_api, ..InjectionSettings::default() };
    let answer = review.inject(&settings, &objects.enclosing(&review).unwrap());
    assert_eq!(answer.denied, None, "{annotations}");
    Some(serde_json::to_string(&answer.patch?).unwrap())
}

#[test]
fn each_setting_of_a_namespace_reaches_its_sidecars_or_says_why_not() {
    for setting in SETTINGS {
        let value = match follower(setting) {
            Follower::Injector(value) => value,
            Follower::Other(follower) => {
                println!("{setting}: {follower}");
                continue;
            }
        };
        // If SPIRE issues the certificates, no proxy serves the Workload API itself.
        let of_spire = setting != "leno.dev/workload-api";
        let with = change(&json!({setting: value}), of_spire);
        assert_ne!(with, change(&json!({}), of_spire), "{setting}: {value} changes no pod");
    }
}
