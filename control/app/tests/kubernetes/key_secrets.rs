//! Tests keys of tokens in Secrets, which the control plane may read if a Role of their namespace permits it.

use leno_testkit_api::{TestApiServer, binary, until};
use serde_json::{Value, json};

use crate::policies::says;
use crate::replica::Replica;
use crate::{cluster, leads, run_pod};

const SET: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc"}]}"#;
/// A set with a shared secret. A proxy that verifies tokens with such a key could also sign them, so the set must be
/// rejected.
const SHARED: &str = r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#;

fn secret(namespace: &str, set: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": namespace},
        "stringData": {"jwks.json": set, "password": "hunter2"}})
}

fn policy(namespace: &str) -> Value {
    json!({"apiVersion": "leno.dev/v1alpha1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "users", "namespace": namespace},
        "spec": {"selector": {}, "rules": [{}],
            "tokens": [{"issuer": "https://id.example.com", "audiences": ["a"], "jwksSecret": "keys"}]}})
}

/// A Role and its binding, as in the guide, which let the control plane read the Secret of a namespace.
fn rights(namespace: &str) -> [Value; 2] {
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    let metadata = json!({"name": "keys-of-tokens", "namespace": namespace});
    let role = json!({"apiVersion": version, "kind": "Role", "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["keys"],
            "verbs": ["list", "watch"]}]});
    let binding = json!({"apiVersion": version, "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "keys-of-tokens"},
        "subjects": [{"kind": "ServiceAccount", "name": "controller", "namespace": "leno-system"}]});
    [role, binding]
}

async fn permit(bed: &TestApiServer, namespace: &str) {
    for object in rights(namespace) {
        bed.apply(object).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_in_a_secret_count_where_a_role_lets_the_control_plane_read_it() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let users = policy("shop");
    let lacks =
        [("Accepted", ""), ("ResolvedRefs", "KeysNotFound"), ("Programmed", "KeysNotFound")];
    let has = [("Accepted", ""), ("ResolvedRefs", ""), ("Programmed", "")];
    until("the kind is served", async || bed.serves(&users).await).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    // Another tenant's Secret, which the control plane may read, must not be used for policies of this namespace.
    bed.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "bank"}})).await;
    bed.apply(secret("bank", SET)).await;
    permit(&bed, "bank").await;
    bed.apply(policy("bank")).await;
    bed.apply(users.clone()).await;
    let first = Replica::start("controller-0", &kubeconfig);
    leads(&first).await;
    says(&bed, &users, &lacks).await;
    first.line("grant the control plane list and watch on it").await;
    let count = async |replica: &Replica, state: &str| {
        replica.metric(&format!("leno_control_key_secrets{{state=\"{state}\"}}")).await as u64
    };
    until("one is read and one is not", async || {
        (count(&first, "followed").await == 1 && count(&first, "unread").await == 1).then_some(())
    })
    .await;
    let programmed = async || {
        let policy = bed.get(users.clone()).await.unwrap();
        policy.data["status"]["ancestors"][0]["conditions"].to_string()
    };
    let said = programmed().await;
    assert!(
        said.contains(
            "no keys of Secret shop/keys: it has to hold public keys as jwks.json, and a Role"
        ),
        "{said}"
    );

    permit(&bed, "shop").await;
    bed.apply(secret("shop", SET)).await;
    says(&bed, &users, &has).await;
    // Each replacement of the Secret takes effect at once. A text that is not a set of public keys counts as none.
    for (set, expected) in [(SHARED, &lacks), (SET, &has), ("\"hunter2\"", &lacks), (SET, &has)] {
        bed.apply(secret("shop", set)).await;
        says(&bed, &users, expected).await;
    }
    assert_eq!(first.count("hunter2"), 0, "nothing of a Secret is logged");
    first.end();

    // A control plane that starts has the keys before it begins to serve.
    let second = Replica::start("controller-1", &kubeconfig);
    leads(&second).await;
    second.line("serving discovery and identity").await;
    assert_eq!(second.count("there are no keys of tokens: there is no such object"), 0);
    bed.delete(secret("shop", SET)).await;
    says(&bed, &users, &lacks).await;

    // When the right is withdrawn, the Secret is no longer read.
    bed.apply(secret("shop", SET)).await;
    says(&bed, &users, &has).await;
    for object in rights("shop") {
        bed.delete(object).await;
    }
    until("the API server knows that the right is gone", async || {
        let review = bed
            .create(json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
                "spec": {"user": "system:serviceaccount:leno-system:controller",
                    "resourceAttributes":
                        {"namespace": "shop", "resource": "secrets", "name": "keys", "verb": "watch"}}}))
            .await;
        (review.data["status"]["allowed"] == false).then_some(())
    })
    .await;
    second.end();
    let third = Replica::start("controller-2", &kubeconfig);
    leads(&third).await;
    says(&bed, &users, &lacks).await;
    third.end();
}
