//! `leno up compose.yaml`.

use leno_testkit::proxy::reserved;

use crate::mesh::{Mesh, root};

const COMPOSE: &str = "
name: notes
services:
  web:
    command: python3 -m http.server 8080
    environment:
      COLOUR: ${LENO_TEST_COLOUR:-green}
      DOLLAR: $$1
    ports: ['127.0.0.1:FREE:8080']
    depends_on:
      db: {condition: service_healthy}
    restart: unless-stopped
    container_name: notes-web
    volumes: ['./data:/mnt:ro']
  db:
    entrypoint: [sh, -c]
    command: ['test -n \"$$PLACE\" && exec sleep infinity']
    environment: [PLACE=here]
    healthcheck: {test: [CMD, test, -d, /], interval: 1s}
    restart: always
";

#[test]
fn a_compose_file_runs_as_a_mesh() {
    let (address, _reservation) = reserved().unwrap();
    let yaml = COMPOSE.replace("FREE", &address.port().to_string());
    let mesh = root(|| {
        let mesh = Mesh::draft(&yaml);
        std::fs::create_dir(mesh.directory().join("data")).unwrap();
        std::fs::write(mesh.directory().join("data/note"), "kept\n").unwrap();
        let up = mesh.detached(&["--wait"]);
        assert!(up.status.success(), "{up:?}");
        mesh
    });
    let Some(mesh) = mesh else { return };
    assert_eq!(
        mesh.text("notes/web", &["sh", "-c", "echo $COLOUR $DOLLAR; cat /mnt/note"]),
        "green $1\nkept"
    );
    let page = format!("http://{address}/");
    let curl = std::process::Command::new("curl").args(["-sf", "-o", "/dev/null", &page]).status();
    assert!(curl.unwrap().success());
    // Services call each other by name, over mTLS.
    mesh.text("db", &["curl", "-sf", "-o", "/dev/null", "http://web:8080/"]);
    let logs = mesh.leno(&["logs", "--name", mesh.name(), "leno"]).output().unwrap();
    let logs = String::from_utf8_lossy(&logs.stdout).into_owned();
    assert!(logs.contains(": ignored compose services.web.container_name"), "{logs}");
    assert!(mesh.leno(&["down", "--name", mesh.name()]).output().unwrap().status.success());
}

/// Each mistake, and the line that is printed of it.
const REFUSED: [(&str, &str); 8] = [
    ("image: nginx", ":4:12: services.web.image: leno up runs programs of this machine: remove it"),
    ("build: .", ":4:12: services.web.build: leno up runs programs of this machine: remove it"),
    ("cap_add: [NET_ADMIN]", "services.web.cap_add: leno up has nothing for cap_add: remove it"),
    (
        "volumes: ['data:/var']",
        "services.web.volumes: a volume is a file or a folder of this machine",
    ),
    ("ports: ['53:53/udp']", "services.web.ports: udp ports cannot be published: remove it"),
    ("user: $LENO_TEST_UNSET", "services.web.user: the variable LENO_TEST_UNSET is not set"),
    ("restart: sometimes", "services.web.restart: write no, always, on-failure or unless-stopped"),
    ("stop_signal: SIGNOPE", "spec.stopSignal: "),
];

#[test]
fn what_cannot_be_honoured_is_named_with_its_line_and_a_remedy() {
    for (mistake, expected) in REFUSED {
        let yaml = format!("services:\n  web:\n    command: sleep 1\n    {mistake}\n");
        let Some((mesh, output)) = root(|| Mesh::refused(&yaml)) else { return };
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{mistake}: {text}");
        assert!(text.contains(expected), "{mistake}: {text}");
        assert!(text.contains("mesh.yaml:4:") || text.contains("mesh.yaml:3:"), "{text}");
        assert_eq!(mesh.remains(), [""; 0]);
    }
}
