use leno_testkit_api::objects::pod;
use leno_testkit_api::{TestApiServer, binary};
use serde_json::json;

use super::*;

fn ip(last: u8) -> IpAddr {
    [10, 244, 1, last].into()
}

fn name() -> Option<Name> {
    Some(("shop".to_owned(), "web".to_owned()))
}

#[test]
fn each_address_is_asked_for_once_until_its_answer_is_old_and_few_at_once() {
    let (mut peers, begun) = (Peers::default(), Instant::now());
    let strangers: Vec<IpAddr> = (1..=6).map(ip).collect();
    let mut asked = Vec::new();
    for _ in 0..2 {
        let due = peers.due(&strangers, begun);
        assert!(due.len() <= MAX_ASKED);
        for ip in due {
            asked.push(ip);
            let name = if ip == self::ip(1) { name() } else { None };
            assert_eq!(peers.take(ip, name, begun), None);
        }
    }
    assert_eq!(asked, strangers);
    assert_eq!(peers.due(&strangers, begun), [] as [IpAddr; 0]);
    // A peer that has a name is no longer reported as nameless, and is looked up again sooner.
    assert_eq!(peers.due(&strangers[1..], begun + NAMED), [ip(1)]);
    let due = peers.due(&strangers[1..], begun + NAMELESS);
    assert_eq!(due, strangers[1..=MAX_ASKED]);
}

#[test]
fn no_more_addresses_are_remembered_than_the_bound() {
    let (mut peers, begun) = (Peers::default(), Instant::now());
    let at = |number: usize| IpAddr::from([10, 9, (number / 256) as u8, (number % 256) as u8]);
    for number in 0..MAX_KNOWN {
        let when = begun + Duration::from_millis(number as u64);
        assert_eq!(peers.take(at(number), name(), when), None);
    }
    let later = begun + NAMED;
    assert_eq!(peers.take(at(MAX_KNOWN), name(), later), Some(at(0)), "its name is forgotten");
    assert_eq!(peers.0.len(), MAX_KNOWN);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_tells_which_pod_has_an_address() {
    let Some(kube) = binary() else { return };
    let bed = TestApiServer::start(&kube).await;
    bed.apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})).await;
    let account = json!({"name": "web", "namespace": "shop"});
    bed.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})).await;
    bed.apply(pod("web-0", "10.244.1.7")).await;
    bed.set_status(pod("web-0", "10.244.1.7")).await;
    let client = bed.admin.clone();
    let found = pod_at(&client, [10, 244, 1, 7].into()).await.unwrap();
    assert_eq!(found, Some(("shop".to_owned(), "web-0".to_owned())));
    assert_eq!(pod_at(&client, [10, 244, 1, 8].into()).await, Ok(None));
}
