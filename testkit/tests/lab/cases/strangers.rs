//! Tests which client addresses are seen by applications that trust loopback, and what can be reached by
//! link-local addresses.

use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::command::{self, Running};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{binaries, netns, wait};

use super::programs::socket;
use super::{Case, alone};

pub(super) fn cases() -> Vec<Case> {
    vec![
        alone!(an_application_that_trusts_loopback_trusts_no_client),
        alone!(link_local_addresses_do_not_pass_strict),
    ]
}

/// How long a program may take from its start to its first answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Redis and nginx listen only on IPv4, so the proxy connects an IPv6 client to them over IPv4.
const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, labels: {leno.dev/inject: disabled}}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: redis, namespace: lab}
spec:
  command: [redis-server, --port, '6379', --bind, 0.0.0.0, --protected-mode, 'yes', --save, '']
  ports: [{name: redis, port: 6379}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: nginx, namespace: lab}
spec:
  command: [nginx, -e, stderr, -c, '@DIR@/nginx.conf']
  ports:
    - {name: trusting, port: 8080, appProtocol: http}
    - {name: v4, port: 8081, appProtocol: http}
    - {name: v6, port: 8082, appProtocol: http}
";

fn prepare(directory: &Path) -> Result<()> {
    binaries::require("nginx", "nginx")?;
    binaries::require("redis-server", "redis-server")?;
    let place = directory.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {place}/nginx-{kind};\n"))
        .concat();
    let configuration = format!(
        "daemon off; master_process off; user root; pid {place}/nginx.pid;\n\
         error_log stderr error;\nevents {{ worker_connections 256; }}\n\
         http {{\n  access_log off;\n  default_type text/plain;\n{temporary}  \
         server {{ listen 0.0.0.0:8080; allow 127.0.0.1; allow ::1; deny all;\n    \
         location / {{ root /; try_files /nothing @said; }}\n    \
         location @said {{ return 200 \"trusted\\n\"; }} }}\n  \
         server {{ listen 0.0.0.0:8081; return 200 \"$remote_addr\\n\"; }}\n  \
         server {{ listen [::]:8082 ipv6only=on; return 200 \"$remote_addr\\n\"; }}\n}}\n"
    );
    Ok(fs::write(directory.join("nginx.conf"), configuration)?)
}

fn an_application_that_trusts_loopback_trusts_no_client(capture: Capture) -> Result<()> {
    let lab = Lab::start(&LabOptions::new(capture), MESH, prepare)?;
    lab.explain(wait::until("both servers", ANSWER_LIMIT, || {
        let redis = lab.exec("redis", &["redis-cli", "-h", "127.0.0.1", "PING"])?;
        let nginx = get(&lab, "nginx", "127.0.0.1", 8080)?;
        Ok((redis.stdout == b"PONG\n" && nginx.ends_with("200")).then_some(()))
    }))?;
    lab.explain(trusts_no_client(&lab, capture))?;
    lab.end()
}

fn trusts_no_client(lab: &Lab, capture: Capture) -> Result<()> {
    let status = lab.status()?;
    let sees_clients = capture == Capture::Ebpf;
    for who in ["client", "plain"] {
        for ipv6 in [false, true] {
            let redis = status.address("redis-0", ipv6)?.to_string();
            let answer = lab.exec(who, &["redis-cli", "-h", &redis, "PING"])?;
            let answer =
                String::from_utf8_lossy(&[answer.stdout, answer.stderr].concat()).into_owned();
            ensure!(answer.contains("DENIED"), "Redis answered {who} at {redis}: {answer}");
            let nginx = status.address("nginx-0", ipv6)?.to_string();
            let answer = get(lab, who, &nginx, 8080)?;
            ensure!(answer.ends_with("403"), "nginx answered {who} at {nginx}: {answer}");

            let own = status.address(&format!("{who}-0"), ipv6)?.to_string();
            for (port, stand_in, named) in
                [(8081, "192.0.0.8", !ipv6), (8082, "100:0:0:1::8", ipv6)]
            {
                let seen = get(lab, who, &nginx, port)?;
                // An IPv6 server sees an IPv4 client's address in IPv4-mapped form.
                let mapped = format!("::ffff:{own}");
                let shown = match (sees_clients, named || port == 8082) {
                    (true, true) if port == 8082 && !ipv6 => mapped.as_str(),
                    (true, true) => own.as_str(),
                    _ => stand_in,
                };
                let expected = format!("{shown}\n 200");
                ensure!(
                    seen == expected,
                    "{who} at {nginx}:{port} was seen as {seen:?}, not {expected:?}"
                );
            }
        }
    }
    let shown = if sees_clients { "client" } else { "stand-in" };
    let config = ["curl", "-sS", "--fail", "-m", "20", "http://127.0.0.1:15020/config"];
    let config: serde_json::Value = serde_json::from_str(&lab.text("nginx", &config)?)?;
    ensure!(config["application_sees"] == shown, "/config has {}", config["application_sees"]);
    Ok(())
}

/// The body and the status of a response.
fn get(lab: &Lab, who: &str, host: &str, port: u16) -> Result<String> {
    let url = format!("http://{}/", socket(host, port));
    let said = lab.exec(who, &["curl", "-sS", "-g", "-m", "20", "-w", " %{http_code}", &url])?;
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

const STRICT: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab, annotations: {leno.dev/egress: deny}}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, labels: {leno.dev/inject: disabled}}
spec: {command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec:
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
";

fn link_local_addresses_do_not_pass_strict(capture: Capture) -> Result<()> {
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, STRICT, |_| Ok(()))?;
    lab.explain(does_not_pass(&lab))?;
    lab.end()
}

fn does_not_pass(lab: &Lab) -> Result<()> {
    for instance in ["web", "plain"] {
        is_random(lab, instance)?;
    }
    // Instances share no link with each other. On each instance's link is the bridge, where a server and a client
    // run that belong to no workload.
    let bridge = lab.switch()?;
    let _server = netns::inside(&bridge, || {
        let peer = binaries::ours("leno-peer")?;
        Running::start(Command::new(peer).args(["http", "--listen", "[::]:8080"]))
    })?;
    let from_bridge = |url: &str| -> Result<Output> {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-g", "-m", "3", url]);
        netns::inside(&bridge, || command::run(&mut curl, ANSWER_LIMIT))
    };
    let from = |who: &str, url: &str| lab.exec(who, &["curl", "-sS", "-g", "-m", "3", url]);
    wait::until("the server on the bridge", ANSWER_LIMIT, || {
        Ok(from_bridge("http://[::1]:8080/")?.status.success().then_some(()))
    })?;
    let of = |instance: &str, interface: &str| -> Result<String> {
        Ok(format!("http://[{}%25{interface}]:8080/", link_local(lab, instance)?))
    };
    let gateway = format!("http://[{}%25eth0]:8080/", link_local_of(&bridge, "leno0")?);
    for (who, passes, said) in [
        ("the bridge calls web", false, from_bridge(&of("web", "leno0")?)?),
        ("the bridge calls plain", true, from_bridge(&of("plain", "leno0")?)?),
        ("client calls the bridge", false, from("client", &gateway)?),
        ("plain calls the bridge", true, from("plain", &gateway)?),
        ("plain calls web", false, from("plain", &of("web", "eth0")?)?),
        ("client calls plain", false, from("client", &of("plain", "eth0")?)?),
    ] {
        // A veth drops no packets, so a permitted connection succeeds at once. Others are refused (7) or time out
        // (28), and must not fail for another reason, such as a malformed URL.
        let code = said.status.code();
        let expected = if passes { code == Some(0) } else { matches!(code, Some(7 | 28)) };
        ensure!(expected, "{who} at its link-local address: {code:?} {said:?}");
    }
    lab.reach("client", "web:8080").map(drop)
}

/// The link-local address of an instance must not be derivable from its hardware address, which depends on the
/// instance's number.
fn is_random(lab: &Lab, instance: &str) -> Result<()> {
    let address: Ipv6Addr = link_local(lab, instance)?.parse()?;
    let hardware = lab.text(instance, &["ip", "-o", "link", "show", "dev", "eth0"])?;
    let (_, after) =
        hardware.split_once("link/ether 02:6c:65:6e:").context("no hardware address")?;
    let number = after.get(..5).context("a hardware address has six octets")?.replace(':', "");
    // The address that RFC 4291, appendix A, derives: the hardware address with ff:fe in its middle and one bit
    // inverted.
    let guessed: Ipv6Addr = format!("fe80::6c:65ff:fe6e:{number}").parse()?;
    ensure!(address != guessed, "{instance}: {address} follows from {hardware}");
    Ok(())
}

/// The link-local address of an instance.
pub(super) fn link_local(lab: &Lab, instance: &str) -> Result<String> {
    link_local_of(&lab.namespace(instance)?, "eth0")
}

/// The link-local address of an interface in a network namespace.
fn link_local_of(namespace: &Path, interface: &str) -> Result<String> {
    let mut ip = Command::new("ip");
    ip.args(["-6", "-o", "address", "show", "scope", "link", "dev", interface]);
    let said = netns::inside(namespace, || command::text(&mut ip, ANSWER_LIMIT))?;
    let address = said.split_whitespace().find_map(|word| word.strip_suffix("/64"));
    Ok(address.with_context(|| format!("no link-local address in {said:?}"))?.to_owned())
}
