//! A written object is read back as an equal object, whatever texts it has.

use std::collections::BTreeMap;

use leno_resources::{
    InstanceStatus, Metadata, Object, PublishedPort, Workload, WorkloadPort, WorkloadSpec,
    WorkloadStatus, parse, to_yaml,
};
use proptest::prelude::*;

fn label() -> impl Strategy<Value = String> {
    "[a-z]([a-z0-9-]{0,10}[a-z0-9])?"
}

/// Arbitrary texts, and texts that YAML could take for values of other types.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "",
            "1",
            "0x1f",
            "1e3",
            "true",
            "yes",
            "null",
            "~",
            "- a",
            "a: b",
            "#",
            "*a",
            "&a",
            "!t",
            "'",
            "\"",
            "a\nb",
            "  a",
            "a  ",
            "\t",
            "%x",
            "---",
            "...",
            "1_000",
            ".inf",
            "2026-01-01",
            "{",
            "}",
            "[",
            "]",
            "\\",
            "a #b",
            "|",
            ">",
            "@",
            "`",
            "é",
            "\u{1F600}",
        ])
        .prop_map(str::to_owned),
        "[^\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\r\u{FEFF}\u{FFFE}\u{FFFF}]{0,20}",
    ]
}

prop_compose! {
    fn spec()(
        service_account in label(),
        replicas in 0_u32..=250,
        program in "[a-z]{1,8}",
        arguments in prop::collection::vec(text(), 0..4),
        env in prop::collection::btree_map("[A-Z]{1,4}", text(), 0..4),
        env_file in prop::collection::vec("[a-z]{1,4}", 0..2),
        inherit_env in prop::collection::vec("[A-Z]{1,4}", 0..2),
        working_dir in prop::option::of("[a-z0-9./]{1,8}"),
        ports in prop::collection::btree_map(1_u16..15_000, prop::option::of(text()), 0..4),
    ) -> WorkloadSpec {
        let port = |(index, (port, app_protocol))| WorkloadPort {
            name: format!("p{index}"),
            port,
            app_protocol,
            published: (port % 2 == 0)
                .then(|| PublishedPort(std::net::SocketAddr::from(([127, 0, 0, 1], port)))),
        };
        WorkloadSpec {
            service_account,
            replicas,
            command: std::iter::once(program).chain(arguments).collect(),
            env,
            env_file,
            inherit_env,
            working_dir,
            ports: ports.into_iter().enumerate().map(port).collect(),
        }
    }
}

prop_compose! {
    fn workload()(
        name in label(),
        namespace in label(),
        labels in prop::collection::btree_map("[a-z]{1,4}", text(), 0..3),
        spec in spec(),
        instances in prop::option::of(prop::collection::btree_map(
            label(), (any::<u32>(), any::<bool>(), any::<bool>(), any::<bool>()), 0..3)),
    ) -> Workload {
        let instance = |(index, (name, (bits, meshed, ready, ending)))| InstanceStatus {
            name,
            addresses: vec![std::net::Ipv4Addr::from((bits % 0x00ff_fff0) | 0x0a00_0001).into(),
                std::net::Ipv6Addr::from((0xfd_u128 << 120) | index as u128).into()],
            meshed,
            ready,
            ending,
            pod: None,
        };
        let status = instances.map(|map: BTreeMap<_, _>| WorkloadStatus {
            instances: map.into_iter().enumerate().map(instance).collect(),
        });
        Workload {
            metadata: Metadata { name, namespace, labels, ..Metadata::default() },
            spec,
            status,
        }
    }
}

proptest! {
    #[test]
    fn a_workload_survives_its_yaml(workload in workload()) {
        let object = Object::Workload(Box::new(workload));
        let text = to_yaml(&object);
        match parse("a.yaml", &text) {
            Ok(documents) => prop_assert_eq!(&documents.objects[0].value, &object, "{}", text),
            // Two instances may have the same random address.
            Err(problems) => prop_assert!(
                problems.iter().all(|p| p.reason.ends_with("appears twice")),
                "{:?}\n{}", problems, text
            ),
        }
    }

    #[test]
    fn no_text_panics(text in "[-a-z:{}\\[\\]&*!|>'\"#%@, \n]{0,200}") {
        let _ = parse("a.yaml", &text);
    }
}
