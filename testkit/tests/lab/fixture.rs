//! The mesh that most cases share, and its workloads.
//!
//! ```text
//!   client ──► nginx     Debian's, all addresses: HTTP declared; HTTP/2 on 81 (declared), 82 (not);
//!                        gRPC declared on 83, where no server listens; its own TLS on 443 (not
//!                        declared) and 444 (declared)
//!          ──► web       leno-peer, 2 instances, HTTP declared
//!          ──► detect    leno-peer, HTTP, nothing declared
//!          ──► local     leno-peer, bound to 127.0.0.1 only
//!          ──► echo      leno-peer, TCP, nothing declared
//!          ──► banner    leno-peer, the server sends first, nothing declared
//!          ──► redis, postgres, mariadb   Debian's, bound to 127.0.0.1 only
//!   plain  (no proxy)
//! ```

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::peer::Step;
use leno_testkit::{binaries, command, wait};

/// How long a database may take to create its files.
const INITIALISE_LIMIT: Duration = Duration::from_secs(90);

/// How long a program may take from its start to its first answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The documents of the shared mesh.
const MESH: &str = include_str!("mesh.yaml");
/// A configuration that admits every client without a password. The mesh restricts access, and the database exists
/// only for the test.
const POSTGRES_HBA: &str = "host all all 0.0.0.0/0 trust\nhost all all ::/0 trust\n";

/// The shared mesh of one backend.
pub(crate) struct SharedMesh {
    capture: Capture,
    state: Mutex<State>,
}

enum State {
    NotYet,
    Up(Box<Lab>),
    /// The start failed. Every case that needs the mesh fails with this error.
    Failed(String),
    Ended,
}

impl SharedMesh {
    pub(crate) fn new(capture: Capture) -> Self {
        SharedMesh { capture, state: Mutex::new(State::NotYet) }
    }

    pub(crate) fn capture(&self) -> Capture {
        self.capture
    }

    /// Runs `work` on the mesh. The first call starts the mesh.
    pub(crate) fn with(&self, work: fn(&Lab) -> Result<()>) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::NotYet) {
            let lab = Lab::start(&LabOptions::new(self.capture), MESH, prepare);
            *state = match lab.and_then(settled) {
                Ok(lab) => State::Up(Box::new(lab)),
                Err(error) => State::Failed(format!("{error:#}")),
            };
        }
        match &*state {
            State::Up(lab) => lab.explain(work(lab)),
            State::Failed(why) => Err(anyhow!("the shared mesh did not come up: {why}")),
            State::NotYet | State::Ended => bail!("the shared mesh has ended"),
        }
    }

    /// Ends the mesh. Fails if it leaves anything on the machine.
    pub(crate) fn end(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State::Up(lab) = std::mem::replace(&mut *state, State::Ended) else {
            return Ok(());
        };
        lab.end()?;
        let remains = lab.remains()?;
        if remains.is_empty() { Ok(()) } else { bail!("left behind: {}", remains.join(", ")) }
    }
}

/// Waits until every server answers. Programs listen some time after their start, and the client's proxy gets
/// their endpoints a moment later.
fn settled(lab: Lab) -> Result<Lab> {
    for service in ["nginx", "web", "detect", "local"] {
        answers(&lab, &["curl", "-sS", "--fail", "-m", "5", &format!("http://{service}/")])?;
    }
    let knowing = ["curl", "-sS", "--fail", "-m", "5", "--http2-prior-knowledge"];
    for service in ["http://nginx:81/", "http://nginx:82/"] {
        answers(&lab, &[&knowing[..], &[service]].concat())?;
    }
    answers(&lab, &["redis-cli", "-h", "redis", "--no-raw", "GET", "nothing"])?;
    answers(&lab, &["pg_isready", "-h", "postgres"])?;
    answers(&lab, &["mariadb-admin", "--no-defaults", "-hmariadb", "-ulab", "-plab", "ping"])?;
    for service in ["echo:9000", "banner:9000"] {
        let steps = [Step::Send("x".into()), Step::Read(1)];
        let answered = wait::until("an answer", ANSWER_LIMIT, || {
            Ok(lab.talk("client", service, &steps)?.failure().is_none().then_some(()))
        });
        lab.explain(answered.with_context(|| service.to_owned()))?;
    }
    Ok(lab)
}

/// Waits until `command` succeeds as the client.
fn answers(lab: &Lab, command: &[&str]) -> Result<()> {
    let mut last = String::new();
    let answered = wait::until("an answer", ANSWER_LIMIT, || {
        let output = lab.exec("client", command)?;
        last = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        Ok(output.status.success().then_some(()))
    });
    lab.explain(answered.with_context(|| format!("{command:?}: {last}")))
}

/// Writes the configurations and creates the empty databases of the mesh's programs.
fn prepare(directory: &Path) -> Result<()> {
    for (program, package) in
        [("nginx", "nginx"), ("redis-server", "redis-server"), ("mariadbd", "mariadb-server")]
    {
        binaries::require(program, package)?;
    }
    fs::write(directory.join("nginx.conf"), nginx(&directory.display().to_string()))?;
    let mut certify = Command::new(binaries::require("openssl", "openssl")?);
    certify.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    certify.args([
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=nginx",
        "-addext",
        "subjectAltName=DNS:nginx",
    ]);
    certify.arg("-keyout").arg(directory.join("nginx.key"));
    certify.arg("-out").arg(directory.join("nginx.crt"));
    command::text(&mut certify, INITIALISE_LIMIT)?;
    fs::create_dir(directory.join("files"))?;
    fs::write(directory.join("files/10-mib"), vec![b'x'; 10 << 20])?;
    prepare_postgres(directory)?;
    prepare_mariadb(directory)
}

fn nginx(directory: &str) -> String {
    format!(
        "daemon off; master_process off; user root; pid {directory}/nginx.pid;\n\
         error_log stderr error;\nevents {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n  client_body_temp_path {directory}/nginx-b;\n  \
         proxy_temp_path {directory}/nginx-p;\n  fastcgi_temp_path {directory}/nginx-f;\n  \
         uwsgi_temp_path {directory}/nginx-u;\n  scgi_temp_path {directory}/nginx-s;\n  \
         server {{\n    listen 8080; listen [::]:8080;\n    default_type text/plain;\n    \
         location / {{ return 200 \"hello from nginx\\n\"; }}\n    \
         location /where {{ return 200 \"$remote_addr $server_addr $server_port\\n\"; }}\n  }}\n  \
         server {{\n    listen 8081 http2; listen [::]:8081 http2;\n    \
         listen 8082 http2; listen [::]:8082 http2;\n    default_type text/plain;\n    \
         client_max_body_size 20m;\n    keepalive_requests 300;\n    \
         location / {{ return 200 \"hello over $server_protocol\\n\"; }}\n    \
         location /files/ {{ root {directory}; dav_methods PUT; }}\n    \
         location /seen {{ return 200 \"[$http_leno_h1] $host $http_x_marker\\n\"; }}\n  }}\n  \
         server {{\n    listen 8443 ssl; listen [::]:8443 ssl;\n    \
         listen 8444 ssl; listen [::]:8444 ssl;\n    ssl_protocols TLSv1.3;\n    \
         ssl_certificate {directory}/nginx.crt;\n    \
         ssl_certificate_key {directory}/nginx.key;\n    default_type text/plain;\n    \
         location / {{ return 200 \"hello over $ssl_protocol for $ssl_server_name\\n\"; }}\n  \
         }}\n}}\n"
    )
}

fn prepare_postgres(directory: &Path) -> Result<()> {
    let data = directory.join("postgres");
    let bin = postgres_directory()?;
    own(&data, "postgres")?;
    let mut initdb = Command::new("setpriv");
    initdb.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    initdb.arg(bin.join("initdb")).arg("-D").arg(&data);
    initdb.args(["--no-sync", "-A", "trust", "-U", "postgres", "--no-locale", "-E", "UTF8"]);
    command::text(initdb.current_dir(directory), INITIALISE_LIMIT)?;
    fs::write(data.join("pg_hba.conf"), POSTGRES_HBA)?;
    std::os::unix::fs::symlink(bin, directory.join("postgres-bin"))?;
    Ok(())
}

/// The directory of Debian's PostgreSQL programs. Each version has its own directory.
fn postgres_directory() -> Result<std::path::PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> = versions.map(|v| v.path().join("bin")).collect();
    found.retain(|bin| bin.join("initdb").exists());
    found.sort();
    found.pop().context("PostgreSQL is missing: apt-get install -y postgresql")
}

fn prepare_mariadb(directory: &Path) -> Result<()> {
    let (data, temporary) = (directory.join("mariadb"), directory.join("mariadb-tmp"));
    own(&data, "mysql")?;
    // The server has its own directory for temporary files, because at its start it removes all temporary tables
    // that it finds.
    own(&temporary, "mysql")?;
    let mut install = Command::new(binaries::require("mariadb-install-db", "mariadb-server")?);
    install.args(["--no-defaults", "--user=mysql", "--auth-root-authentication-method=normal"]);
    install.args(["--skip-test-db", "--innodb-log-file-size=8M", "--innodb-flush-method=nosync"]);
    install.arg(format!("--datadir={}", data.display()));
    install.arg(format!("--tmpdir={}", temporary.display()));
    command::text(&mut install, INITIALISE_LIMIT)?;
    let grant = "GRANT ALL ON *.* TO 'lab'@'%' IDENTIFIED BY 'lab';\n\
                 GRANT ALL ON *.* TO 'lab'@'localhost' IDENTIFIED BY 'lab';\n";
    Ok(fs::write(directory.join("mariadb.sql"), grant)?)
}

/// Creates a directory that belongs to a user.
fn own(directory: &Path, user: &str) -> Result<()> {
    fs::create_dir(directory)?;
    let user = nix::unistd::User::from_name(user)?.with_context(|| format!("no user {user}"))?;
    Ok(nix::unistd::chown(directory, Some(user.uid), Some(user.gid))?)
}
