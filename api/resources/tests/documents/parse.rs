//! Which documents the parser accepts, and the errors of the others.

use leno_resources::{Kind, Object, Position, load, parse, to_yaml};
use leno_types::{MtlsMode, Protocol};

const MESH: &str = "\
# A mesh.
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  serviceAccount: web
  replicas: 2
  command: [nginx, -c, nginx.conf]
  env: {MODE: prod, LEVEL: \"3\"}
  workingDir: .
  ports: [{name: http, port: 8080, appProtocol: http}]
---
---
apiVersion: v1
kind: Service
metadata:
  name: web
  creationTimestamp: null
spec:
  selector: {app: web}
  ports:
  - port: 80
    targetPort: http
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: other}
---
apiVersion: v1
kind: Secret
metadata: {name: settings}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {leno.dev/mtls: strict}}
";

fn problems(text: &str) -> Vec<String> {
    match parse("mesh.yaml", text) {
        Ok(documents) => panic!("accepted as {documents:?}"),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

fn workload(spec: &str) -> String {
    format!("apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: web}}\nspec:\n{spec}")
}

#[test]
fn documents_become_objects() {
    let documents = parse("mesh.yaml", MESH).unwrap();
    let kinds: Vec<_> = documents.objects.iter().map(|o| o.value.key().kind).collect();
    assert_eq!(kinds, [Kind::Workload, Kind::Service, Kind::Namespace]);
    let ignored: Vec<_> = documents.ignored.iter().map(|i| i.value.kind.as_str()).collect();
    assert_eq!(ignored, ["VirtualService", "Secret"]);
    let Object::Workload(web) = &documents.objects[0].value else {
        panic!("not a workload");
    };
    assert_eq!(web.spec.replicas, 2);
    assert_eq!(web.spec.env["LEVEL"], "3");
    assert_eq!(web.spec.ports[0].protocol(), Protocol::Http1);
    assert_eq!(documents.objects[0].place.line, 2);
    assert_eq!(documents.objects[1].place.line, 14);
    assert_eq!(documents.objects[1].value.key().to_string(), "Service default/web");
    let Object::Namespace(shop) = &documents.objects[2].value else {
        panic!("not a namespace");
    };
    let annotations = shop.metadata.annotations.as_ref().unwrap();
    assert_eq!(leno_resources::mtls_mode(annotations), Some(MtlsMode::Strict));
}

#[test]
fn defaults_are_filled_in() {
    let documents = parse("mesh.yaml", &workload("  command: [sleep, '1']\n")).unwrap();
    let Object::Workload(web) = &documents.objects[0].value else {
        panic!("not a workload");
    };
    assert_eq!(web.metadata.namespace, "default");
    assert_eq!(web.spec.service_account, "default");
    assert_eq!(web.spec.replicas, 1);
}

#[test]
fn unknown_fields_are_named_with_their_place() {
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  prots:\n  - port: 80\n  ports:\n  - prot: 1\n    port: 80\n";
    assert_eq!(
        problems(text),
        [
            "mesh.yaml:5:3: spec.prots: unknown field: did you mean ports?",
            "mesh.yaml:8:5: spec.ports[0].prot: unknown field: did you mean port?"
        ]
    );
    assert_eq!(
        problems(&workload("  comand: [a]\n  command: [a]\n")),
        ["mesh.yaml:5:3: spec.comand: unknown field: did you mean command?"]
    );
    assert_eq!(
        problems(&workload("  shell: a\n  command: [a]\n")),
        ["mesh.yaml:5:3: spec.shell: unknown field"]
    );
}

#[test]
fn the_place_of_every_field_is_known() {
    let text = "kind: Service\napiVersion: v1\nmetadata: {name: web}\nspec:\n  ports:\n  - name: a\n    port: 80\n  - name: b\n    port: 81\n";
    let documents = parse("mesh.yaml", &format!("# nothing\n---\n{text}")).unwrap();
    let outline = &documents.outlines[0];
    let place = |path| outline.place(path).to_string();
    assert_eq!(place("spec.ports[1].port"), "11:11");
    assert_eq!(place("spec.ports[0]"), "8:5");
    // The position of the innermost parent that exists.
    assert_eq!(place("spec.ports[2].port"), place("spec.ports"));
    assert_eq!(place("status.nothing"), place(""));
}

#[test]
fn every_mistake_says_what_to_do() {
    for (spec, expected) in [
        ("  command: []\n", "mesh.yaml:5:12: spec.command: is empty: name the program to run"),
        ("  replicas: 1\n", "mesh.yaml:5:3: spec: command is missing"),
        (
            "  command: nginx\n",
            "mesh.yaml:5:12: spec.command: should be a list but is the text \"nginx\": write [nginx]",
        ),
        (
            "  command: [a]\n  env: {PORT: 80}\n",
            "mesh.yaml:6:15: spec.env.PORT: should be a text but is the number 80: put it in quotes",
        ),
        (
            "  command: [a]\n  replicas: 9999\n",
            "mesh.yaml:6:13: spec.replicas: 9999 is not from 0 to 250",
        ),
        (
            "  command: [a]\n  ports: [{port: 70000}]\n",
            "mesh.yaml:6:18: spec.ports[0].port: 70000 is not a port: use 1 to 65535",
        ),
        (
            "  command: [a]\n  ports: [{port: 1}, {port: 2}]\n",
            "mesh.yaml:6:11: spec.ports[0].name: is missing: each of several ports needs a name",
        ),
        (
            "  command: [a]\n  ports: [{name: a, port: 1}, {name: b, port: 1}]\n",
            "mesh.yaml:6:47: spec.ports[1].port: 1 is used by an earlier port",
        ),
        (
            "  command: [a]\n  ports: [{port: 15001}]\n",
            "mesh.yaml:6:18: spec.ports[0].port: 15001 is a port of the workload's own proxy: connections of the application \
             come there",
        ),
        (
            "  command: [a]\n  ports: [{port: 15008, appProtocol: leno.dev/udp}]\n",
            "mesh.yaml:6:18: spec.ports[0].port: 15008 is a port of the workload's own proxy: datagrams of other proxies come \
             there",
        ),
    ] {
        let found = problems(&workload(spec));
        assert_eq!(found.first().map(String::as_str), Some(expected), "{spec}");
    }
}

#[test]
fn wrong_kinds_and_versions_are_told_apart() {
    for (head, expected) in [
        (
            "apiVersion: v1\nkind: Servce",
            "mesh.yaml:2:7: kind: Servce is not a kind of v1: did you mean Service?",
        ),
        (
            "apiVersion: leno.dev/v1\nkind: Workload",
            "mesh.yaml:1:13: apiVersion: Workload is read as leno.dev/v1alpha1, not leno.dev/v1",
        ),
        (
            "apiVersion: v1\nkind: EndpointSlice",
            "mesh.yaml:1:13: apiVersion: EndpointSlice belongs to discovery.k8s.io/v1, not v1",
        ),
        ("kind: Service", "mesh.yaml:1:1: apiVersion: is missing or not a text"),
    ] {
        assert_eq!(problems(&format!("{head}\nmetadata: {{name: a}}\n")), [expected]);
    }
    assert_eq!(
        problems("- a\n- b\n"),
        ["mesh.yaml:1:1: a document is a map with apiVersion, kind and metadata"]
    );
}

#[test]
fn names_settings_and_duplicates_are_checked() {
    let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: Shop, annotations: {leno.dev/mtls: always, leno.dev/mtsl: strict}}\n";
    let found = problems(text);
    assert!(
        found[0].starts_with("mesh.yaml:3:18: metadata.name: \"Shop\" is not a name"),
        "{found:?}"
    );
    assert!(found[1].contains("\"always\" is not one of strict, permissive, disabled"));
    assert!(found[2].contains("metadata.annotations.leno.dev/mtsl: is not a setting of Leno"));
    let budget = |value: &str| {
        let annotations = format!("{{leno.dev/flow-cpu-budget: {value}}}");
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, annotations: {annotations}}}\n"
        )
    };
    assert!(parse("mesh.yaml", &budget("0.2%")).is_ok());
    for value in ["0%", "101%", "much"] {
        let expected = format!("{value:?} is not a share of the machine's CPU");
        assert!(problems(&budget(value))[0].contains(&expected), "{value}");
    }
    let busy = |value: &str| {
        budget("0.2%").replace("flow-cpu-budget: 0.2%", &format!("promote-after: {value}"))
    };
    assert!(parse("mesh.yaml", &busy("off")).is_ok() && parse("mesh.yaml", &busy("90s")).is_ok());
    assert!(problems(&busy("soon"))[0].contains("\"soon\" is not a duration from 1s to 24h"));
    let twice = format!("{MESH}---\n{MESH}");
    let found = problems(&twice);
    assert_eq!(found.len(), 3);
    assert!(
        found[0].ends_with("Workload shop/web is already defined at mesh.yaml:2:1"),
        "{found:?}"
    );
}

#[test]
fn broken_yaml_has_a_place() {
    let error = parse("a.yaml", "a: 1\nb: [1, 2\nc: 3\n").unwrap_err();
    assert!(error[0].place > Position { line: 1, column: 1 }, "{error:?}");
    let error = parse("a.yaml", "apiVersion: v1\nkind: A\nkind: B\n").unwrap_err();
    // Both mistakes: the kind that does not exist, and the key that is given twice.
    let lines: Vec<_> = error.iter().map(|problem| problem.place.line).collect();
    assert_eq!(lines, [2, 3], "{error:?}");
}

#[test]
fn an_alias_bomb_is_refused_at_a_bounded_cost() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let previous = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{previous}]\n"));
    }
    assert!(parse("bomb.yaml", &text).is_err());
    let deep = format!("a: {}{}", "[".repeat(5000), "]".repeat(5000));
    assert!(parse("deep.yaml", &deep).is_err());
}

#[test]
fn a_proxy_document_is_read() {
    let text = "\
apiVersion: leno.dev/v1alpha1
kind: Proxy
metadata: {name: web-1, namespace: shop}
spec:
  workers: 1
  admin: 127.0.0.1:15020
  outbound: {listen: 127.0.0.1:15001, service: shop/web:80}
  inbound: {listen: 127.0.0.1:15006, application: 127.0.0.1:8080}
  identity: {certificate: web.crt, key: web.key, roots: roots.crt}
  mtls: strict
";
    let documents = parse("proxy.yaml", text).unwrap();
    let Object::Proxy(proxy) = &documents.objects[0].value else {
        panic!("not a proxy");
    };
    let outbound = proxy.spec.outbound.as_ref().unwrap();
    assert_eq!(outbound.service.as_ref().unwrap().to_string(), "shop/web:80");
    assert_eq!(proxy.spec.mtls, Some(MtlsMode::Strict));
    let again = parse("again.yaml", &to_yaml(&documents.objects[0].value)).unwrap();
    assert_eq!(again.objects[0].value, documents.objects[0].value);

    let bad = text.replace("shop/web:80", "web").replace("strict", "sometimes");
    let found = problems(&bad);
    assert!(found[0].contains("spec.outbound.service: \"web\" is not of the form"), "{found:?}");
}

#[test]
fn endpoint_slices_are_checked() {
    let text = "\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- addresses: [10.0.0.1]
  conditions: {ready: true}
  targetRef: {kind: Workload, name: web-0, namespace: shop}
";
    assert_eq!(parse("a.yaml", text).unwrap().objects.len(), 1);
    let found = problems(&text.replace("10.0.0.1", "\"fd00::1\""));
    assert_eq!(
        found,
        [
            "mesh.yaml:7:15: endpoints[0].addresses[0]: fd00::1 is not an IPv4 address, as addressType says"
        ]
    );
    let found = problems(&text.replace("kubernetes.io/service-name: web", "a: b"));
    assert!(found[0].contains("kubernetes.io/service-name is missing"), "{found:?}");
}

#[test]
fn files_and_directories_are_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("b.yaml", MESH);
    write("a.yml", &workload("  command: [a]\n"));
    write("notes.txt", "not: [yaml");
    write(".hidden.yaml", "not: [yaml");
    let documents = load(&[dir.path()]).unwrap();
    assert_eq!(documents.objects.len(), 4);
    assert!(documents.objects[0].file.ends_with("a.yml"));

    write("c.json", r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}"#);
    let problems = load(&[dir.path()]).unwrap_err();
    assert!(problems[0].to_string().contains("Namespace shop is already defined at"));
    let problems = load(&[dir.path().join("absent.yaml")]).unwrap_err();
    assert!(problems[0].reason.starts_with("cannot be read"), "{problems:?}");
}

#[test]
fn what_a_cluster_prints_is_taken() {
    let text = "\
apiVersion: v1
kind: Service
metadata:
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: |
      {\"apiVersion\":\"v1\"}
  creationTimestamp: \"2026-01-02T03:04:05Z\"
  managedFields:
  - apiVersion: v1
    fieldsType: FieldsV1
    fieldsV1:
      f:metadata:
        f:annotations:
          .: {}
    manager: kubectl
    operation: Update
    time: \"2026-01-02T03:04:05Z\"
  name: web
  namespace: shop
  resourceVersion: \"12345\"
  uid: 0a1b2c3d-0000-0000-0000-000000000000
spec:
  clusterIP: 10.96.0.1
  clusterIPs:
  - 10.96.0.1
  - fd00::1
  internalTrafficPolicy: Cluster
  ipFamilies: [IPv4, IPv6]
  ports:
  - {name: http, port: 80, protocol: TCP, targetPort: http}
  - {name: dns, port: 80, protocol: UDP, targetPort: 53}
  sessionAffinity: None
  type: ClusterIP
status:
  loadBalancer: {}
";
    let documents = parse("web.yaml", text).unwrap();
    let object = &documents.objects[0].value;
    assert_eq!(object.key().to_string(), "Service shop/web");
    assert_eq!(&parse("again.yaml", &to_yaml(object)).unwrap().objects[0].value, object);
}

/// A policy with these parts, which begin on line 7.
fn policy(parts: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {{name: p}}\nspec:\n  \
         targetRefs:\n  - {{group: '', kind: Service, name: web}}\n{parts}"
    )
}

#[test]
fn a_key_that_is_given_twice_names_the_first_place() {
    assert_eq!(
        problems(&workload(
            "  command: [a]\n  replicas: many\n  command: [b]\n  env: {A: a, A: b}\n"
        )),
        [
            "mesh.yaml:6:13: spec.replicas: should be a number but is the text \"many\"",
            "mesh.yaml:7:3: spec.command: is given twice (first on line 5)",
            "mesh.yaml:8:15: spec.env.A: is given twice (first on line 8)",
        ]
    );
}

#[test]
fn a_value_out_of_range_names_the_range() {
    assert_eq!(
        problems(&policy("  ejection: {consecutiveFailures: 5, maxPercent: 300}\n")),
        ["mesh.yaml:7:50: spec.ejection.maxPercent: 300 is not from 0 to 100"]
    );
    assert_eq!(
        problems(&workload("  command: [a]\n  replicas: -1\n")),
        ["mesh.yaml:6:13: spec.replicas: -1 is not from 0 to 250"]
    );
    assert_eq!(
        problems(&workload("  command: [a]\n  replicas: 1.5\n")),
        ["mesh.yaml:6:13: spec.replicas: 1.5 is not a whole number"]
    );
    assert_eq!(
        problems(&workload("  command: [a]\n  replicas: 99999999999999999999999\n")),
        ["mesh.yaml:6:13: spec.replicas: 1e23 is not from 0 to 250"]
    );
    assert_eq!(
        problems(&workload(
            "  command: [a]\n  liveness: {exec: {command: [a]}, failureThreshold: -1}\n"
        )),
        ["mesh.yaml:6:54: spec.liveness.failureThreshold: -1 is not from 1 to 100"]
    );
}

#[test]
fn what_a_pod_has_is_told_where_it_is_written() {
    assert_eq!(
        problems(&workload(
            "  command: [a]\n  readinessProbe: {}\n  livenessProbe: {}\n  containers: []\n  \
             resources: {requests: {cpu: 1}, limits: {nvidia.com/gpu: 1, cpus: 1}}\n"
        )),
        [
            "mesh.yaml:6:3: spec.readinessProbe: unknown field: write readiness, with the same fields",
            "mesh.yaml:7:3: spec.livenessProbe: unknown field: write liveness, with the same fields",
            "mesh.yaml:8:3: spec.containers: unknown field: a Workload runs one program: write its command, env \
             and ports in spec",
            "mesh.yaml:9:15: spec.resources.requests: unknown field: there are limits only: remove it",
            "mesh.yaml:9:44: spec.resources.limits.nvidia.com/gpu: unknown field: there are limits of cpu and \
             memory only: remove it",
            "mesh.yaml:9:63: spec.resources.limits.cpus: unknown field: did you mean cpu?",
        ]
    );
    let annotated = |key: &str| {
        let text = workload("  command: [a]\n");
        let text =
            text.replace("{name: web}", &format!("{{name: web, annotations: {{{key}: x}}}}"));
        problems(&text).remove(0)
    };
    assert!(annotated("leno.dev/typo").ends_with("typo: is not a setting of Leno"));
    assert!(
        annotated("leno.dev/mtsl")
            .ends_with("is not a setting of Leno: did you mean leno.dev/mtls?")
    );
}

#[test]
fn a_list_is_read_as_its_documents() {
    let listed = |items: &str| {
        format!("apiVersion: v1\nkind: List\nmetadata: {{resourceVersion: ''}}\n{items}")
    };
    let text = listed(
        "items:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: web}\n  spec:\n    ports: [{port: 80}]\n\
         - apiVersion: v1\n  kind: Namespace\n  metadata: {name: shop}\n",
    );
    let documents = parse("mesh.yaml", &text).unwrap();
    let keys: Vec<String> = documents.objects.iter().map(|o| o.value.key().to_string()).collect();
    assert_eq!(keys, ["Service default/web", "Namespace shop"]);
    assert_eq!(documents.outlines[0].place("spec.ports[0].port").to_string(), "9:20");
    assert_eq!(
        problems(&text.replace("port: 80", "port: 0")),
        ["mesh.yaml:9:20: spec.ports[0].port: 0 is not a port: use 1 to 65535"]
    );
    assert_eq!(
        problems(&listed("items: {}\n")),
        ["mesh.yaml:4:8: items: is missing or not a list of documents"]
    );
}

#[test]
fn what_the_parser_rejects_is_said_in_words_of_documents() {
    let aliases: String = (1..7)
        .map(|level| {
            let below = vec![format!("*a{}", level - 1); 9].join(", ");
            format!("a{level}: &a{level} [{below}]\n")
        })
        .collect();
    for (text, expected) in [
        (
            workload("  command: [a]\n  replicas: 1e999\n"),
            "mesh.yaml:6:13: 1e999 is not a finite number: put it in quotes if it is a text",
        ),
        (
            format!("a0: &a0 [x, x, x, x, x, x, x, x, x]\n{aliases}"),
            "aliases repeat more than 100000 values: write some of them out",
        ),
        ("a: &a [*a]\n".to_owned(), "an alias is inside of the value that it repeats: remove it"),
        (
            "a: *b\n".to_owned(),
            "an alias has no anchor before it: write &name at the value that *name repeats",
        ),
        (
            (0..60).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect(),
            "is nested deeper than 48 levels",
        ),
        (workload("  command: [a]\nkind: ["), "\"kind\" is given twice"),
    ] {
        let found = problems(&text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].ends_with(expected), "{found:?}");
    }
}

#[test]
fn a_mistake_is_shown_on_one_line_of_a_bounded_length() {
    let digits = "9".repeat(5_000_000);
    for text in [
        workload(&format!("  command: [a]\n  replicas: {digits}\n")),
        workload(&format!("  command: [a]\n  replicas: x{digits}\n")),
    ] {
        let found = problems(&text).concat();
        assert!(found.len() < 2_000 && found.contains("characters left out"), "{}", found.len());
    }
    let Err(found) = parse("a\nb\x1b.yaml", "kind: 1\n") else { panic!("accepted") };
    assert!(found[0].to_string().starts_with("a\\x0ab\\x1b.yaml:1:1: "), "{}", found[0]);
}

#[test]
fn a_pipe_or_a_socket_in_place_of_a_file_is_named_and_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let [pipe, socket] = ["pipe.yaml", "socket.yaml"].map(|name| directory.path().join(name));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for path in [pipe, socket] {
        let found = load(&[&path]).unwrap_err();
        let [problem] = &found[..] else { panic!("{found:?}") };
        assert!(problem.to_string().contains("is a pipe, a socket or a device"), "{problem}");
    }
}

#[test]
fn a_pipe_in_a_folder_is_named_and_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe.yaml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::write(directory.path().join("mesh.yaml"), MESH).unwrap();
    let found = load(&[directory.path()]).unwrap_err();
    assert_eq!(
        found.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [format!(
            "{}: is a pipe, a socket or a device: put a file there, or name `-` for standard input",
            pipe.display()
        )]
    );
}

#[test]
fn a_misspelt_choice_is_told_which_one_may_be_meant() {
    assert_eq!(
        problems(&policy("  balancing: {algorithm: round_robin}\n")),
        ["mesh.yaml:7:26: spec.balancing.algorithm: \"round_robin\" is not one of PeakEwma, \
          LeastRequest, RoundRobin, Random, RingHash, Maglev: did you mean RoundRobin?"]
    );
    let strict = "apiVersion: v1\nkind: Namespace\n\
                  metadata: {name: shop, annotations: {leno.dev/mtls: strickt, leno.dev/mtsl: strict}}\n";
    assert_eq!(
        problems(strict),
        [
            "mesh.yaml:3:53: metadata.annotations.leno.dev/mtls: \"strickt\" is not one of strict, \
             permissive, disabled: did you mean strict?",
            "mesh.yaml:3:77: metadata.annotations.leno.dev/mtsl: is not a setting of Leno: did you \
             mean leno.dev/mtls?",
        ]
    );
}

#[test]
fn a_duration_without_a_unit_is_shown_one() {
    for (written, shown) in [("10", "10"), ("'10'", "10"), ("1.5", "1.5")] {
        assert_eq!(
            problems(&policy(&format!("  timeouts: {{request: {written}}}\n"))),
            [format!(
                "mesh.yaml:7:23: spec.timeouts.request: {shown} has no unit: write a duration, such as \
                 10s"
            )]
        );
    }
    assert_eq!(
        problems(&policy("  timeouts: {request: soon}\n")),
        [
            "mesh.yaml:7:23: spec.timeouts.request: \"soon\" is not a duration: write whole numbers with \
          h, m, s or ms, such as 1h30m or 10s"
        ]
    );
}

#[test]
fn a_tab_in_the_indentation_is_named() {
    assert_eq!(
        problems("apiVersion: v1\nkind: Service\nmetadata:\n\tname: web\n"),
        ["mesh.yaml:4:1: a tab indents this line: YAML takes spaces only"]
    );
    assert_eq!(
        problems("apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  \tlabels: {}\n"),
        ["mesh.yaml:5:3: a tab indents this line: YAML takes spaces only"]
    );
}

#[test]
fn a_value_of_another_form_is_shown_as_the_right_one() {
    let spec = "  command: sh run.sh -v\n  replicas: '2'\n  env: [{name: A, value: b}]\n";
    assert_eq!(
        problems(&workload(spec)),
        [
            "mesh.yaml:5:12: spec.command: should be a list but is the text \"sh run.sh -v\": write [sh, \
             run.sh, -v]",
            "mesh.yaml:6:13: spec.replicas: should be a number but is the text \"2\": remove the quotes",
            "mesh.yaml:7:8: spec.env: should be a map but is a list: write KEY: VALUE, without '-'",
        ]
    );
    assert_eq!(
        problems(&workload("  command: sh -c 'a b'\n")),
        ["mesh.yaml:5:12: spec.command: should be a list but is the text \"sh -c 'a b'\""]
    );
}

#[test]
fn mistakes_of_yaml_itself_say_what_to_do() {
    let fits = "this line fits no map above it: keys of one map begin in the same column, and only items \
                of a list begin with '-'";
    for (spec, expected) in [
        ("  command: [a]\n   replicas: 1\n", format!("mesh.yaml:6:4: {fits}")),
        ("  command: [a]\n replicas: 1\n", format!("mesh.yaml:6:2: {fits}")),
        ("  command: [a]\n  - b\n", format!("mesh.yaml:6:5: {fits}")),
        (
            "  command: sh -c: a\n",
            "mesh.yaml:5:17: a ':' where no key can be: put a text with ': ' in it in quotes, and begin \
             the keys of one map in the same column"
                .to_owned(),
        ),
        (
            "  command: [a]\n  replicas 2\n",
            "mesh.yaml:6:3: a ':' is missing after the key".to_owned(),
        ),
        (
            "  command: [a]\n  env: {A: {{b}}}\n",
            "mesh.yaml:6:13: a key should be a text: put a text that begins with '{' in quotes".to_owned(),
        ),
        (
            "  command: [a\n  replicas: 2\n",
            "mesh.yaml:6:11: a ':' where no key can be: is a '[' or '{' before it not closed?".to_owned(),
        ),
        (
            "  command: [a]}\n",
            "mesh.yaml:5:15: this bracket closes nothing: remove it, or open one before it".to_owned(),
        ),
    ] {
        assert_eq!(problems(&workload(spec)), [expected], "{spec}");
    }
}

#[test]
fn all_mistakes_of_a_document_are_reported_at_once() {
    let text = "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: Web}\nspec:\n  \
                command: [a]\n  workingdir: a\n  replicas: many\n  env: {PORT: 80, LEVEL: 3}\n  \
                ports: [{port: 70000}, {name: b, port: 1}]\n";
    assert_eq!(
        problems(text),
        [
            "mesh.yaml:3:18: metadata.name: \"Web\" is not a name: use 1 to 63 of a-z, 0-9 and '-', with no \
             '-' at either end",
            "mesh.yaml:6:3: spec.workingdir: unknown field: did you mean workingDir?",
            "mesh.yaml:7:13: spec.replicas: should be a number but is the text \"many\"",
            "mesh.yaml:8:15: spec.env.PORT: should be a text but is the number 80: put it in quotes",
            "mesh.yaml:8:26: spec.env.LEVEL: should be a text but is the number 3: put it in quotes",
            "mesh.yaml:9:18: spec.ports[0].port: 70000 is not a port: use 1 to 65535",
        ]
    );
}

#[test]
fn a_document_reports_a_bounded_number_of_mistakes() {
    let variables: String = (0..30).map(|number| format!("    V{number}: {number}\n")).collect();
    assert_eq!(problems(&workload(&format!("  command: [a]\n  env:\n{variables}"))).len(), 20);
}

#[test]
fn a_file_that_cannot_be_read_as_text_says_where_and_why() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |name: &str, bytes: &[u8]| {
        let file = directory.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        let problems = load(&[&file]).unwrap_err();
        assert_eq!(problems.len(), 1);
        problems[0].to_string().replace(&*directory.path().to_string_lossy(), "")
    };
    assert_eq!(
        refused("latin.yaml", b"# \xc3\xa4\nname: caf\xe9\n"),
        "/latin.yaml:2:10: byte 15 of the file, 0xe9, is not UTF-8: save the file in that encoding"
    );
    assert_eq!(
        refused("large.yaml", &vec![b'#'; (32 << 20) + 1]),
        "/large.yaml: is larger than 32 MiB: split it into several files"
    );
}
