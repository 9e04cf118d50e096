//! Tests `leno inject` and `leno uninject`, from the command line.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
spec:
  containers:
  - name: web
    image: web
";
const SERVICE: &str = "apiVersion: v1\nkind: Service # a comment\nmetadata: {name: web}\n";

fn leno(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("leno can be run");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    // The process may have exited already because its arguments are wrong.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn a_stream_goes_in_and_comes_out_with_a_word_on_each_object() {
    let off = "name: alone\n  labels: {leno.dev/inject: disabled}\n  namespace";
    let disabled = POD.replace("name: web\n  namespace", off);
    assert_ne!(disabled, POD);
    let stream = format!("{SERVICE}---\n{POD}---\n{disabled}");
    let injected = leno(&["inject", "-"], &stream);
    assert_eq!(injected.status.code(), Some(0), "{injected:?}");
    let out = text(&injected.stdout);
    assert!(out.starts_with(SERVICE), "{out}");
    assert!(out.ends_with(&format!("---\n{disabled}")), "{out}");
    assert_eq!(out.matches("- name: leno-proxy\n").count(), 1, "{out}");
    assert_eq!(
        text(&injected.stderr),
        "Pod shop/web: injected\nPod shop/alone: unchanged: it has leno.dev/inject: disabled\n"
    );
    let back = leno(&["uninject", "-"], &out);
    assert_eq!(text(&back.stdout), stream);
    assert!(text(&back.stderr).starts_with("Pod shop/web: uninjected\n"), "{back:?}");
}

#[test]
fn flags_say_what_the_proxy_is_like() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("pod.yaml");
    fs::write(&file, POD).expect("a file");
    let file = file.to_str().expect("a path of UTF-8");
    let flags = ["--proxy-image", "r.example/proxy:1", "--capture", "nftables", "-o", "json"];
    let more =
        ["--trust-domain", "example.org", "--control", "https://c:1", "--shape", "container"];
    let injected = leno(&[&["inject", file][..], &flags, &more].concat(), "");
    assert_eq!(injected.status.code(), Some(0), "{injected:?}");
    let pod: serde_json::Value = serde_json::from_slice(&injected.stdout).expect("JSON");
    let proxy = &pod["spec"]["containers"][0];
    assert_eq!(proxy["image"], "r.example/proxy:1");
    assert_eq!(proxy["env"][3]["value"], "example.org");
    assert_eq!(proxy["env"][4]["value"], "https://c:1");
    assert_eq!(pod["metadata"]["annotations"]["leno.dev/capture"], "nftables");
}

#[test]
fn namespaces_of_the_manifest_say_how_their_pods_are_captured() {
    let namespace = |name: &str, map: &str, capture: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, {map}: {{leno.dev/capture: {capture}}}}}\n---\n"
        )
    };
    let here = namespace("shop", "annotations", "nftables") + POD;
    let captured = text(&leno(&["inject", "-"], &here).stdout);
    assert!(captured.contains("    leno.dev/capture: nftables\n"), "{captured}");
    let nameless = POD.replace("\n  namespace: shop", "");
    assert_ne!(nameless, POD);
    let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Namespace, \
                metadata: {name: office, labels: {leno.dev/capture: ebpf}}}\n---\n";
    let stream = list.to_owned() + &nameless;
    for (flags, says) in [(&["-n", "office"][..], true), (&[], false), (&["-n", "shop"], false)] {
        let out = text(&leno(&[&["inject", "-"], flags].concat(), &stream).stdout);
        assert_eq!(out.contains("    leno.dev/capture: ebpf\n"), says, "{flags:?}: {out}");
    }
    let given = text(&leno(&["inject", "--capture", "iptables", "-"], &here).stdout);
    assert!(given.contains("    leno.dev/capture: iptables\n"), "{given}");
}

#[test]
fn a_pod_in_node_mode_is_left_unless_it_says_sidecar() {
    let namespace = |setting: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, labels: {{{setting}}}}}\n---\n"
        )
    };
    let sidecar =
        POD.replace("  namespace: shop", "  namespace: shop\n  labels: {leno.dev/mode: sidecar}");
    assert_ne!(sidecar, POD);
    for (stream, said, code) in [
        (namespace("leno.dev/mode: node") + POD, "a proxy of its node serves it", 0),
        (
            namespace("leno.dev/mode: nod") + POD,
            "\"nod\", which its namespace sets, is not one of",
            1,
        ),
        (namespace("leno.dev/mode: node") + &sidecar, "Pod shop/web: injected\n", 0),
    ] {
        let injected = leno(&["inject", "-"], &stream);
        let stderr = text(&injected.stderr);
        assert!(stderr.contains(said), "{stderr}");
        assert_eq!(injected.status.code(), Some(code), "{stderr}");
        let unchanged = !said.ends_with("injected\n");
        assert_eq!(
            text(&injected.stdout) == stream,
            unchanged,
            "a pod without a sidecar is printed unchanged"
        );
    }
}

#[test]
fn what_cannot_be_done_is_said_and_decides_the_exit_code() {
    let clashing =
        POD.replace("  containers", "  volumes: [{name: leno-token, emptyDir: {}}]\n  containers");
    let failed = leno(&["inject", "-"], &clashing);
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(text(&failed.stdout), clashing);
    let said = "Pod shop/web: not injected: it already has a volume leno-token";
    assert!(text(&failed.stderr).starts_with(said), "{failed:?}");

    let service = leno(&["inject", "-"], SERVICE);
    assert_eq!(service.status.code(), Some(0));
    assert_eq!(
        text(&service.stderr),
        "standard input: unchanged, because no object in it creates pods\n"
    );

    let broken = leno(&["inject", "-"], "kind: Pod\n---\na: [");
    assert_eq!((broken.status.code(), broken.stdout.len()), (Some(2), 0), "{broken:?}");
    assert!(text(&broken.stderr).contains("the document that begins at line 2: "), "{broken:?}");
    let absent = leno(&["inject", "/nowhere.yaml"], "");
    assert_eq!(absent.status.code(), Some(2));
    assert!(text(&absent.stderr).contains("reading /nowhere.yaml"), "{absent:?}");
}
