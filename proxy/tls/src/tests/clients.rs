//! Tests which client configurations, and so which cached sessions, a worker keeps.

use std::sync::Arc;

use leno_types::Identity;

use super::ca::{Ca, Clock, WEB};
use crate::clients::{ClientConfigs, MAX_IDENTITIES};

fn server(number: usize) -> Identity {
    format!("spiffe://cluster.local/ns/shop/sa/server-{number}").parse().unwrap()
}

#[test]
fn a_full_cache_evicts_the_least_recently_used_configuration_only() {
    let current = Arc::new(Ca::new("mesh").configs(WEB, &Clock::new()));
    let mut clients = ClientConfigs::default();
    let before: Vec<_> =
        (0..MAX_IDENTITIES).map(|number| clients.get(&current, &server(number))).collect();
    // The cache is full, and the configuration of each identity in it stays in use.
    for (number, client) in before.iter().enumerate().filter(|(number, _)| *number != 7) {
        assert!(Arc::ptr_eq(client, &clients.get(&current, &server(number))), "{number}");
    }
    clients.get(&current, &server(MAX_IDENTITIES));
    for (number, client) in before.iter().enumerate().filter(|(number, _)| *number != 7) {
        assert!(Arc::ptr_eq(client, &clients.get(&current, &server(number))), "{number}");
    }
    assert!(!Arc::ptr_eq(&before[7], &clients.get(&current, &server(7))));
}

#[test]
fn other_credentials_replace_all_configurations() {
    let (ca, clock) = (Ca::new("mesh"), Clock::new());
    let (current, next) = (Arc::new(ca.configs(WEB, &clock)), Arc::new(ca.configs(WEB, &clock)));
    let mut clients = ClientConfigs::default();
    let before = clients.get(&current, &server(1));
    assert!(Arc::ptr_eq(&before, &clients.get(&current, &server(1))));
    assert!(!Arc::ptr_eq(&before, &clients.get(&next, &server(1))));
}
