//! Tests the whole message that `leno analyze` prints for each mistake, because the message is all that a reader
//! gets.

use std::fs;
use std::process::Command;

/// The beginning of a Workload, and the beginning of a TrafficPolicy for its service: five lines each.
const WORKLOAD: &str = "apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: uni}
spec:
  command: [run]
";
const POLICY: &str = "apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: p, namespace: uni}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
";
/// The ports of the Workload, on its sixth line, followed by the separator of the next document.
const PORTS: &str = "  ports: [{name: http, port: 80, appProtocol: http}, {name: db, port: 81, appProtocol: tcp}]\n---\n";

/// The exit code of `leno analyze` on a file with these bytes, and everything that it prints.
fn analyze(bytes: &[u8]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("mesh.yaml"), bytes).expect("a file");
    let mut leno = Command::new(env!("CARGO_BIN_EXE_leno"));
    leno.args(["analyze", "mesh.yaml"]).current_dir(directory.path());
    let output = leno.output().expect("leno can be run");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&printed).into_owned())
}

/// Checks that for each text exactly these lines are printed as errors.
fn refused(cases: &[(&str, &[&str])]) {
    for (text, lines) in cases {
        let count = match lines.len() {
            1 => "1 error".to_owned(),
            many => format!("{many} errors"),
        };
        let expected = format!("{}\n{count}, 0 warnings\n", lines.join("\n"));
        assert_eq!(analyze(text.as_bytes()), (Some(1), expected), "{text}");
    }
}

/// Checks that for each text this line is printed, and that the text is accepted nevertheless.
fn warned(cases: &[(String, &str)]) {
    for (text, line) in cases {
        let expected = format!("{line}\n0 errors, 1 warning\n");
        assert_eq!(analyze(text.as_bytes()), (Some(0), expected), "{text}");
    }
}

#[test]
fn what_cannot_be_read_is_said_with_its_place_and_remedy() {
    let workload = |more: &str| format!("{WORKLOAD}{more}");
    let policy = |more: &str| format!("{POLICY}{more}");
    refused(&[
        (
            &workload("  replicas: 1\n  command: [other]\n"),
            &[
                "mesh.yaml:7:3: spec.command: error[invalid-document]: is given twice (first on line 5)",
            ],
        ),
        (
            &policy("  ejection: {consecutiveFailures: 5, maxPercent: 300}\n"),
            &[
                "mesh.yaml:6:50: spec.ejection.maxPercent: error[invalid-document]: 300 is not from 0 to 100",
            ],
        ),
        (
            &policy("  balancing: {algorithm: round_robin}\n"),
            &[
                "mesh.yaml:6:26: spec.balancing.algorithm: error[invalid-document]: \"round_robin\" is not one of \
              PeakEwma, LeastRequest, RoundRobin, Random, RingHash, Maglev: did you mean RoundRobin?",
            ],
        ),
        (
            &policy("  timeouts: {request: 10}\n"),
            &[
                "mesh.yaml:6:23: spec.timeouts.request: error[invalid-document]: 10 has no unit: write a duration, \
              such as 10s",
            ],
        ),
        (
            "apiVersion: v1\nkind: Service\nmetadata:\n\tname: web\n",
            &[
                "mesh.yaml:4:1: error[invalid-document]: a tab indents this line: YAML takes spaces only",
            ],
        ),
        (
            &workload("  workingdir: a\n  replicas: many\n  env: {PORT: 80}\n")
                .replace("name: web", "name: Web"),
            &[
                "mesh.yaml:3:18: metadata.name: error[invalid-document]: \"Web\" is not a name: use 1 to 63 of a-z, \
                 0-9 and '-', with no '-' at either end",
                "mesh.yaml:6:3: spec.workingdir: error[invalid-document]: unknown field: did you mean workingDir?",
                "mesh.yaml:7:13: spec.replicas: error[invalid-document]: should be a number but is the text \"many\"",
                "mesh.yaml:8:15: spec.env.PORT: error[invalid-document]: should be a text but is the number 80: put \
                 it in quotes",
            ],
        ),
    ]);
    assert_eq!(
        analyze(b"# \xc3\xa4\nname: caf\xe9\n"),
        (
            Some(1),
            "mesh.yaml:2:10: error[invalid-document]: byte 15 of the file, 0xe9, is not UTF-8: save the file in \
             that encoding\n1 error, 0 warnings\n"
                .to_owned()
        )
    );
}

#[test]
fn what_is_larger_than_32_mib_is_refused_and_not_cut() {
    let large = format!("services: {{web: {{command: sleep 9}}}}\n{}", "#".repeat(32 << 20));
    let reason = "error[invalid-document]: is larger than 32 MiB: split it into several files";
    assert_eq!(
        analyze(large.as_bytes()),
        (Some(1), format!("mesh.yaml: {reason}\n1 error, 0 warnings\n"))
    );
    // Input from a pipe is accepted as well.
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("compose.yaml");
    fs::write(&file, large).expect("a file");
    for (line, name) in
        [("cat \"$1\" | \"$0\" analyze -", "-"), ("\"$0\" analyze <(cat \"$1\")", "/dev/fd/63")]
    {
        let mut bash = Command::new("bash");
        bash.args(["-c", line, env!("CARGO_BIN_EXE_leno")]).arg(&file);
        let output = bash.output().expect("bash can be run");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(printed, format!("{name}: {reason}\n1 error, 0 warnings\n"), "{line}");
    }
}

#[test]
fn what_would_lead_nowhere_is_refused_by_name() {
    let alias = |name: &str, to: &str, ports: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: uni}}\nspec: {{type: \
             ExternalName, externalName: {to}.uni.svc.cluster.local{ports}}}\n"
        )
    };
    let with_ports = |more: &str| format!("{WORKLOAD}{}{more}", PORTS.trim_end_matches("---\n"));
    let cycle = alias("a", "b", "") + &alias("b", "a", ", ports: [{port: 80}]");
    let dns = "---\napiVersion: v1\nkind: Service\nmetadata: {name: dns, namespace: uni}\nspec: {selector: {app: \
               web}, ports: [{port: 53, protocol: UDP}]}\n";
    let of_mesh = |version: &str| {
        format!(
            "---\napiVersion: {version}\nkind: AuthorizationPolicy\nmetadata: {{name: x, namespace: uni}}\n"
        )
    };
    let dropped = |mesh: &str| {
        format!(
            "mesh.yaml:8:1: error[policy-of-another-mesh]: Leno ignores AuthorizationPolicy of {mesh}, so what it forbids is allowed here; rewrite it as a policy of leno.dev, then remove it from these files"
        )
    };
    refused(&[
        (
            &with_ports(&cycle),
            &[
                "mesh.yaml:11:42: spec.externalName: error[invalid-document]: the names refer to each other in a circle: uni/a -> uni/b \
                 -> uni/a",
                "mesh.yaml:16:42: spec.externalName: error[invalid-document]: the names refer to each other in a circle: uni/b -> uni/a \
                 -> uni/b",
            ],
        ),
        (
            &with_ports(&alias("a", "web", ", ports: [{port: 82}]")),
            &[
                "mesh.yaml:11:77: spec.ports[0]: error[invalid-document]: uni/web has no port 82: use one of 80, 81",
            ],
        ),
        (
            &with_ports(dns),
            &[
                "mesh.yaml:11:59: spec.ports[0].protocol: error[invalid-document]: the address of a Service carries only TCP, not UDP without appProtocol: leno.dev/udp: make it headless (clusterIP: None), so that clients connect to the instances themselves",
            ],
        ),
        (&with_ports(&of_mesh("security.istio.io/v1")), &[&dropped("Istio")]),
        (&with_ports(&of_mesh("policy.linkerd.io/v1alpha1")), &[&dropped("Linkerd")]),
    ]);
}

#[test]
fn what_has_no_effect_is_said_with_its_place_and_remedy() {
    let mesh = format!("{WORKLOAD}{PORTS}").replace("uni}", "uni, labels: {app: web}}");
    let policy = |more: &str| {
        format!("{mesh}{}{more}", POLICY.replace("name: web}", "name: web, sectionName: db}"))
    };
    let two = |more: &str| {
        format!("{mesh}{POLICY}{more}---\n{}{more}", POLICY.replace("name: p,", "name: q,"))
    };
    let service = |spec: &str| {
        format!(
            "{mesh}apiVersion: v1\nkind: Service\nmetadata: {{name: x, namespace: uni}}\nspec: {{{spec}}}\n"
        )
    };
    let selecting = |spec: &str| service(&format!("selector: {{app: web}}, {spec}"));
    warned(&[
        (
            policy("  retries: {on: [5xx]}\n"),
            "mesh.yaml:13:12: spec.retries: warning[policy-on-bytes]: retries applies to requests, but port db of Service uni/web is opaque (by its appProtocol); remove it, or declare appProtocol: http, http2 \
             or grpc",
        ),
        (
            policy("  limits: {requests: 5}\n"),
            "mesh.yaml:13:22: spec.limits.requests: warning[policy-on-bytes]: limits.requests applies to requests, but port db of Service uni/web is opaque (by its appProtocol); remove it, or declare appProtocol: \
             http, http2 or grpc",
        ),
        (
            two("  timeouts: {request: 1s}\n"),
            "mesh.yaml:20:23: spec.timeouts.request: warning[policy-conflict]: has no effect: TrafficPolicy uni/p \
             sets timeouts.request for Service uni/web, too, and takes precedence because it is first by name; remove timeouts.request here, or merge both policies",
        ),
        (
            selecting("ports: [{port: 80, targetPort: 8080}]"),
            "mesh.yaml:11:61: spec.ports[0].targetPort: warning[target-port-of-no-workload]: no selected workload has \
             a port 8080; they have 80, 81: set targetPort, or declare it there",
        ),
        (
            selecting("type: NodePort, ports: [{port: 80, nodePort: 30080}]"),
            "mesh.yaml:11:36: spec.type: warning[port-of-nodes]: `leno up` opens no port of this machine for a \
             Service of type NodePort; give a port of the Workload `published: PORT`, or use leno port-forward",
        ),
        (
            selecting("ports: [{port: 80, appProtocol: htpp}]"),
            "mesh.yaml:11:62: spec.ports[0].appProtocol: warning[protocol-unknown]: \"htpp\" is not a protocol that Leno supports, so the port is opaque; did you mean http?",
        ),
        (
            service(
                "type: ExternalName, externalName: pay.example.com, ports: [{port: 80, appProtocol: http}]",
            ),
            "mesh.yaml:11:67: spec.ports[0]: warning[https-cut-off]: an application that connects to https://pay.example.com is refused, because the name has a virtual address with only the listed ports; list port 443 as well: {name: \
             https, port: 443, appProtocol: https}",
        ),
    ]);
}
