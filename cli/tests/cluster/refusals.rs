//! Tests the errors for a cluster that cannot be queried.

use leno_testkit::proxy::reserved;
use leno_testkit_api::binary;
use serde_json::json;

use crate::shop::{Shop, leno, leno_alone, leno_at, out, said};

const QUESTION: [&str; 6] = ["explain", "-n", "shop", "web", "--", "http://cart/"];

#[tokio::test]
async fn a_missing_right_is_named_and_one_namespace_may_be_enough() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    let nothing = shop.token_of("web").await;
    let refused = leno_at(&nothing, &["analyze", "shop"]);
    assert_eq!(refused.status.code(), Some(2));
    let text = said(&refused);
    let missing = "\"system:serviceaccount:office:web\" cannot list resource ";
    assert!(text.contains(missing) && text.contains("at the cluster scope"), "{text}");
    assert!(text.contains("docs/guide/kubernetes.md"), "{text}");

    // The account of a developer with a role in one namespace.
    let api = "rbac.authorization.k8s.io/v1";
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]);
    shop.bed
        .apply(json!({"apiVersion": api, "kind": "Role",
            "metadata": {"name": "dev", "namespace": "shop"}, "rules": rules}))
        .await;
    shop.bed
        .apply(json!({"apiVersion": api, "kind": "RoleBinding",
            "metadata": {"name": "dev", "namespace": "shop"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "dev"},
            "subjects": [{"kind": "ServiceAccount", "name": "web", "namespace": "office"}]}))
        .await;
    let answered = leno_at(&nothing, &QUESTION);
    let text = out(&answered);
    assert!(text.contains("backend      100.0 % shop/cart port 80\n"), "{text}{}", said(&answered));
    for gap in [
        "only the objects of namespace shop were read",
        "the settings of the installation are unknown",
    ] {
        assert!(text.contains(gap), "{gap} is not in\n{text}");
    }
}

/// Regression: the client of the cluster was used in another runtime than the one in which it was created, and no
/// answer ever arrived.
#[tokio::test]
async fn the_authority_of_a_cluster_is_asked_for_and_a_control_plane_that_does_not_run_is_told_of()
{
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    let file = shop.admin.to_str().expect("a path");
    for words in [&["identity"][..], &["identity", "revoke", "shop/web"]] {
        let refused = leno(&[words, &["--kubeconfig", file]].concat());
        assert_eq!(refused.status.code(), Some(2));
        let text = said(&refused);
        assert!(text.contains("leno-system") && !text.contains("worker"), "{text}");
    }
}

#[tokio::test]
async fn a_cluster_that_is_not_named_or_not_there_is_told_of() {
    let Some(kube) = binary() else { return };
    let mut shop = Shop::open(&kube, &[]).await;
    let file = shop.admin.clone();
    let other = leno_at(&file, &["analyze", "--context", "prod", "shop"]);
    assert_eq!(other.status.code(), Some(2));
    let text = said(&other);
    assert!(text.contains("no context \"prod\": use one of test"), "{text}");
    shop.bed.stop();
    let away = leno_at(&file, &QUESTION);
    assert_eq!(away.status.code(), Some(2));
    assert!(said(&away).contains("the API server does not answer: "), "{}", said(&away));
}

#[test]
fn no_mesh_at_all_is_told_of_with_the_ways_to_name_one() {
    let text = said(&leno_alone(&QUESTION));
    assert!(
        text.contains("no mesh runs on this machine, ") && text.contains("--kubeconfig FILE"),
        "{text}"
    );
    // No server listens at this address. While this socket is bound, the kernel assigns its port to no other
    // program.
    let (address, _reservation) = reserved().unwrap();
    let port = address.port();
    let file = tempfile::NamedTempFile::new().unwrap();
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}]});
    std::fs::write(file.path(), config.to_string()).unwrap();
    let text = said(&leno_at(file.path(), &["analyze", "-A"]));
    assert!(text.contains("the API server does not answer: "), "{text}");
}
