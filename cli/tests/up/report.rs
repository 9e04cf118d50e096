//! Tests the content of `leno bug-report` about a mesh of `leno up`, and that it contains no secret.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::mesh::{Mesh, root};

/// A word that every planted secret contains.
const PLANTED: &str = "hunter2";

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop, annotations: {example.org/note: hunter2-annotation}}
spec:
  command: [sh, -c, 'echo hunter2-line; exec sleep 10000', hunter2-argument]
  env: {COLOUR: hunter2-env}
  envFile: [own.env]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: broken, namespace: shop, labels: {leno.dev/inject: disabled}}
spec: {command: [sh, -c, 'echo password=hunter2-last; exit 3']}
";

fn read_all(directory: &Path, into: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, into);
        } else {
            into.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn a_report_has_what_helps_and_no_secret() {
    let Some(mesh) = root(|| Mesh::draft(MESH)) else { return };
    fs::write(mesh.directory().join("own.env"), "FROM_FILE=hunter2-file\n").unwrap();
    let up = mesh.detached(&[]);
    assert!(up.status.success(), "{up:?}");
    mesh.wait_for("web-0 to take traffic", || mesh.takes_traffic("web-0"));
    mesh.wait_for("the failure", || mesh.check().contains("exited with 3"));
    let file = mesh.directory().join("report.tar.gz");
    let make = || {
        let mut leno = mesh.leno(&["bug-report", "--name", mesh.name(), "--file"]);
        leno.arg(&file).output().unwrap()
    };
    let made = make();
    assert!(made.status.success(), "{made:?}");
    assert_eq!(String::from_utf8_lossy(&made.stdout), format!("{}\n", file.display()));
    assert_eq!(make().status.code(), Some(2), "a file that is there is not written over");

    let unpack = Command::new("tar").arg("-xzf").arg(&file).current_dir(mesh.directory()).status();
    assert!(unpack.unwrap().success());
    let folder = mesh.directory().join("report");
    let read = |name: &str| {
        fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let json = |name: &str| serde_json::from_str::<serde_json::Value>(&read(name)).unwrap();
    assert_eq!(json("report.json")["instances"], 2);
    assert_eq!(json("report.json")["missing"], serde_json::json!([]));
    assert!(read("check.json").contains("exited with 3"));
    assert!(read("mesh.json").contains("\"COLOUR\": \"(removed)\""), "{}", read("mesh.json"));
    assert!(read("objects.json").contains("\"kind\": \"Workload\""));
    assert!(read("logs/leno.log").contains("exited with 3"));
    assert!(read("states/shop-web-0/ready.txt").starts_with("ready"));
    assert!(json("states/shop-web-0/config.json").is_object());
    assert!(read("states/shop-web-0/metrics.txt").contains("leno_discovery_connected"));

    let mut everything = Vec::new();
    read_all(&folder, &mut everything);
    for (name, text) in everything {
        assert!(!text.contains(PLANTED), "{name} has a secret:\n{text}");
    }
    assert!(mesh.leno(&["down", "--name", mesh.name()]).output().unwrap().status.success());
}
