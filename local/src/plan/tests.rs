use std::net::IpAddr;

use hickory_proto::rr::{Name, RecordType};

use super::*;
use crate::dns::ZoneAnswer;

const DEFAULTS: PlanDefaults = PlanDefaults {
    mtls: MtlsMode::Permissive,
    egress: leno_types::Egress::Allow,
    mode: ProxyMode::Sidecar,
    share: ProcessSharing::ServiceAccount,
    capture: CaptureChoice::Auto,
    flows: FlowMetricsSource::Sockets,
    ipv6: true,
    ranges: MeshRanges::DEFAULT,
    spiffe: false,
};

const SHOP: &str = "\
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  replicas: 2
  command: [nginx]
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: shop}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {name: peers, namespace: shop}
spec:
  clusterIP: None
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
";

fn documents(text: &str) -> Documents {
    leno_resources::parse("/srv/mesh.yaml", text).unwrap()
}

fn plan(text: &str) -> Plan {
    Plan::make(&documents(text), DEFAULTS, &Plan::default()).unwrap()
}

fn problems(text: &str) -> String {
    let problems = Plan::make(&documents(text), DEFAULTS, &Plan::default()).unwrap_err();
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

fn instance(name: &str) -> InstanceName {
    name.parse().unwrap()
}

fn workload(name: &str, rest: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}, namespace: \
         shop}}\nspec: {{command: [run], {rest}}}\n---\n"
    )
}

#[test]
fn instances_have_names_addresses_and_a_place_to_start() {
    let plan = plan(SHOP);
    let web = &plan.instances[&instance("shop/web-1")];
    assert_eq!(web.addresses.iter().collect::<Vec<_>>(), ips(&["10.89.0.3", "fd89::3"]));
    assert_eq!(web.label, "web-1");
    assert_eq!(web.launch.directory, std::path::Path::new("/srv"));
    assert_eq!(web.listening, [8080]);
    assert!(web.launch.meshed);
    assert!(web.full_names.contains(&"web-1.front.shop.svc.cluster.local".to_owned()));
}

#[test]
fn services_get_vips_in_both_families_unless_headless() {
    let plan = plan(SHOP);
    let vips = |name: &str| plan.services[&name.parse().unwrap()].vips.clone();
    assert_eq!(vips("shop/front"), ips(&["10.96.0.1", "fd96::1"]));
    assert_eq!(vips("shop/peers"), ips(&[]));
    // This service is implied by the workload's ports.
    assert_eq!(vips("shop/web"), ips(&["10.96.0.2", "fd96::2"]));
}

#[test]
fn a_vip_that_is_asked_for_is_given_and_kept_from_others() {
    let asking = "\
apiVersion: v1
kind: Service
metadata: {name: zoo, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
";
    let plan = plan(&(asking.to_owned() + SHOP));
    let vips = |name: &str| plan.services[&name.parse().unwrap()].vips.clone();
    assert_eq!(vips("shop/zoo")[0], ips(&["10.96.0.1"])[0]);
    assert_eq!(vips("shop/front"), ips(&["10.96.0.2", "fd96::2"]));

    let outside = asking.replace("10.96.0.1", "192.0.2.1");
    let text = problems(&outside);
    assert!(text.starts_with("/srv/mesh.yaml:4:19: spec.clusterIP: 192.0.2.1"), "{text}");
    let twice = asking.to_owned() + &asking.replace("zoo", "zoo2");
    assert!(problems(&twice).contains("is already the address of shop/zoo"));
}

#[test]
fn families_of_a_service_are_respected() {
    let single = "\
apiVersion: v1
kind: Service
metadata: {name: six, namespace: shop}
spec: {ipFamilies: [IPv6], ports: [{port: 80}]}
";
    let plan = plan(single);
    assert_eq!(plan.services[&"shop/six".parse().unwrap()].vips, ips(&["fd96::1"]));
}

#[test]
fn endpoints_follow_selectors_and_named_ports() {
    let other = "\
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: old, namespace: shop, labels: {app: web}}
spec: {command: [run], ports: [{name: http, port: 9090}]}
";
    let plan = plan(&(SHOP.to_owned() + other));
    let yaml = plan.render(&plan.all_ready());
    let read = leno_resources::parse("state.yaml", &yaml).unwrap();
    let mut seen = BTreeSet::new();
    for located in read.objects {
        let Object::EndpointSlice(slice) = located.value else { continue };
        let labels = slice.metadata.labels.unwrap();
        if labels[leno_resources::SERVICE_NAME_LABEL] != "front" {
            continue;
        }
        for endpoint in slice.endpoints.unwrap() {
            let port = slice.ports.as_ref().unwrap()[0].port.unwrap();
            seen.insert(format!("{} {port}", endpoint.addresses[0]));
        }
    }
    let expected = [
        "10.89.0.2 9090",
        "10.89.0.3 8080",
        "10.89.0.4 8080",
        "fd89::2 9090",
        "fd89::3 8080",
        "fd89::4 8080",
    ];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn what_is_rendered_is_read_back_and_says_who_is_ready() {
    let plan = plan(SHOP);
    let ready = ReadyInstances::from([(instance("shop/web-0"), OneFamily::default())]);
    let yaml = plan.render(&ready);
    let read = leno_resources::parse("state.yaml", &yaml).unwrap();
    let workload = read.objects.iter().find_map(|located| match &located.value {
        Object::Workload(workload) => Some(workload),
        _ => None,
    });
    let workload = workload.unwrap();
    assert_eq!(workload.metadata.annotations["leno.dev/mtls"], "permissive");
    let instances = &workload.status.as_ref().unwrap().instances;
    let status: Vec<_> = instances.iter().map(|i| (i.name.as_str(), i.meshed, i.ready)).collect();
    assert_eq!(status, [("web-0", true, true), ("web-1", true, false)]);
    let service = read.objects.iter().find_map(|located| match &located.value {
        Object::Service(service) => Some(service),
        _ => None,
    });
    let spec = service.unwrap().spec.clone().unwrap();
    assert_eq!(spec.cluster_ips.unwrap(), ["10.96.0.1", "fd96::1"]);
    assert_eq!(spec.ports.unwrap()[0].app_protocol.as_deref(), Some("http"));
}

#[test]
fn endpoints_are_where_their_workload_says() {
    let labels = "labels: {app: web, topology.kubernetes.io/zone: a, kubernetes.io/hostname: n1}";
    let plan = plan(&SHOP.replacen("labels: {app: web}", labels, 1));
    let read = leno_resources::parse("state.yaml", &plan.render(&plan.all_ready())).unwrap();
    let mut found = 0;
    for located in read.objects {
        let Object::EndpointSlice(slice) = located.value else { continue };
        for endpoint in slice.endpoints.unwrap() {
            assert_eq!(endpoint.zone.as_deref(), Some("a"));
            assert_eq!(endpoint.node_name.as_deref(), Some("n1"));
            found += 1;
        }
    }
    assert!(found > 0);
}

#[test]
fn names_follow_readiness() {
    let plan = plan(SHOP);
    let ask = |ready: &ReadyInstances, name: &str| {
        let name = Name::from_ascii(name).unwrap();
        let client: IpAddr = "10.89.0.2".parse().unwrap();
        match plan.zone(ready).answer(&name, RecordType::A, (client, false)) {
            ZoneAnswer::Records(records) => records.iter().map(|r| r.data.to_string()).collect(),
            other => vec![format!("{other:?}")],
        }
    };
    let one = ReadyInstances::from([(instance("shop/web-1"), OneFamily::default())]);
    assert_eq!(ask(&one, "peers.shop.svc.cluster.local."), ["10.89.0.3"]);
    assert_eq!(ask(&one, "front.shop.svc.cluster.local."), ["10.96.0.1"]);
    assert_eq!(ask(&plan.all_ready(), "peers.shop.svc.cluster.local."), ["10.89.0.2", "10.89.0.3"]);
}

#[test]
fn an_edit_touches_only_what_it_changes() {
    let text = workload("api", "ports: [{port: 80}]") + &workload("web", "replicas: 2");
    let before = plan(&text);
    let same = Plan::make(&documents(&text), DEFAULTS, &before).unwrap();
    assert!(before.instances.values().all(|instance| same.wants(instance)));

    let edited = workload("aaa", "replicas: 1")
        + &workload("api", "ports: [{port: 81}]")
        + &workload("web", "replicas: 3, env: {A: b}");
    let after = Plan::make(&documents(&edited), DEFAULTS, &before).unwrap();
    let wanted = before.instances.values().filter(|instance| after.wants(instance));
    let names: Vec<String> = wanted.map(|instance| instance.name.to_string()).collect();
    assert_eq!(names, ["shop/api-0"]);
    assert!(after.instances.contains_key(&instance("shop/web-2")));
    let address = |plan: &Plan| plan.instances[&instance("shop/api-0")].addresses;
    assert_eq!(address(&before), address(&after));
}

#[test]
fn settings_come_from_the_workload_before_the_namespace() {
    let text = "\
apiVersion: v1
kind: Namespace
metadata:
  name: shop
  annotations: {leno.dev/mtls: strict, leno.dev/capture: nftables}
  labels: {leno.dev/inject: disabled}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop, labels: {leno.dev/inject: enabled}}
spec: {command: [run]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: job, namespace: shop, annotations: {leno.dev/mtls: disabled}}
spec: {command: [run]}
";
    let plan = plan(text);
    let web = &plan.instances[&instance("shop/web-0")];
    let job = &plan.instances[&instance("shop/job-0")];
    assert!(web.launch.meshed);
    assert_eq!(web.mtls, MtlsMode::Strict);
    assert_eq!(web.launch.capture.to_string(), "nftables");
    assert!(!job.launch.meshed);
    assert_eq!(job.mtls, MtlsMode::Disabled);
}

#[test]
fn datagrams_are_carried_where_a_port_or_an_annotation_asks() {
    let of = |of_namespace: &str, of_workload: &str, port: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, annotations: \
             {{{of_namespace}}}}}\n---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: \
             {{name: game, namespace: shop, labels: {{{of_workload}}}}}\nspec: {{command: [run], \
             ports: [{{name: play, port: 7000, appProtocol: {port}}}]}}\n"
        );
        let plan = Plan::make(&documents(&text), DEFAULTS, &Plan::default());
        plan.map(|plan| {
            let game = &plan.instances[&instance("shop/game-0")];
            (game.launch.datagrams, game.listening.clone())
        })
        .map_err(|problems| problems[0].to_string())
    };
    use leno_types::Datagrams::{All, Enabled, Off};
    assert_eq!(of("", "", "tcp"), Ok((Off, vec![7000])));
    assert_eq!(of("", "", "leno.dev/udp"), Ok((Enabled, vec![])), "nothing listens by TCP");
    assert_eq!(of("leno.dev/udp: all", "", "tcp"), Ok((All, vec![7000])));
    assert_eq!(of("leno.dev/udp: all", "leno.dev/udp: enabled", "tcp").unwrap().0, Enabled);
    assert_eq!(of("", "leno.dev/inject: disabled", "leno.dev/udp").unwrap().0, Off);
    assert_eq!(of("leno.dev/mode: node", "", "leno.dev/udp").unwrap().0, Enabled);
    for (of_namespace, of_workload, reason) in [
        ("leno.dev/udp: off", "", "its datagrams would not be carried"),
        ("", "leno.dev/capture: nftables", "nftables cannot capture datagrams"),
    ] {
        let problem = of(of_namespace, of_workload, "leno.dev/udp").unwrap_err();
        assert!(problem.contains(reason), "{problem}");
    }
}

#[test]
fn datagrams_are_carried_where_a_service_has_a_port_of_them() {
    use leno_types::Datagrams::{Enabled, Off};
    let of = |annotations: &str, service: &str| {
        let text = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: game, namespace: shop, labels: {{app: \
             game}}, annotations: {{{annotations}}}}}\nspec: {{command: [run]}}\n---\napiVersion: v1\nkind: Service\n\
             metadata: {{name: front, {service}\n"
        );
        plan(&text).instances[&instance("shop/game-0")].launch.datagrams
    };
    let udp = "ports: [{port: 70, protocol: UDP, appProtocol: leno.dev/udp}]}";
    let selecting =
        |app: &str| format!("namespace: shop}}\nspec: {{selector: {{app: {app}}}, {udp}");
    assert_eq!(of("", &selecting("game")), Enabled);
    assert_eq!(of("", &selecting("other")), Off);
    assert_eq!(of("leno.dev/udp: 'off'", &selecting("game")), Off, "the annotation wins");
    let tcp = selecting("game").replace(", protocol: UDP, appProtocol: leno.dev/udp", "");
    assert_eq!(of("", &tcp), Off);
    let elsewhere = selecting("game").replace("namespace: shop", "namespace: other");
    assert_eq!(of("", &elsewhere), Off);
    let unselecting = format!("namespace: shop}}\nspec: {{clusterIP: None, {udp}");
    assert_eq!(of("", &unselecting), Off);
}

#[test]
fn who_shares_a_node_proxy_is_said_on_workload_or_namespace() {
    let group = |of_namespace: &str, of_workload: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, annotations: \
             {{{of_namespace}}}}}\n---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: \
             {{name: web, namespace: shop, labels: {{{of_workload}}}}}\nspec: {{command: [run], \
             serviceAccount: front}}\n"
        );
        plan(&text).instances[&instance("shop/web-0")].launch.group.clone()
    };
    let (node, shared) = ("leno.dev/mode: node", "leno.dev/share: namespace");
    assert_eq!(group("", ""), None);
    assert_eq!(group("", shared), None, "a sidecar is shared by none");
    assert_eq!(group(node, "leno.dev/mode: sidecar"), None);
    assert_eq!(group(node, "leno.dev/inject: disabled"), None);
    assert_eq!(group(node, "").as_deref(), Some("service-account.shop.front"));
    assert_eq!(group(&format!("{node}, {shared}"), "").as_deref(), Some("namespace.shop"));
    let both = format!("{node}, {shared}");
    assert_eq!(group(&both, "leno.dev/share: node").as_deref(), Some("node"));
    assert_eq!(group(&both, "leno.dev/share: workload").as_deref(), Some("workload.shop.web-0"));
}

#[test]
fn a_change_of_mode_alone_has_another_proxy_take_over() {
    let with = |annotations: &str, command: &str| {
        plan(&format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: web, namespace: shop, \
             annotations: {{{annotations}}}}}\nspec: {{command: [{command}]}}\n"
        ))
    };
    let (node, sidecar) = (with("leno.dev/mode: node", "run"), with("", "run"));
    let of = |plan: &Plan| plan.instances[&instance("shop/web-0")].clone();
    let group = Some("service-account.shop.default".to_owned());
    assert_eq!(node.moves(&of(&sidecar)), Some(&group));
    assert_eq!(sidecar.moves(&of(&node)), Some(&None));
    assert_eq!(node.moves(&of(&node)), None, "it is there");
    assert_eq!(with("leno.dev/mode: node", "other").moves(&of(&sidecar)), None);
    let unmeshed = with("leno.dev/inject: disabled", "run");
    assert_eq!((unmeshed.moves(&of(&node)), node.moves(&of(&unmeshed))), (None, None));
}

#[test]
fn a_change_of_when_an_instance_is_promoted_starts_nothing_again() {
    let after = |of_namespace: &str, of_workload: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, annotations: \
             {{{of_namespace}}}}}\n---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: \
             {{name: web, namespace: shop, annotations: {{{of_workload}}}}}\nspec: {{command: [run]}}\n"
        );
        plan(&text)
    };
    let of = |plan: &Plan| plan.instances[&instance("shop/web-0")].promote_after;
    let before = after("", "");
    let minute = after("leno.dev/promote-after: 1m", "");
    let off = after("leno.dev/promote-after: 1m", "leno.dev/promote-after: 'off'");
    assert_eq!(of(&before), None);
    assert_eq!(of(&minute), Some(Some(std::time::Duration::from_secs(60))));
    assert_eq!(of(&off), Some(None));
    assert!(off.wants(&before.instances[&instance("shop/web-0")]));
}

#[test]
fn certificates_of_a_workload_api_are_for_proxies_of_one_workload() {
    let with = |of_namespace: &str, of_workload: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, annotations: \
             {{{of_namespace}}}}}\n---\napiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: \
             {{name: web, namespace: shop, annotations: {{{of_workload}}}}}\nspec: {{command: [run]}}\n"
        )
    };
    let default = "unix:///default".parse().unwrap();
    let address = |of_namespace: &str, of_workload: &str| {
        let plan = plan(&with(of_namespace, of_workload));
        let certificates = &plan.instances[&instance("shop/web-0")].launch.certificates;
        certificates.workload_api(Some(&default)).map(ToString::to_string)
    };
    let (one, other) = (
        "leno.dev/spiffe-endpoint-socket: 'unix:///one'",
        "leno.dev/spiffe-endpoint-socket: 'unix:///other'",
    );
    let off = "leno.dev/spiffe-endpoint-socket: 'off'";
    assert_eq!(address("", "").as_deref(), Some("unix:///default"));
    assert_eq!(address(one, "").as_deref(), Some("unix:///one"));
    assert_eq!(address(one, other).as_deref(), Some("unix:///other"));
    assert_eq!(address(one, off), None);
    let shared = format!("leno.dev/mode: node, {one}");
    let text = problems(&with("", &shared));
    assert!(
        text.contains("a node proxy cannot get certificates from a SPIFFE Workload API"),
        "{text}"
    );
    let by_default = PlanDefaults { spiffe: true, mode: ProxyMode::Node, ..DEFAULTS };
    let made = |text: &str| Plan::make(&documents(text), by_default, &Plan::default());
    assert!(made(&with("", "")).is_err());
    assert!(made(&with("", off)).is_ok());
    assert!(made(&with("", "leno.dev/inject: disabled")).is_ok());
}

/// A value for a setting of a namespace that changes the plan of the namespace's workloads. The error is the
/// reason why the setting changes nothing.
fn of_namespace(setting: &str, mode: &str) -> Result<&'static str, &'static str> {
    Ok(match setting {
        "leno.dev/inject" => "disabled",
        "leno.dev/mtls" => "strict",
        "leno.dev/egress" => "deny",
        "leno.dev/path-normalisation" => "none",
        "leno.dev/udp" => "all",
        "leno.dev/capture" => "nftables",
        "leno.dev/spiffe-endpoint-socket" => "'unix:///one'",
        "leno.dev/flow-metrics" => "packets",
        "leno.dev/flow-cpu-budget" => "0.2%",
        "leno.dev/flow-map-size" | "leno.dev/flow-ring-size" => "'100'",
        "leno.dev/promote-after" => "90s",
        "leno.dev/share" if mode == "sidecar" => return Err("of node mode"),
        "leno.dev/share" => "namespace",
        // The test sets the mode itself.
        "leno.dev/mode" => return Err("which is the mode of the table"),
        "leno.dev/default-authorization"
        | "leno.dev/tunnel"
        | "leno.dev/use-waypoint"
        | "leno.dev/use-waypoint-namespace"
        | "leno.dev/keys-from" => return Err("the control plane follows it"),
        "leno.dev/waypoint" | "leno.dev/waypoint-from" => return Err("a label of workloads"),
        "leno.dev/workload-api" => return Err("all workloads have it"),
        forgotten => panic!("{forgotten}: follow it of namespaces, or say here what does"),
    })
}

#[test]
fn each_setting_of_a_namespace_reaches_its_workloads_in_both_modes_or_says_why_not() {
    let planned = |mode: &str, setting: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, annotations: {{leno.dev/mode: {mode}{setting}}}}}\n\
             ---\n{SHOP}"
        );
        let plan = Plan::make(&documents(&text), DEFAULTS, &Plan::default());
        // The other parts of the plan are passed on to the control plane unchanged, so they differ in any case and
        // are not compared.
        plan.map(|plan| (plan.instances, plan.workloads, plan.flow_sizes)).map_err(|_| ())
    };
    assert_ne!(planned("node", ""), planned("sidecar", ""));
    for mode in ["sidecar", "node"] {
        for setting in leno_resources::SETTINGS {
            let Ok(value) = of_namespace(setting, mode) else { continue };
            let changed = planned(mode, &format!(", {setting}: {value}"));
            assert_ne!(changed, planned(mode, ""), "{setting}: {value} in mode {mode}");
        }
    }
}

#[test]
fn problems_say_where_and_what_to_do() {
    let missing = SHOP.replace("targetPort: http", "targetPort: https");
    let text = problems(&missing);
    assert!(text.contains("no selected workload has a port named \"https\""), "{text}");
    assert!(text.starts_with("/srv/mesh.yaml:"), "{text}");
    let many = SHOP.replace("labels: {app: web}}", "labels: {leno.dev/mode: node}}");
    let text = problems(&many.replace("replicas: 2", "replicas: 65"));
    assert!(text.contains("would serve more than 64 instances"), "{text}");
    assert!(text.contains("leno.dev/share, for example workload"), "{text}");
}

#[test]
fn what_the_control_plane_reads_is_taken_with_the_longest_names() {
    let long = "w".repeat(61);
    let text = workload(&long, "ports: [{port: 80}]").replace("shop", &"n".repeat(63));
    let plan = plan(&text);
    let rendered = plan.render(&plan.all_ready());
    let read = leno_resources::parse("state.yaml", &rendered);
    assert!(read.is_ok(), "{:?}\n{rendered}", read.unwrap_err());
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_name_outside_has_an_address_where_it_has_ports() {
    let pay = "apiVersion: v1\nkind: Service\nmetadata: {name: pay, namespace: shop}\n\
               spec: {type: ExternalName, externalName: api.example.com, PORTS}\n";
    let with = |ports: &str| plan(&format!("{SHOP}---\n{}", pay.replace("PORTS", ports)));
    let ask = |plan: &Plan, name: &str, client: &str| {
        let name = Name::from_ascii(name).unwrap();
        let zone = plan.zone(&plan.all_ready());
        match zone.answer(&name, RecordType::A, (client.parse().unwrap(), false)) {
            ZoneAnswer::Records(records) => records.iter().map(|r| r.data.to_string()).collect(),
            other => format!("{other:?}"),
        }
    };
    let (meshed, elsewhere) = ("10.89.0.2", "10.89.9.9");
    let external = with("ports: [{port: 80, targetPort: 443}]");
    let vip = ask(&external, "pay.shop.svc.cluster.local.", meshed);
    assert!(vip.starts_with("10.96."), "{vip}");
    assert_eq!(ask(&external, "api.example.com.", meshed), vip);
    assert!(ask(&external, "api.example.com.", elsewhere).contains("Elsewhere"));
    let rendered = external.render(&external.all_ready());
    assert!(rendered.contains(&format!("clusterIP: \"{vip}\"")), "{rendered}");
    let alias = with("ports: []");
    assert!(ask(&alias, "pay.shop.svc.cluster.local.", meshed).contains("Alias"));
    assert!(ask(&alias, "api.example.com.", meshed).contains("Elsewhere"));
}

fn alias(name: &str, host: &str, ports: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{type: \
         ExternalName, externalName: {host}{ports}}}\n"
    )
}

#[test]
fn an_alias_of_a_service_leads_to_its_instances() {
    let ports = ", ports: [{name: http, port: 9000, targetPort: 80}]";
    let text = SHOP.to_owned()
        + &alias("shown", "front.shop.svc.cluster.local", ports)
        + &alias("bare", "shown.shop.svc.cluster.local", "")
        + &alias("again", "bare.shop.svc.cluster.local.", ", ports: [{port: 9000}]");
    let plan = plan(&text);
    for name in ["shop/shown", "shop/again"] {
        let service = &plan.services[&name.parse().unwrap()];
        assert!(!service.vips.is_empty() && service.external_name().is_none(), "{name}");
        let ports: Vec<_> = service.endpoints.iter().map(|one| one.ports.clone()).collect();
        assert_eq!(ports, [[Some(8080)], [Some(8080)]], "{name}");
        assert_eq!(service.ports()[0].app_protocol.as_deref(), Some("http"), "{name}");
    }
    // An alias without ports remains a name in DNS only.
    let text = SHOP.to_owned() + &alias("bare", "front.shop.svc.cluster.local", "");
    let bare = &self::plan(&text).services[&"shop/bare".parse().unwrap()];
    assert_eq!(bare.external_name(), Some("front.shop.svc.cluster.local"));
}

#[test]
fn aliases_that_lead_nowhere_are_refused() {
    let cycle = SHOP.to_owned()
        + &alias("a", "b.shop.svc.cluster.local", "")
        + &alias("b", "a.shop.svc.cluster.local", ", ports: [{port: 80}]");
    assert_eq!(
        problems(&cycle),
        "/srv/mesh.yaml:27:42: spec.externalName: the names refer to each other in a circle: shop/a -> shop/b -> shop/a\n\
         /srv/mesh.yaml:32:42: spec.externalName: the names refer to each other in a circle: shop/b -> shop/a -> shop/b"
    );
    let port =
        SHOP.to_owned() + &alias("a", "front.shop.svc.cluster.local", ", ports: [{port: 81}]");
    assert_eq!(
        problems(&port),
        "/srv/mesh.yaml:27:80: spec.ports[0]: shop/front has no port 81: use one of 80"
    );
}

#[test]
fn a_port_of_udp_with_a_virtual_address_is_refused() {
    let service = |more: &str| {
        format!(
            "{SHOP}---\napiVersion: v1\nkind: Service\nmetadata: {{name: dns, namespace: shop}}\nspec: \
             {{{more}selector: {{app: web}}, ports: [{{port: 53, protocol: UDP}}]}}\n"
        )
    };
    assert_eq!(
        problems(&service("")),
        "/srv/mesh.yaml:27:59: spec.ports[0].protocol: the address of a Service carries only TCP, not UDP \
         without appProtocol: leno.dev/udp: make it headless (clusterIP: None), so that clients connect to the instances themselves"
    );
    assert_eq!(plan(&service("clusterIP: None, ")).services.len(), 4);
    let carried = service("").replace("protocol: UDP", "protocol: UDP, appProtocol: leno.dev/udp");
    assert_eq!(plan(&carried).services.len(), 4);
}
