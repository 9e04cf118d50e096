//! Tests `leno explain` and `leno analyze` on files, from the command line.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

const SHOP: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {command: [run]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: shop}
spec: {command: [run], ports: [{name: http, port: 80, appProtocol: http}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: cart, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: cart}]
  rules:
    - matches: [{path: {type: Exact, value: /items}}]
      backendRefs: [{name: cart, port: 80}]
";

fn leno(arguments: &[&str], text: &str) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let file: PathBuf = directory.path().join("shop.yaml");
    fs::write(&file, text).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
    command.args(arguments).current_dir(directory.path()).output().expect("leno can be run")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_request_is_explained_from_a_file() {
    let ask = |request: &[&str]| {
        let explain = ["explain", "-f", "shop.yaml", "-n", "shop", "deploy/web", "--"];
        leno(&[&explain[..], request].concat(), SHOP)
    };
    let said = ask(&["GET", "http://cart/items"]);
    assert!(said.status.success(), "{said:?}");
    let text = out(&said);
    for line in [
        "client       shop/web\n",
        "request      GET /items to cart\n",
        "rule         HTTPRoute shop/cart rule 0\n",
        "outcome      goes to one endpoint of the backend\n",
        "backend      100.0 % shop/cart port 80\n",
        "match        => HTTPRoute shop/cart rule 0 match 0: holds\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    let text = out(&ask(&["GET", "http://cart/other"]));
    assert!(text.contains("outcome      404: no rule"), "{text}");
    assert!(text.contains("leno-error: no-route-matches"), "{text}");
    assert!(text.contains("match        no HTTPRoute shop/cart rule 0"), "{text}");
    let wrong = ask(&["GET", "ftp://cart/"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("use http, https, grpc"), "{wrong:?}");
}

/// A policy about the clients of `cart`, in a file of its own.
const POLICY: &str = "
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: shop}
spec:
  targetRefs: [{group: leno.dev, kind: Workload, name: cart}]
  rules: [{from: [{namespaces: [bank]}]}]
";

#[test]
fn authorization_is_asked_from_files() {
    let closed = format!("{SHOP}---{POLICY}");
    let ask = |more: &[&str], text: &str| {
        leno(&[&["authz", "-f", "shop.yaml", "-n", "shop"][..], more].concat(), text)
    };
    let said = ask(&["cart"], &closed);
    assert!(said.status.success(), "{said:?}");
    let text = out(&said);
    for line in [
        "workload     shop/cart (mTLS permissive, default all)\n",
        "policy       Allow shop/clients (shop.yaml:",
        "shop/web         80     denied     Allow policies apply to the port, but none matches\n",
        "(anything else)  80     denied ",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    let check = ["cart", "--from", "web", "--", "GET", "http://cart/items"];
    let denied = ask(&check, &closed);
    assert_eq!(denied.status.code(), Some(1), "{denied:?}");
    assert!(out(&denied).contains("permitted    no: Allow policies apply"), "{}", out(&denied));
    let permitted = ask(&check, SHOP);
    assert_eq!(permitted.status.code(), Some(0), "{permitted:?}");
    // A port that neither the workload nor a service has must not get the answer for another port.
    let elsewhere = ask(&["cart", "--from", "web", "--", "GET", "http://cart:8081/items"], SHOP);
    assert_eq!(elsewhere.status.code(), Some(2), "{elsewhere:?}");
    let errors = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    assert_eq!(errors, "leno: shop/cart has no port 8081: use one of 80\n");
    let json = ask(&["cart", "-o", "json"], &closed);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json[0]["clients"][1]["access"], "denied", "{json}");
}

#[test]
fn policies_that_are_not_applied_show_what_they_would_change() {
    let directory = tempfile::tempdir().expect("a directory");
    let policy = directory.path().join("policy.yaml");
    fs::write(&policy, POLICY).expect("a file");
    let policy = policy.to_str().expect("a path");
    let said = leno(&["authz", "-f", "shop.yaml", "-n", "shop", "--with", policy], SHOP);
    let text = out(&said);
    assert!(
        text.contains(
            "shop/web -> shop/cart port 80\n  now   permitted: no Allow policy applies to the port, and the default is all\n  then  denied: Allow policies apply to the port, but none matches\n"
        ),
        "{said:?}"
    );
    fs::write(policy, SHOP).expect("a file");
    let refused = leno(&["authz", "-f", "shop.yaml", "--with", policy], SHOP);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(error.contains("is neither an AuthorizationPolicy nor a Namespace"), "{error}");
}

#[test]
fn what_is_looked_at_is_named_once() {
    for words in [
        &["analyze", "--name", "m", "shop"][..],
        &["analyze", "--mesh", "m", "shop.yaml"],
        &["explain", "--name", "m", "-f", "shop.yaml", "web", "--", "http://cart/"],
        &["explain", "--cluster", "-f", "shop.yaml", "web", "--", "http://cart/"],
        &["authz", "--name", "m", "-f", "shop.yaml", "web"],
    ] {
        let refused = leno(words, SHOP);
        assert_eq!(refused.status.code(), Some(64), "{words:?}: {refused:?}");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("cannot be used with"), "{words:?}: {said}");
    }
}

#[test]
fn mistakes_decide_the_exit_code() {
    let analyze =
        |more: &[&str], text: &str| leno(&[&["analyze", "shop.yaml"][..], more].concat(), text);
    let good = analyze(&["--strict"], SHOP);
    assert_eq!((good.status.code(), &*out(&good)), (Some(0), "no mistakes found\n"));

    let warned = SHOP.replace("spec:\n  parentRefs", "spec:\n  hostnames: [a.b]\n  parentRefs");
    assert_eq!(analyze(&[], &warned).status.code(), Some(0));
    assert_eq!(analyze(&["--strict"], &warned).status.code(), Some(1));

    let bad = analyze(&[], &SHOP.replace("{name: cart, port: 80}]", "{name: crat, port: 80}]"));
    assert_eq!(bad.status.code(), Some(1));
    let place = "shop.yaml:19:21: spec.rules[0].backendRefs[0]: error[backend-not-found]: ";
    assert!(out(&bad).starts_with(place), "{}", out(&bad));
    assert!(out(&bad).ends_with("; did you mean cart?\n1 error, 0 warnings\n"), "{}", out(&bad));

    // A document that cannot be parsed is a finding as well.
    let misspelt = analyze(&["-o", "json"], &SHOP.replace("backendRefs", "backendRef"));
    assert_eq!(misspelt.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&misspelt.stdout).expect("JSON");
    assert_eq!(report["errors"], 1);
    let finding = &report["findings"][0];
    assert_eq!(finding["code"], "invalid-document");
    assert_eq!(finding["line"], 19);
    assert_eq!(finding["reason"], "unknown field: did you mean backendRefs?");
}

/// A Service that specifies its own address, to be appended to [`SHOP`].
const ADDRESSED: &str = "---
apiVersion: v1
kind: Service
metadata: {name: own, namespace: shop}
spec:
  clusterIP: 10.101.0.9
  selector: {app: cart}
  ports: [{port: 80}]
";

#[test]
fn what_leno_up_refuses_has_the_line_of_its_field() {
    let refused = leno(&["analyze", "shop.yaml"], &format!("{SHOP}{ADDRESSED}"));
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(
        out(&refused),
        "shop.yaml:25:14: spec.clusterIP: error[invalid-document]: 10.101.0.9 is not in the address range of services: use an address of 10.96.0.0/16 or fd96::/112, use None, or remove the field\n1 error, 0 warnings\n"
    );
}

#[test]
fn files_are_judged_at_the_addresses_of_the_mesh() {
    let text = format!("{SHOP}{ADDRESSED}");
    let ranges = ["--service-range", "10.101.0.0/16", "--workload-range", "10.102.0.0/16"];
    let request = ["-n", "shop", "web", "--", "http://10.101.0.9/"];
    let asked = |first: &[&str], last: &[&str]| leno(&[first, &ranges, last].concat(), &text);
    let analyzed = asked(&["analyze", "shop.yaml"], &[]);
    assert_eq!(analyzed.status.code(), Some(0), "{}", out(&analyzed));
    let explained = asked(&["explain", "-f", "shop.yaml"], &request);
    assert!(out(&explained).contains("destination  service shop/own port 80"), "{explained:?}");
    assert!(asked(&["authz", "-f", "shop.yaml"], &["-n", "shop", "cart"]).status.success());
    let [workloads, services] = ["--workload-range", "--service-range"];
    let same = ["analyze", "shop.yaml", workloads, "10.89.0.0/16", services, "10.89.0.0/16"];
    let same = leno(&same, &text);
    assert_eq!(same.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&same.stderr).into_owned();
    assert_eq!(
        errors,
        "leno: workloads and services have the same address range, 10.89.0.0/16: choose different ranges with --workload-range and --service-range\n"
    );
    // A running mesh already has its addresses, so the options are refused.
    for words in [
        &["explain", "web", "--workload-range", "10.1.0.0/16", "--", "http://cart/"][..],
        &["authz", "--service-range", "10.1.0.0/16"],
    ] {
        let refused = leno(words, &text);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(64), "{words:?}: {said}");
        assert!(
            said.contains("required arguments were not provided:\n  --file <FILE>\n"),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn a_pipe_is_read_once() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("shop.yaml"), SHOP).expect("a file");
    fs::write(directory.path().join("compose.yaml"), "services: {web: {image: nginx}}\n")
        .expect("a file");
    let analyze = |line: &str| {
        let mut bash = Command::new("bash");
        bash.args(["-c", line, env!("CARGO_BIN_EXE_leno")]).current_dir(directory.path());
        out(&bash.output().expect("bash can be run"))
    };
    for line in ["\"$0\" analyze <(cat shop.yaml)", "cat shop.yaml | \"$0\" analyze /dev/stdin"] {
        assert_eq!(analyze(line), "no mistakes found\n", "{line}");
    }
    let composed = analyze("\"$0\" analyze <(cat compose.yaml)");
    assert!(composed.contains("services.web.image: "), "{composed}");
}

#[test]
fn files_that_are_not_there_are_named() {
    let text = "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {name: web}\nspec:\n  command: [run]\n  \
                envFile: [nope.env, /dev]\n  workingDir: nope\n  volumes:\n  - {path: nope, mountPath: /mnt}\n  \
                - {path: shop.yaml, mountPath: /leno-absent/file}\n  - {path: /dev, mountPath: /leno-absent}\n";
    let said = leno(&["analyze", "shop.yaml"], text);
    let found = out(&said);
    assert_eq!(said.status.code(), Some(1), "{found}");
    for (line, part) in [
        (
            "shop.yaml:6:13: spec.envFile[0]: error[missing-file]: /",
            "/nope.env does not exist; create it before",
        ),
        ("shop.yaml:6:23: spec.envFile[1]: error[missing-file]: /dev is a directory; ", ""),
        ("shop.yaml:7:15: spec.workingDir: error[missing-file]: /", "/nope does not exist; "),
        ("shop.yaml:9:12: spec.volumes[0].path: error[missing-file]: /", "/nope does not exist; "),
        (
            "shop.yaml:11:29: spec.volumes[2].mountPath: error[missing-file]: /leno-absent does not exist; ",
            "",
        ),
        ("5 errors, 0 warnings", ""),
    ] {
        let has = found.lines().any(|one| one.starts_with(line) && one.contains(part));
        assert!(has, "{line} ... {part} is not in\n{found}");
    }
    let none = text.replace("command: [run]", "command: [run]\n  replicas: 0");
    assert_eq!(out(&leno(&["analyze", "shop.yaml"], &none)), "no mistakes found\n");
}

#[test]
fn what_is_typed_without_dashes_is_told_of_them() {
    let err = |arguments: &[&str]| {
        let said = leno(arguments, SHOP);
        assert_eq!(said.status.code(), Some(64), "{said:?}");
        String::from_utf8_lossy(&said.stderr).into_owned()
    };
    let text = err(&["exec", "web", "true"]);
    assert!(text.contains("tip: write '--' before it: '-- true'"), "{text}");
    let text = err(&["explain", "web", "GET", "http://cart/"]);
    assert!(text.contains("tip: write '--' before it: '-- GET'"), "{text}");
    let text = err(&["logs", "--tail", "-1"]);
    assert!(
        text.contains("invalid value '-1'")
            && text.contains("not a number of lines: write for example 20"),
        "{text}"
    );
    let text = leno(&["ps", "--name", &"a".repeat(33)], SHOP).stderr;
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(
        text.contains("is not a valid name of a mesh: use 1 to 32 of a-z, 0-9 and '-'"),
        "{text}"
    );
}

#[test]
fn a_path_that_holds_nothing_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("empty")).expect("a directory");
    fs::create_dir(at("notes")).expect("a directory");
    fs::write(at("notes/readme.md"), "none").expect("a file");
    fs::write(at("nothing.yaml"), "# nothing\n---\n").expect("a file");
    fs::write(at("shop.yaml"), SHOP).expect("a file");
    let analyze = |path: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
        command.args(["analyze", "shop.yaml", path]).current_dir(directory.path());
        command.output().expect("leno can be run")
    };
    for (path, what) in [
        (
            "empty",
            "the directory has no *.yaml, *.yml or *.json file: name a directory that has (its subdirectories are not read)",
        ),
        (
            "notes",
            "the directory has no *.yaml, *.yml or *.json file: name a directory that has (its subdirectories are not read)",
        ),
        ("nothing.yaml", "the file has no document: name a file with documents"),
    ] {
        let said = analyze(path);
        let expected = format!("{path}: error[no-documents]: {what}\n1 error, 0 warnings\n");
        assert_eq!((said.status.code(), out(&said)), (Some(1), expected));
    }
}

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {template: {spec: {containers: [{name: web, image: web}]}}}
";

#[test]
fn documents_of_no_mesh_are_said_not_to_be_analyzed() {
    let alone = leno(&["analyze", "shop.yaml"], DEPLOYMENT);
    assert_eq!(alone.status.code(), Some(0), "{alone:?}");
    assert_eq!(
        out(&alone),
        "shop.yaml: warning[no-documents]: no document is of a kind that the mesh uses, such as Workload or HTTPRoute, so nothing was analyzed; the first is apps/v1 Deployment: `leno inject` adds the proxy to its pods, and `leno analyze NAMESPACE` \
         reads the mesh of a cluster\n\
         0 errors, 1 warning\n\
         not analyzed, because the mesh does not use these kinds: shop.yaml:2:1: apps/v1 Deployment\n"
    );
    let strict = leno(&["analyze", "--strict", "shop.yaml"], DEPLOYMENT);
    assert_eq!(strict.status.code(), Some(1), "{strict:?}");
    let both = format!("{SHOP}---{}", [DEPLOYMENT; 4].join("---"));
    let text = out(&leno(&["analyze", "shop.yaml"], &both));
    assert!(text.starts_with("no mistakes found\nnot analyzed, "), "{text}");
    assert!(text.ends_with(": apps/v1 Deployment, and 1 more\n"), "{text}");
    let json = out(&leno(&["analyze", "-o", "json", "shop.yaml"], &both));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["not_analyzed"].as_array().map(Vec::len), Some(4), "{json}");
}

#[test]
fn a_file_that_is_named_twice_is_read_once() {
    for names in [
        ["shop.yaml", "shop.yaml"],
        ["shop.yaml", "./shop.yaml"],
        ["shop.yaml", "."],
        [".", "shop.yaml"],
    ] {
        let said = leno(&[&["analyze"][..], &names].concat(), SHOP);
        assert_eq!(
            (said.status.code(), out(&said).as_str()),
            (Some(0), "no mistakes found\n"),
            "{names:?}"
        );
    }
    // Two documents with the same name are still a mistake, whether in one file or in two.
    let said = leno(&["analyze", "shop.yaml"], &format!("{SHOP}---{SHOP}"));
    assert!(
        out(&said).contains("Workload shop/web is already defined at shop.yaml:2:1"),
        "{said:?}"
    );
}
