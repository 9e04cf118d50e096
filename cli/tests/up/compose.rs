//! Tests `leno up compose.yaml`.

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
    // The health check does not look at the port, so the server may not listen yet.
    mesh.wait_for("an answer at the published port", || {
        let curl =
            std::process::Command::new("curl").args(["-sf", "-o", "/dev/null", &page]).status();
        curl.unwrap().success()
    });
    // Services call each other by name, over mTLS.
    mesh.text("db", &["curl", "-sf", "-o", "/dev/null", "http://web:8080/"]);
    let logs = mesh.leno(&["logs", "--name", mesh.name(), "leno"]).output().unwrap();
    let logs = String::from_utf8_lossy(&logs.stdout).into_owned();
    assert!(logs.contains(": ignored compose services.web.container_name"), "{logs}");
    assert!(mesh.leno(&["down", "--name", mesh.name()]).output().unwrap().status.success());
}

#[test]
fn a_compose_file_is_one_in_a_folder_and_on_standard_input_too() {
    let yaml = "services:\n  web: {command: sleep infinity, labels: [a]}\n";
    let Some(mesh) = root(|| Mesh::draft(yaml)) else { return };
    let folder = mesh.directory().join("notes");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(mesh.file(), folder.join("compose.yaml")).unwrap();
    let shell = |line: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", line, env!("CARGO_BIN_EXE_leno"), mesh.name()]).current_dir(&folder);
        shell.output().unwrap()
    };
    for path in [".", "../notes", "- <compose.yaml"] {
        let analyzed = shell(&format!("\"$0\" analyze {path}"));
        assert_eq!(String::from_utf8_lossy(&analyzed.stdout), "no mistakes found\n", "{path}");
    }
    for line in [
        "\"$0\" up --wait --name \"$1\" .",
        "\"$0\" up --wait --name \"$1\" ../notes",
        "cat compose.yaml | \"$0\" up --wait --name \"$1\" -",
    ] {
        let up = shell(line);
        assert!(up.status.success(), "{line}: {up:?}");
        mesh.text("notes/web", &["true"]);
        assert!(mesh.leno(&["down", "--name", mesh.name()]).output().unwrap().status.success());
    }
}

/// A service with an unpacked image, and a service that runs a program of this machine.
const BOXED: &str = "
name: boxed
services:
  app:
    image: ./img
    command: [bash, -c, 'echo $$COLOUR >/tmp/kept; exec sleep infinity']
    user: app
    working_dir: /srv
    environment: {COLOUR: green}
    volumes: ['./data:/mnt/data:ro']
    restart: always
  web:
    command: python3 -m http.server 8080
    expose: [8080]
    restart: always
";

/// Creates a root file system from a few programs of this machine in `$1`, like one that `docker export` writes.
const UNPACK: &str = r#"
set -e
mkdir -p "$1"/{bin,dev,etc,mnt/data,proc,srv,sys,tmp}
chmod 1777 "$1/tmp"
touch "$1"/etc/{hosts,resolv.conf}
echo 'app:x:70:71::/srv:/bin/bash' >"$1/etc/passwd"
echo 'app:x:71:' >"$1/etc/group"
for name in bash cat id sleep; do
  program=$(readlink -f "$(command -v "$name")")
  cp "$program" "$1/bin/$name"
  ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$1$(dirname "$library")"
    cp -L "$library" "$1$library"
  done
done
"#;

#[test]
fn a_service_whose_image_is_unpacked_runs_in_it() {
    let mesh = root(|| {
        let mesh = Mesh::draft(BOXED);
        std::fs::create_dir(mesh.directory().join("data")).unwrap();
        std::fs::write(mesh.directory().join("data/note"), "kept\n").unwrap();
        let mut unpack = std::process::Command::new("bash");
        unpack.args(["-c", UNPACK, "bash"]).arg(mesh.directory().join("img"));
        assert!(unpack.status().unwrap().success());
        let up = mesh.detached(&["--wait"]);
        assert!(up.status.success(), "{up:?}");
        mesh
    });
    let Some(mesh) = mesh else { return };
    let app = |script: &str| mesh.text("app", &["bash", "-c", script]);
    assert_eq!(app("echo /*"), "/bin /dev /etc /lib /lib64 /mnt /proc /srv /sys /tmp".to_owned());
    assert_eq!(app("pwd; id -u; id -g; echo $HOME $COLOUR"), "/srv\n70\n71\n/srv green");
    assert_eq!(app("echo $PATH"), leno_local::root::PATH);
    assert_eq!(
        app("cat /mnt/data/note; echo x 2>/dev/null >/mnt/data/note || echo read-only"),
        "kept\nread-only"
    );
    assert!(app("cat /etc/resolv.conf").starts_with("nameserver 10.89.0.1\nsearch boxed."));
    // The service is in the mesh: it has the mesh's name server, a proxy, and mTLS.
    let request = "exec 3<>/dev/tcp/web/8080; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; read -r line <&3; echo $line";
    assert!(app(request).contains(" 200 OK"), "{}", mesh.log());
    // Files that the service writes stay in the directory.
    let kept = mesh.directory().join("img/tmp/kept");
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "green\n");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(kept).unwrap()), 70);
    let absent = mesh.exec("app", &["python3"]);
    assert_eq!(absent.status.code(), Some(127), "{absent:?}");
    assert!(mesh.leno(&["down", "--name", mesh.name()]).output().unwrap().status.success());
    assert_eq!(mesh.remains(), [""; 0]);
}

/// Each mistake, with the line that is printed for it.
const REFUSED: [(&str, &str); 14] = [
    (
        "image: nginx",
        ":4:12: services.web.image: leno up pulls no images: unpack the image, for example with docker export, and set image to the directory, such as ./root; or remove it, and set command to a program of this machine\n",
    ),
    (
        "image: ./absent",
        "/absent is not a directory: unpack a root file system there, for example with docker export\n",
    ),
    (
        "build: .",
        ":4:12: services.web.build: leno up builds no images: remove it, and set command to a program of this machine\n",
    ),
    ("cap_add: [NET_ADMIN]", "services.web.cap_add: leno up does not support cap_add: remove it"),
    (
        "volumes: ['data:/var']",
        "services.web.volumes: a volume is a file or a directory of this machine",
    ),
    ("ports: ['53:53/udp']", "services.web.ports: udp ports cannot be published: remove it"),
    ("user: $LENO_TEST_UNSET", "services.web.user: the variable LENO_TEST_UNSET is not set"),
    (
        "restart: sometimes",
        "services.web.restart: it is not a restart policy: write no, always, on-failure or unless-stopped",
    ),
    ("stop_signal: SIGNOPE", ":4:18: services.web.stop_signal: \"SIGNOPE\" is not one of SIGHUP, "),
    ("mem_limit: 64Q", ":4:16: services.web.mem_limit: \"64Q\" is not an amount of memory: "),
    ("stop_grace_period: 10", ":4:24: services.web.stop_grace_period: "),
    ("depends_on: [db]", ":4:17: services.web.depends_on: there is no Workload "),
    (
        "environment: [A: 2]",
        "services.web.environment: {\"A\":2} is not a string: write a map of names to values, or a list of NAME=VALUE\n",
    ),
    (
        "depends_on: {db: {condition: healthy}}",
        "services.web.depends_on: \"healthy\" is not a condition: use service_started, service_healthy or \
         service_completed_successfully\n",
    ),
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
    for (service, expected) in [
        (
            "web: {command: \"/bin/sleep '9\"}",
            ":2:18: services.web.command: a quotation mark is not closed\n",
        ),
        (
            "web: {restart: always}",
            ":2:3: services.web.command: an unpacked image has no default command: set command\n",
        ),
        // Of the settings that come with an image, only the image itself is named.
        (
            "web: {image: nginx}",
            ":2:16: services.web.image: leno up pulls no images: unpack the image, for example with docker export, and set image to the directory, such as ./root; or remove it, and set command to a program of this machine\n",
        ),
        (
            "web: {build: .}",
            ":2:16: services.web.build: leno up builds no images: remove it, and set command to a program of this machine\n",
        ),
        (
            "Web_1: {command: sleep 9}",
            ":2:3: services.Web_1: \"Web_1\" is not a name: use 1 to 63 of a-z, 0-9 and \
                                       '-', with no '-' at either end\n",
        ),
        ("web", ":2:3: services: write each service as a name with fields below it\n"),
    ] {
        let Some((_mesh, output)) = root(|| Mesh::refused(&format!("services:\n  {service}\n")))
        else {
            return;
        };
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.ends_with(expected) && text.lines().count() == 1, "{service}: {text}");
    }
}
