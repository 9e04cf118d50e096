//! Tests `leno open` with a script as the browser.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use leno_testkit::proxy::reserved;

use crate::mesh::{Mesh, root, unmeshed};

#[test]
fn a_workload_is_opened_by_its_published_port_or_by_a_forwarded_one() {
    // While this socket is bound, the kernel assigns its port to no other program, but `leno up` may bind it.
    let (address, _reservation) = reserved().unwrap();
    let free = address.port();
    let yaml = format!(
        "{}spec:\n  command: [python3, -m, http.server, '8080']\n  ports: \
         [{{name: a, port: 8080, published: '0.0.0.0:{free}'}}]\n---\n\
         {}spec: {{command: [sleep, infinity]}}\n",
        unmeshed("web"),
        unmeshed("none")
    );
    let Some(mesh) = root(|| Mesh::start(&yaml)) else { return };
    let (opened, browser) = (mesh.directory().join("opened"), mesh.directory().join("browser"));
    fs::write(
        &browser,
        format!("#!/bin/sh\necho \"$1\" > {0}.new && mv {0}.new {0}\n", opened.display()),
    )
    .unwrap();
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).unwrap();
    let open = |words: &[&str]| {
        let mut open = mesh.leno(&["open", "--name", mesh.name()]);
        open.args(words).env("BROWSER", &browser);
        open
    };
    let url = format!("http://127.0.0.1:{free}/a?b=c\n");
    let done = open(&["web", "--path", "/a?b=c"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), url, "{done:?}");
    mesh.wait_for("the browser", || fs::read_to_string(&opened).is_ok_and(|text| text == url));

    // There is no such browser, but the address is still printed.
    let done = open(&["web", "--https"]).env("BROWSER", "/no/browser").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), format!("https://127.0.0.1:{free}/\n"));
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        said.contains("open the address yourself, or set BROWSER to another program"),
        "{said}"
    );

    let done = open(&["none"]).output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert_eq!(
        String::from_utf8_lossy(&done.stderr),
        format!(
            "leno: none-0 declares no port: name the port to open, such as `leno open none-0 8080 --name {}`\n",
            mesh.name()
        )
    );

    // Without a published port, the command forwards a free port until it ends.
    mesh.edit(&yaml.replace(&format!(", published: '0.0.0.0:{free}'"), ""));
    mesh.wait_for("the port to be closed", || {
        let ps = mesh.leno(&["ps", "--name", mesh.name()]).output().unwrap();
        !String::from_utf8_lossy(&ps.stdout).contains("->8080")
    });
    mesh.wait_for("web-0 to take traffic", || mesh.takes_traffic("web-0"));
    let mut forward = open(&["web", "--no-browser"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(forward.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let got = Command::new("curl").args(["-sf", "-o", "/dev/null", url.trim()]).status().unwrap();
    forward.kill().unwrap();
    forward.wait().unwrap();
    assert!(got.success(), "{url}");
}
