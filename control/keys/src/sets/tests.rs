use leno_resources::parse;

use super::*;
use crate::store::SharedDocuments;

const SET: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc"}]}"#;
const URL: &str = "https://id.example.com/keys";

fn change(text: &str) -> ObjectChange {
    ObjectChange::Upsert(parse("p.yaml", text).expect("a document").objects.remove(0).value)
}

fn policy(url: &str) -> ObjectChange {
    policy_of("shop", "p", url)
}

fn policy_of(namespace: &str, name: &str, url: &str) -> ObjectChange {
    change(&format!(
        "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
         metadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  selector: {{}}\n  tokens: [{{issuer: i, audiences: [a], jwksUrl: '{url}'}}]\n  rules: [{{}}]\n"
    ))
}

fn permit(namespace: &str, origins: &str) -> ObjectChange {
    change(&format!(
        "apiVersion: v1\nkind: Namespace\n\
         metadata: {{name: {namespace}, annotations: {{leno.dev/keys-from: \"{origins}\"}}}}\n"
    ))
}

/// The keys in each of the policies among these changes.
fn keys(changes: &[ObjectChange]) -> Vec<&str> {
    let mut found = Vec::new();
    for change in changes {
        if let ObjectChange::Upsert(Object::AuthorizationPolicy(policy)) = change {
            found.push(policy.spec.tokens[0].jwks.as_str());
        }
    }
    found
}

fn key_sets(store: Option<DocumentStore>) -> KeySets {
    let authorities =
        WebAuthorities::open(None).expect("those of the machine, or the built-in ones");
    KeySets::new("leno-system", store, Arc::new(authorities))
}

fn rendered(sets: &KeySets) -> String {
    let mut text = String::new();
    sets.render()(&mut text);
    text
}

/// Regression test for a fault of Istio's: if an issuer's set could not be fetched, it used a built-in set whose
/// private key is public.
#[tokio::test]
async fn cve_2026_31837_a_set_that_cannot_be_fetched_has_no_keys() {
    let mut sets = key_sets(None);
    let mut changes = vec![policy(URL)];
    sets.fill(&mut changes);
    assert_eq!(keys(&changes), [""]);
    // No origin is permitted, so each fetch fails, and no policy changes.
    let refreshed = tokio::time::timeout(Duration::from_millis(300), sets.refreshed()).await;
    assert!(refreshed.is_err(), "{refreshed:?}");
    let text = rendered(&sets);
    assert!(text.contains("leno_control_key_sets{state=\"missing\"} 1\n"), "{text}");
    let ObjectChange::Upsert(Object::AuthorizationPolicy(policy)) = &changes[0] else { panic!() };
    let meaning = policy.policy(&leno_types::TrustDomain::default());
    assert!(meaning.tokens[0].keys.is_empty());
}

#[tokio::test]
async fn a_set_survives_a_restart_without_its_issuer_and_no_withdrawal() {
    let directory = tempfile::tempdir().expect("a directory");
    let store =
        DocumentStore::open(&directory.path().join("keys"), KeySets::is_document).expect("a store");
    store.write(&document(URL), SET);
    let store = DocumentStore::open(&directory.path().join("keys"), KeySets::is_document)
        .expect("the same store");
    let mut sets = key_sets(Some(store));
    let mut changes = vec![policy(URL), permit("leno-system", "https://id.example.com")];
    sets.fill(&mut changes);
    assert!(keys(&changes).iter().all(|keys| *keys == SET), "{changes:?}");
    // The annotation of another namespace permits no origins.
    let mut tenants = vec![permit("shop", "https://evil.example.com")];
    sets.fill(&mut tenants);
    assert_eq!(tenants.len(), 1);
    let mut withdrawn = vec![permit("leno-system", "")];
    sets.fill(&mut withdrawn);
    assert_eq!(keys(&withdrawn), [""]);
    sets.fill(&mut vec![permit("leno-system", "https://id.example.com")]);
    let ObjectChange::Upsert(object) = permit("leno-system", "") else { panic!() };
    let mut deleted = vec![ObjectChange::Delete(object.key())];
    sets.fill(&mut deleted);
    assert_eq!(keys(&deleted), [""], "the namespace is gone, and its permission with it");
    let mut other = vec![policy("https://other.example.com/keys")];
    sets.fill(&mut other);
    assert_eq!(keys(&other), [""], "the set of another URL");
    assert_eq!(sets.followed.len(), 1, "only what a policy names is fetched");
    let ObjectChange::Upsert(object) = &other[0] else { panic!() };
    sets.fill(&mut vec![ObjectChange::Delete(object.key())]);
    assert!(sets.followed.is_empty());
}

#[tokio::test]
async fn a_tenant_with_many_urls_takes_no_places_of_others() {
    let mut sets = key_sets(None);
    let mut changes = vec![permit("leno-system", "https://id.example.com")];
    for nth in 0..300 {
        let unknown = format!("https://evil-{nth}.example.com/");
        changes.push(policy_of("crowd", &format!("a{nth}"), &unknown));
        let known = format!("{URL}?of={nth}");
        changes.push(policy_of("crowd", &format!("b{nth}"), &known));
    }
    sets.fill(&mut changes);
    let fetched = |sets: &KeySets| sets.followed.values().filter(|one| one.task.is_some()).count();
    assert_eq!(fetched(&sets), MAX_URLS_OF_NAMESPACE);
    assert_eq!(sets.left_out, 300 - MAX_URLS_OF_NAMESPACE);
    sets.fill(&mut vec![policy(URL)]);
    assert!(sets.followed[URL].task.is_some(), "the URL of another namespace");
    // A URL that is no longer permitted is not fetched any more. It is fetched again once it is permitted again.
    sets.fill(&mut vec![permit("leno-system", "https://other.example.com")]);
    assert_eq!(fetched(&sets), 0);
    sets.fill(&mut vec![permit("leno-system", "https://id.example.com")]);
    assert_eq!(fetched(&sets), MAX_URLS_OF_NAMESPACE + 1);
}

#[tokio::test]
async fn what_no_policy_names_is_removed_from_the_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = DocumentStore::open(directory.path(), KeySets::is_document).expect("a store");
    store.write(&document(URL), SET);
    store.write(&document("https://id.example.com/named-before-the-last-start"), SET);
    let mut sets = key_sets(Some(store));
    let named = policy(URL);
    let ObjectChange::Upsert(object) = &named else { panic!() };
    let key = object.key();
    sets.fill(&mut vec![named]);
    assert_eq!(std::fs::read_dir(directory.path()).expect("the directory").count(), 1);
    sets.fill(&mut vec![ObjectChange::Delete(key)]);
    assert_eq!(std::fs::read_dir(directory.path()).expect("the directory").count(), 0);
}

fn keys_of(namespace: &str, set: &str) -> ObjectChange {
    change(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: keys, namespace: {namespace}}}\n\
         data: {{jwks.json: '{set}', other: x}}\n"
    ))
}

#[tokio::test]
async fn a_policy_has_the_keys_of_a_secret_of_its_own_namespace() {
    let mut sets = key_sets(None);
    let secret = |namespace: &str| {
        change(&format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: keys, namespace: {namespace}}}\nstringData: {{jwks.json: '{SET}'}}\n"
        ))
    };
    let mut changes = vec![
        change(
            "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
             metadata: {name: p, namespace: shop}\n\
             spec:\n  selector: {}\n  tokens: [{issuer: i, audiences: [a], jwksSecret: keys}]\n  rules: [{}]\n",
        ),
        secret("bank"),
        keys_of("shop", SET),
    ];
    sets.fill(&mut changes);
    assert_eq!(keys(&changes), [""], "the keys of another namespace, and of a ConfigMap");
    let mut added = vec![secret("shop")];
    sets.fill(&mut added);
    assert_eq!(keys(&added), [SET]);
    let ObjectChange::Upsert(object) = secret("shop") else { panic!() };
    let mut deleted = vec![ObjectChange::Delete(object.key())];
    sets.fill(&mut deleted);
    assert_eq!(keys(&deleted), [""]);
}

#[tokio::test]
async fn a_policy_has_the_keys_of_a_config_map_of_its_own_namespace() {
    let mut sets = key_sets(None);
    let mut changes = vec![
        change(
            "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
             metadata: {name: p, namespace: shop}\n\
             spec:\n  selector: {}\n  tokens: [{issuer: i, audiences: [a], jwksConfigMap: keys}]\n  rules: [{}]\n",
        ),
        keys_of("bank", SET),
    ];
    sets.fill(&mut changes);
    assert_eq!(keys(&changes), [""], "the keys of another namespace");
    let mut added = vec![keys_of("shop", SET)];
    sets.fill(&mut added);
    assert_eq!(keys(&added), [SET]);
    let mut same = vec![keys_of("shop", SET)];
    sets.fill(&mut same);
    assert!(keys(&same).is_empty(), "nothing has changed");
    let other = SET.replace("\"a\"", "\"b\"");
    let mut replaced = vec![keys_of("shop", &other)];
    sets.fill(&mut replaced);
    assert_eq!(keys(&replaced), [other.as_str()]);
    // A set that contains only a shared secret has no usable keys.
    let secret = r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#;
    let mut wrong = vec![keys_of("shop", secret)];
    sets.fill(&mut wrong);
    assert_eq!(keys(&wrong), [""]);
    sets.fill(&mut vec![keys_of("shop", SET)]);
    let ObjectChange::Upsert(object) = keys_of("shop", SET) else { panic!() };
    let mut deleted = vec![ObjectChange::Delete(object.key())];
    sets.fill(&mut deleted);
    assert_eq!(keys(&deleted), [""]);
}

/// A server of the set in `served`. Returns its URL, and a counter of how many times the set was fetched.
async fn issuer(served: &Arc<std::sync::Mutex<String>>) -> (String, Arc<AtomicUsize>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let url = format!("http://{}/keys", listener.local_addr().expect("an address"));
    let (served, fetched) = (Arc::clone(served), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&fetched);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let read = stream.read(&mut [0; 4096]).await.expect("a request");
            assert!(read > 0, "a request");
            let set = served.lock().expect("the set").clone();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", set.len());
            counted.fetch_add(1, Ordering::Relaxed);
            stream.write_all(format!("{head}{set}").as_bytes()).await.expect("an answer");
        }
    });
    (url, fetched)
}

/// Some issuers, such as Dex, sign with a new key as soon as they have published it.
#[tokio::test]
async fn an_unknown_key_has_its_set_fetched_early_and_not_more_often_than_the_bound() {
    let served = Arc::new(std::sync::Mutex::new(SET.to_owned()));
    let (url, fetched) = issuer(&served).await;
    let origin = url.trim_end_matches("/keys").to_owned();
    let mut sets = key_sets(None);
    sets.fetcher = sets.fetcher.clone().connecting_to_loopback();
    // With this interval, no regular fetch happens within the test.
    sets.refresh = Duration::from_secs(3_600);
    sets.fill(&mut vec![policy(&url), permit("leno-system", &origin)]);
    assert_eq!(keys(&sets.refreshed().await), [SET]);
    let rotated = SET.replace("\"a\"", "\"b\"");
    served.lock().expect("the set").clone_from(&rotated);
    let began = Instant::now();
    let named = BTreeSet::from(["i".to_owned()]);
    (0..100).for_each(|_| sets.refetch(&named));
    sets.refetch(&BTreeSet::from(["https://other.example.com".to_owned()]));
    assert_eq!(keys(&sets.refreshed().await), [rotated.as_str()]);
    assert!(began.elapsed() > LEAST_PAUSE / 2, "a hundred reports are one fetch, after a pause");
    assert_eq!(fetched.load(Ordering::Relaxed), 2);
    let text = rendered(&sets);
    assert!(text.contains("leno_control_key_refetches_total 100\n"), "{text}");
}

#[tokio::test]
async fn replicas_share_what_one_of_them_has_fetched() {
    let served = Arc::new(std::sync::Mutex::new(SET.to_owned()));
    let (url, _) = issuer(&served).await;
    let origin = url.trim_end_matches("/keys").to_owned();
    let documents = SharedDocuments::new(BTreeMap::new());
    let wanted = documents.wanted();
    let mut sets = key_sets(Some(DocumentStore::shared(documents)));
    sets.fetcher = sets.fetcher.clone().connecting_to_loopback();
    sets.fill(&mut vec![policy(&url), permit("leno-system", &origin)]);
    assert_eq!(wanted.borrow().get(&document(&url)), Some(&None), "another one may have it");
    assert_eq!(keys(&sets.refreshed().await), [SET]);
    let stored = wanted.borrow().clone();
    let stored = stored.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
    // A replica that starts while the permitted server does not answer.
    let mut next = key_sets(Some(DocumentStore::shared(SharedDocuments::new(stored))));
    let mut changes = vec![policy(&url), permit("leno-system", &origin)];
    next.fill(&mut changes);
    assert!(keys(&changes).iter().all(|keys| *keys == SET), "{changes:?}");
}

/// The first changes lack policies if the API server is still starting, or if it does not permit the control plane to
/// list them.
#[tokio::test]
async fn what_is_kept_survives_first_changes_without_policies() {
    let stored: BTreeMap<String, String> = [(document(URL), SET.to_owned())].into();
    let documents = SharedDocuments::new(stored);
    let wanted = documents.wanted();
    let mut sets = key_sets(Some(DocumentStore::shared(documents)));
    sets.fill(&mut vec![permit("leno-system", "https://id.example.com")]);
    assert_eq!(wanted.borrow().get(&document(URL)), Some(&None), "it stays as it is stored");
    let named = policy(URL);
    let ObjectChange::Upsert(object) = &named else { panic!() };
    let key = object.key();
    let mut listed = vec![named.clone()];
    sets.fill(&mut listed);
    assert_eq!(keys(&listed), [SET]);
    // Later, the control plane believes for a while that the kind was removed.
    sets.fill(&mut vec![ObjectChange::Delete(key)]);
    assert_eq!(wanted.borrow().get(&document(URL)), Some(&None));
    let mut again = vec![named];
    sets.fill(&mut again);
    assert_eq!(keys(&again), [SET]);
}

#[tokio::test]
async fn a_set_is_asserted_as_long_as_the_last_fetch_has_found_it() {
    let served = Arc::new(std::sync::Mutex::new(SET.to_owned()));
    let (url, _) = issuer(&served).await;
    let origin = url.trim_end_matches("/keys").to_owned();
    let documents = SharedDocuments::new([(document(&url), SET.to_owned())].into());
    let mut wanted = documents.wanted();
    let mut sets = key_sets(Some(DocumentStore::shared(documents)));
    sets.fetcher = sets.fetcher.clone().connecting_to_loopback();
    sets.refresh = Duration::from_millis(20);
    sets.fill(&mut vec![policy(&url), permit("leno-system", &origin)]);
    assert_eq!(wanted.borrow().get(&document(&url)), Some(&None));
    let mut is = async |expected: Option<&str>| {
        let expected = expected.map(str::to_owned);
        let found = wanted.wait_for(|all| all.get(&document(&url)) == Some(&expected));
        tokio::select! {
            found = found => drop(found.expect("the documents are there")),
            changes = sets.refreshed() => panic!("the same set: {changes:?}"),
        }
    };
    // The set equals the stored one. It is stored again, because another replica may remove the stored document
    // meanwhile.
    is(Some(SET)).await;
    *served.lock().expect("a set") = "no set".to_owned();
    is(None).await;
    *served.lock().expect("a set") = SET.to_owned();
    is(Some(SET)).await;
}

/// The last valid set also contains the key. If the new set was rejected as a whole, the key would remain in use.
#[tokio::test]
async fn a_key_that_is_published_with_its_private_part_is_used_no_longer() {
    let x = "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg";
    let set = |private: &str| {
        let other = format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"b","x":"{x}"{private}}}"#);
        SET.replace("]}", &format!(",{other}]}}"))
    };
    let served = Arc::new(std::sync::Mutex::new(set("")));
    let (url, _) = issuer(&served).await;
    let origin = url.trim_end_matches("/keys").to_owned();
    let mut sets = key_sets(None);
    sets.fetcher = sets.fetcher.clone().connecting_to_loopback();
    sets.refresh = Duration::from_millis(100);
    sets.fill(&mut vec![policy(&url), permit("leno-system", &origin)]);
    let used = |changes: &[ObjectChange]| -> Vec<String> {
        let ObjectChange::Upsert(Object::AuthorizationPolicy(policy)) = &changes[0] else {
            panic!()
        };
        let meaning = policy.policy(&leno_types::TrustDomain::default());
        meaning.tokens[0].keys.iter().map(|key| key.id.as_deref().unwrap().to_owned()).collect()
    };
    assert_eq!(used(&sets.refreshed().await), ["a", "b"]);
    assert!(rendered(&sets).contains("leno_control_keys_left_out 0\n"));
    *served.lock().expect("the set") = set(&format!(r#","d":"{x}""#));
    assert_eq!(used(&sets.refreshed().await), ["a"]);
    let text = rendered(&sets);
    assert!(text.contains("leno_control_keys_left_out 1\n"), "{text}");
    assert!(text.contains("leno_control_key_sets{state=\"current\"} 1\n"), "{text}");
    sets.fill(&mut vec![keys_of("shop", &set(r#","d":"""#))]);
    assert!(rendered(&sets).contains("leno_control_keys_left_out 2\n"));
}

#[tokio::test]
async fn what_is_stored_and_is_no_set_of_keys_is_left_out() {
    let secret = r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#.to_owned();
    let documents = SharedDocuments::new([(document(URL), secret)].into());
    let mut sets = key_sets(Some(DocumentStore::shared(documents)));
    let mut changes = vec![permit("leno-system", "https://id.example.com"), policy(URL)];
    sets.fill(&mut changes);
    assert!(keys(&changes).iter().all(|keys| keys.is_empty()), "{changes:?}");
}
