//! A written object is read back as an equal object, whatever texts it has.

use std::collections::BTreeMap;

use leno_resources::{
    Account, CpuQuantity, Dependency, DependencyCondition, ExecCommand, GrpcCheck, HttpGet,
    HttpHeader, InstanceStatus, MemoryQuantity, Metadata, Object, PortRef, Probe, ProcessResources,
    PublishedPort, ResourceLimits, RestartPolicy, Scheme, StopSignal, TcpSocket, Volume, Workload,
    WorkloadPort, WorkloadSpec, WorkloadStatus, parse, to_yaml,
};
use proptest::prelude::*;

fn label() -> impl Strategy<Value = String> {
    "[a-z]([a-z0-9-]{0,10}[a-z0-9])?"
}

/// Arbitrary texts, and texts that YAML could interpret as values of other types.
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
    fn probe()(
        way in 0..4,
        name in prop::option::of(Just("p0".to_owned())),
        port in 1_u16..,
        word in "[a-z]{1,8}",
        seconds in 1_u32..=3600,
        threshold in 1_u32..=100,
    ) -> Probe {
        let port = name.map_or(PortRef::Number(port), PortRef::Name);
        let mut probe = Probe {
            http_get: None,
            grpc: None,
            tcp_socket: None,
            exec: None,
            initial_delay_seconds: seconds - 1,
            period_seconds: seconds,
            timeout_seconds: seconds,
            success_threshold: 1,
            failure_threshold: threshold,
        };
        match way {
            0 => probe.http_get = Some(HttpGet {
                path: format!("/{word}"),
                port,
                scheme: (threshold % 2 == 0).then_some(Scheme::Http),
                http_headers: vec![HttpHeader { name: word, value: "a b: c".to_owned() }],
            }),
            1 => probe.grpc = Some(GrpcCheck { port, service: word }),
            2 => probe.tcp_socket = Some(TcpSocket { port }),
            _ => probe.exec = Some(ExecCommand { command: vec![word] }),
        }
        probe
    }
}

prop_compose! {
    /// How the process is run; a probe may name the port `p0`, which [`spec`] gives it.
    fn process()(
        user in prop::option::of("[a-z]{1,8}|[0-9]{1,5}"),
        group in prop::option::of("[a-z]{1,8}"),
        mount in prop::option::of("[a-z]{1,8}"),
        read_only in any::<bool>(),
        cpu in prop::option::of(10_u32..100_000),
        memory in prop::option::of(1_u64 << 20..1 << 50),
        init in prop::collection::vec("[a-z]{1,8}", 0..3),
        restart in prop::sample::select(vec![RestartPolicy::Always, RestartPolicy::OnFailure, RestartPolicy::Never]),
        signal in prop::option::of(Just(StopSignal("SIGQUIT"))),
        before in prop::option::of(label()),
        readiness in prop::option::of(probe()),
        liveness in prop::option::of(probe()),
        root in prop::option::of("[a-z]{1,8}"),
    ) -> WorkloadSpec {
        let volume = |name: String| Volume { mount_path: format!("/srv/{name}"), path: name, read_only };
        WorkloadSpec {
            user: user.map(Account),
            group: group.map(Account),
            volumes: mount.map(volume).into_iter().collect(),
            resources: ProcessResources { limits: ResourceLimits { cpu: cpu.map(CpuQuantity), memory: memory.map(MemoryQuantity) } },
            init: init.into_iter().map(|word| ExecCommand { command: vec![word] }).collect(),
            restart,
            stop_signal: signal,
            stop_grace_period: signal.map(|_| leno_resources::Duration(std::time::Duration::from_millis(1500))),
            depends_on: before.into_iter().map(|name| (name, Dependency { condition: DependencyCondition::Completed })).collect(),
            readiness,
            liveness,
            root,
            ..WorkloadSpec::default()
        }
    }
}

prop_compose! {
    fn spec()(
        process in process(),
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
        let mut ports: Vec<WorkloadPort> = ports.into_iter().enumerate().map(port).collect();
        if ports.is_empty() {
            ports.push(WorkloadPort { name: "p0".to_owned(), port: 80, ..WorkloadPort::default() });
        }
        let root = process.root.clone().filter(|_| working_dir.is_none());
        WorkloadSpec {
            root,
            service_account,
            replicas,
            command: std::iter::once(program).chain(arguments).collect(),
            env,
            env_file,
            inherit_env,
            working_dir,
            ports,
            ..process
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
