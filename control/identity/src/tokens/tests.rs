//! Tests tokens with one store, with two stores on one directory, and with invalid files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use leno_types::{Identity, InstanceName};

use super::{MAX_TOKENS, TokenError, TokenStore};

fn instance(name: &str) -> InstanceName {
    InstanceName::new("shop", name).unwrap()
}

fn identity(account: &str) -> Identity {
    format!("spiffe://cluster.local/ns/shop/sa/{account}").parse().unwrap()
}

fn open(directory: &Path) -> TokenStore {
    TokenStore::open(directory).unwrap()
}

#[test]
fn a_token_proves_its_instance_until_it_is_revoked() {
    let temporary = tempfile::tempdir().unwrap();
    let store = open(&temporary.path().join("tokens"));
    let web = store.grant(&instance("web-0"), &identity("web")).unwrap();
    let api = store.grant(&instance("api-0"), &identity("api")).unwrap();
    assert_eq!(store.authenticate(&web).unwrap(), (instance("web-0"), identity("web")));
    assert_eq!(store.authenticate(&api).unwrap(), (instance("api-0"), identity("api")));

    assert!(store.revoke(&instance("web-0")).unwrap());
    assert!(matches!(store.authenticate(&web), Err(TokenError::Unknown)));
    assert_eq!(store.authenticate(&api).unwrap().0, instance("api-0"));
    assert!(!store.revoke(&instance("web-0")).unwrap());
}

#[test]
fn another_process_knows_who_an_instance_is_until_its_token_is_revoked() {
    let temporary = tempfile::tempdir().unwrap();
    let (granting, reading) = (open(temporary.path()), open(temporary.path()));
    assert_eq!(reading.identity_of(&instance("web-0")).unwrap(), None);
    granting.grant(&instance("web-0"), &identity("web")).unwrap();
    assert_eq!(reading.identity_of(&instance("web-0")).unwrap(), Some(identity("web")));
    assert_eq!(reading.identity_of(&instance("api-0")).unwrap(), None);
    granting.revoke(&instance("web-0")).unwrap();
    assert_eq!(reading.identity_of(&instance("web-0")).unwrap(), None);
}

#[test]
fn a_second_grant_voids_the_first() {
    let temporary = tempfile::tempdir().unwrap();
    let store = open(temporary.path());
    let [first, second] =
        [0, 1].map(|_| store.grant(&instance("web-0"), &identity("web")).unwrap());
    assert_ne!(first, second);
    assert!(matches!(store.authenticate(&first), Err(TokenError::Unknown)));
    store.authenticate(&second).unwrap();
}

#[test]
fn a_wrong_or_mangled_token_proves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let store = open(temporary.path());
    let token = store.grant(&instance("web-0"), &identity("web")).unwrap();
    assert!(matches!(store.authenticate(&"0".repeat(64)), Err(TokenError::Unknown)));
    let longer = format!("{token}0");
    let spaced = format!("{token}\n");
    for mangled in ["", &token[..63], &longer, &spaced, &token.to_uppercase(), &"g".repeat(64)] {
        let refused = store.authenticate(mangled).unwrap_err();
        assert!(matches!(refused, TokenError::Malformed), "{mangled:?}: {refused}");
    }
}

#[test]
fn the_directory_holds_no_token() {
    let temporary = tempfile::tempdir().unwrap();
    let store = open(temporary.path());
    let token = store.grant(&instance("web-0"), &identity("web")).unwrap();
    let path = temporary.path().join("shop.web-0");
    let content = fs::read_to_string(&path).unwrap();
    assert!(content.contains("shop/web-0") && !content.contains(&token));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 1);

    // The digest is not a valid token.
    let digest = content.split('"').find(|text| text.len() == 64).unwrap();
    assert!(matches!(store.authenticate(digest), Err(TokenError::Unknown)));
}

#[test]
fn what_another_process_grants_and_revokes_counts_at_once() {
    let temporary = tempfile::tempdir().unwrap();
    let (leno_up, controller) = (open(temporary.path()), open(temporary.path()));
    for round in 0..50 {
        let name = instance(&format!("web-{round}"));
        let token = leno_up.grant(&name, &identity("web")).unwrap();
        assert_eq!(controller.authenticate(&token).unwrap().0, name);
        leno_up.revoke(&name).unwrap();
        assert!(matches!(controller.authenticate(&token), Err(TokenError::Unknown)));
    }
}

#[test]
fn a_settled_listing_is_replaced_when_the_directory_changes() {
    let temporary = tempfile::tempdir().unwrap();
    let (leno_up, controller) = (open(temporary.path()), open(temporary.path()));
    // Makes the directory's last change an hour old.
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_hours(1);
    let directory = fs::File::open(temporary.path()).unwrap();
    directory.set_modified(long_ago).unwrap();
    let unknown = "0".repeat(64);
    assert!(controller.authenticate(&unknown).is_err());
    assert!(controller.listing.lock().unwrap().is_current(temporary.path()).unwrap());

    let token = leno_up.grant(&instance("web-0"), &identity("web")).unwrap();
    assert_eq!(controller.authenticate(&token).unwrap().0, instance("web-0"));
}

#[test]
fn tokens_survive_a_restart() {
    let temporary = tempfile::tempdir().unwrap();
    let token = open(temporary.path()).grant(&instance("web-0"), &identity("web")).unwrap();
    assert_eq!(open(temporary.path()).authenticate(&token).unwrap().1, identity("web"));
}

#[test]
fn bad_files_are_named_and_harm_no_other() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name);
    let store = open(temporary.path());
    let token = store.grant(&instance("web-0"), &identity("web")).unwrap();
    let good = fs::read_to_string(path("shop.web-0")).unwrap();
    let stolen = store.grant(&instance("api-0"), &identity("api")).unwrap();
    fs::rename(path("shop.api-0"), path("shop.renamed-0")).unwrap();
    fs::write(path("shop.cut-0"), &good[..good.len() / 2]).unwrap();
    fs::write(path("shop.huge-0"), " ".repeat(5000)).unwrap();
    fs::write(path("shop.hex-0"), good.replace("web-0", "hex-0").replace("\"sha256\":\"", "$0z"))
        .unwrap();
    fs::write(path("shop.name-0"), good.replace("spiffe://", "https://")).unwrap();
    fs::create_dir(path("shop.directory-0")).unwrap();
    fs::write(path(".new-0123"), "on its way").unwrap();

    assert_eq!(store.authenticate(&token).unwrap().0, instance("web-0"));
    assert!(matches!(store.authenticate(&stolen), Err(TokenError::Unknown)));
    let mut bad = store.bad_tokens().unwrap();
    bad.sort_by(|a, b| a.file.cmp(&b.file));
    let names: Vec<_> =
        bad.iter().map(|bad| bad.file.file_name().unwrap().to_str().unwrap()).collect();
    let expected = ["cut-0", "directory-0", "hex-0", "huge-0", "name-0", "renamed-0"];
    assert_eq!(names, expected.map(|name| format!("shop.{name}")));
    assert!(bad[5].reason.contains("should be named shop.api-0"), "{}", bad[5].reason);

    // A new grant replaces the instance's invalid file.
    let repaired = store.grant(&instance("cut-0"), &identity("web")).unwrap();
    assert_eq!(store.authenticate(&repaired).unwrap().0, instance("cut-0"));
}

#[test]
fn a_store_has_room_for_a_bounded_number() {
    let temporary = tempfile::tempdir().unwrap();
    let store = open(temporary.path());
    let token = store.grant(&instance("web-0"), &identity("web")).unwrap();
    for number in 1..MAX_TOKENS {
        fs::write(temporary.path().join(format!("shop.filler-{number}")), "").unwrap();
    }
    let refused = store.grant(&instance("web-1"), &identity("web")).unwrap_err();
    assert!(matches!(refused, TokenError::Full(_)), "{refused}");
    assert_eq!(store.authenticate(&token).unwrap().0, instance("web-0"));
    store.grant(&instance("web-0"), &identity("web")).unwrap();

    fs::write(temporary.path().join("shop.one-too-many"), "").unwrap();
    let bad = store.bad_tokens().unwrap();
    assert_eq!(bad.iter().filter(|bad| bad.reason.contains("over the 4096")).count(), 1);
}

#[test]
fn no_token_is_accepted_when_the_directory_is_gone() {
    let temporary = tempfile::tempdir().unwrap();
    let store = open(temporary.path());
    let token = store.grant(&instance("web-0"), &identity("web")).unwrap();
    store.authenticate(&token).unwrap();
    fs::remove_dir_all(temporary.path()).unwrap();
    assert!(matches!(store.authenticate(&token), Err(TokenError::File(_))));
}
