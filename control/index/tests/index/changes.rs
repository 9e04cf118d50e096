//! Tests which changes the index reports, and which object owns an address that several claim.

use std::sync::Arc;

use leno_index::{AddressOwner, ObjectChange};
use leno_types::mesh::Resolution;

use crate::support::{SHOP, index, ip, names, objects, put, service, shop};

#[test]
fn the_same_again_changes_nothing_and_keeps_the_values() {
    let mut index = shop();
    let before = service(&index, "shop/web");
    assert!(put(&mut index, SHOP).is_empty());
    assert!(Arc::ptr_eq(&before, &service(&index, "shop/web")));
}

#[test]
fn an_endpoint_that_comes_changes_its_service_alone() {
    let mut index = shop();
    let text = SHOP.replace("conditions: {ready: true}", "conditions: {ready: false}");
    let changed = put(&mut index, &text.replace(r#"["fd89::3"]"#, r#"["fd89::33"]"#));
    assert_eq!(names(&changed.services), ["shop/web"]);
    assert_eq!(names(&changed.addresses), ["10.96.0.1", "fd96::1"]);
    assert!(changed.workloads.is_empty() && changed.policies.is_empty());
}

#[test]
fn of_two_changes_of_one_object_the_later_one_holds() {
    let mut index = shop();
    let web = objects(SHOP).swap_remove(1);
    let there_again = vec![ObjectChange::Delete(web.key()), ObjectChange::Upsert(web.clone())];
    assert!(index.apply_all(there_again).is_empty());
    let gone =
        index.apply_all(vec![ObjectChange::Upsert(web.clone()), ObjectChange::Delete(web.key())]);
    assert_eq!(names(&gone.services), ["shop/web"]);
    assert!(index.service(&"shop/web".parse().unwrap()).is_none());
}

#[test]
fn an_address_that_moves_is_told_once_with_its_new_answer() {
    let mut index = shop();
    let mut other = objects(SHOP).swap_remove(1);
    let key = other.key();
    let leno_resources::Object::Service(service) = &mut other else {
        panic!("the second document is the service");
    };
    service.metadata.name = Some("web2".to_owned());
    let changed = index.apply_all(vec![ObjectChange::Delete(key), ObjectChange::Upsert(other)]);
    assert_eq!(names(&changed.services), ["shop/web", "shop/web2"]);
    assert_eq!(names(&changed.addresses), ["10.96.0.1", "fd96::1"]);
    match index.resolve(&ip("10.96.0.1").into(), "client") {
        Resolution::Service(service) => assert_eq!(&*service.name.name, "web2"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_address_that_several_claim_goes_to_the_first_and_on_to_the_next() {
    let mut index = shop();
    let service = |name: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop}}, \
             spec: {{clusterIP: 10.89.0.2, ports: [{{port: 80}}]}}}}"
        )
    };
    let holder = |index: &leno_index::Index| match index.address(ip("10.89.0.2")).unwrap() {
        AddressOwner::Service(service) => service.name.to_string(),
        AddressOwner::Workload(workload) => workload.name.to_string(),
    };
    assert_eq!(holder(&index), "shop/web-0");
    let changed = put(&mut index, &service("b"));
    assert_eq!(names(&changed.addresses), ["10.89.0.2"]);
    assert_eq!(holder(&index), "shop/b");
    let web = index.address(ip("fd89::2")).unwrap();
    assert_eq!(index.aliases(&web), [ip("fd89::2")], "less what another one holds");
    put(&mut index, &service("a"));
    assert_eq!(holder(&index), "shop/a");
    for name in ["a", "b"] {
        index.apply(ObjectChange::Delete(objects(&service(name))[0].key()));
    }
    assert_eq!(holder(&index), "shop/web-0");
}

/// A first list is built in batches of 512 objects. A mistake could occur between the end of one batch and the
/// start of the next.
#[test]
fn batches_of_a_first_list_give_the_same_objects_as_single_changes() {
    let pair = |number: usize, moved: usize| {
        let [service, workload] = [number + moved, number].map(|nth| (nth / 250, nth % 250));
        let text = format!(
            r#"
{{apiVersion: v1, kind: Service, metadata: {{name: s{number}, namespace: shop}},
  spec: {{clusterIP: 10.96.{}.{}, ports: [{{port: 80}}]}}}}
---
{{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {{name: w{number}, namespace: shop}},
  spec: {{serviceAccount: web, command: [web], ports: [{{port: 80}}]}},
  status: {{instances: [{{name: w{number}-0, addresses: [10.89.{}.{}], meshed: true, ready: true}}]}}}}
"#,
            service.0, service.1, workload.0, workload.1
        );
        objects(&text).into_iter().map(ObjectChange::Upsert)
    };
    for count in [511, 512, 513, 1_024, 1_025] {
        let all: Vec<ObjectChange> = (0..count).flat_map(|number| pair(number, 0)).collect();
        // Each service takes over the address of the next one, also across the border between two batches.
        let moved: Vec<ObjectChange> = (0..count).flat_map(|number| pair(number, 1)).collect();
        let (mut preloaded, mut told) = (index(), index());
        for changes in [all, moved] {
            preloaded.preload(changes.clone());
            assert_eq!(preloaded.apply_all(vec![]), told.apply_all(changes), "{count}");
            assert_eq!(format!("{preloaded:?}"), format!("{told:?}"), "{count}");
        }
    }
}
