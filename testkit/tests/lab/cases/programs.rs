//! Tests unmodified programs, which are addressed by service name, by service address and by workload address,
//! over IPv4 and IPv6. The databases listen only on 127.0.0.1.

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::Lab;

use super::{Case, shared};

/// Fetches two pages over one connection, as programs with connection pools do.
const PYTHON: &str = "
import http.client, sys
c = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=20)
for i in range(2):
    c.request('GET', '/', headers={'Host': 'nginx'})
    print(c.getresponse().read().decode(), end='')
";

pub(super) fn cases() -> Vec<Case> {
    vec![
        shared!(curl_fetches_from_nginx),
        shared!(tls_of_the_applications_passes_as_it_is),
        shared!(a_python_client_keeps_its_connection_to_nginx),
        shared!(redis_works),
        shared!(postgres_works),
        shared!(mariadb_works_though_its_server_speaks_first),
        shared!(names_of_every_length_resolve),
    ]
}

/// Runs `work` with every address of `service`, as host and port.
pub(super) fn everywhere(
    lab: &Lab,
    service: &str,
    service_port: u16,
    workload_port: u16,
    work: impl Fn(&str, u16) -> Result<()>,
) -> Result<()> {
    let status = lab.status()?;
    let mut places = vec![(service.to_string(), service_port)];
    for ipv6 in [false, true] {
        places.push((virtual_address(lab, service, ipv6)?, service_port));
        places.push((status.address(service, ipv6)?.to_string(), workload_port));
    }
    for (host, port) in places {
        work(&host, port).with_context(|| format!("{service} at {host} port {port}"))?;
    }
    Ok(())
}

/// The service's virtual address, as the client gets it from DNS.
pub(super) fn virtual_address(lab: &Lab, service: &str, ipv6: bool) -> Result<String> {
    let database = if ipv6 { "ahostsv6" } else { "ahostsv4" };
    let said = lab.text("client", &["getent", database, service])?;
    let address = said.split_whitespace().next().context("no address")?;
    Ok(address.to_string())
}

/// The text `host:port`, with brackets if the host needs them.
pub(super) fn socket(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn curl_fetches_from_nginx(lab: &Lab) -> Result<()> {
    everywhere(lab, "nginx", 80, 8080, |host, port| {
        let url = format!("http://{}/", socket(host, port));
        let said = lab.text("client", &["curl", "-sS", "--fail", "-m", "20", "-g", &url, &url])?;
        ensure!(said == "hello from nginx\nhello from nginx\n", "got {said:?}");
        Ok(())
    })
}

/// The client verifies the server's own certificate, which shows that no proxy has terminated the TLS.
fn tls_of_the_applications_passes_as_it_is(lab: &Lab) -> Result<()> {
    let certificate = lab.directory().join("nginx.crt").display().to_string();
    for (port, metric) in [
        ("443", Some("leno_tls_passthrough_total{direction=\"outbound\",server_name=\"nginx\"} ")),
        // On this port TLS is declared, so no proxy parses the ClientHello.
        ("444", None),
    ] {
        let counted = || -> Result<u64> {
            let page = lab.metrics("client")?;
            let count = metric.and_then(|name| page.lines().find_map(|l| l.strip_prefix(name)));
            Ok(count.map_or(Ok(0), str::parse)?)
        };
        let before = counted()?;
        let url = format!("https://nginx:{port}/");
        let curl = ["curl", "-sS", "--fail", "-m", "20", "--cacert", &certificate, &url];
        let said = lab.text("client", &curl).context(port)?;
        ensure!(said == "hello over TLSv1.3 for nginx\n", "port {port}: got {said:?}");
        let after = counted()?;
        ensure!(after == before + u64::from(metric.is_some()), "{port}: {before}, then {after}");
    }
    Ok(())
}

fn a_python_client_keeps_its_connection_to_nginx(lab: &Lab) -> Result<()> {
    everywhere(lab, "nginx", 80, 8080, |host, port| {
        let said = lab.text("client", &["python3", "-c", PYTHON, host, &port.to_string()])?;
        ensure!(said == "hello from nginx\nhello from nginx\n", "got {said:?}");
        Ok(())
    })
}

fn redis_works(lab: &Lab) -> Result<()> {
    everywhere(lab, "redis", 6379, 6379, |host, port| {
        let port = port.to_string();
        let redis = ["redis-cli", "-h", host, "-p", &port];
        let ask = |words: &[&str]| lab.text("client", &[&redis, words].concat());
        ensure!(ask(&["SET", "key", "value"])? == "OK\n");
        ensure!(ask(&["GET", "key"])? == "value\n");
        let said = ask(&["EVAL", "return string.rep('x', 100000)", "0"])?;
        ensure!(said.trim_end().len() == 100_000, "{} bytes came back", said.len());
        Ok(())
    })
}

fn postgres_works(lab: &Lab) -> Result<()> {
    everywhere(lab, "postgres", 5432, 5432, |host, port| {
        let place = format!("host={host} port={port} user=postgres dbname=postgres");
        let sql = "select sum(n), length(repeat('x', 100000)) from generate_series(1, 1000) n";
        let said = lab.text("client", &["psql", &place, "-At", "-c", sql])?;
        ensure!(said == "500500|100000\n", "got {said:?}");
        Ok(())
    })
}

fn mariadb_works_though_its_server_speaks_first(lab: &Lab) -> Result<()> {
    everywhere(lab, "mariadb", 3306, 3306, |host, port| {
        let port = port.to_string();
        let sql = "select 6 * 7, length(repeat('x', 100000))";
        let command = [
            "mariadb",
            "--no-defaults",
            "-h",
            host,
            "-P",
            &port,
            "-ulab",
            "-plab",
            "-N",
            "-B",
            "-e",
            sql,
        ];
        let said = lab.text("client", &command)?;
        ensure!(said == "42\t100000\n", "got {said:?}");
        Ok(())
    })
}

fn names_of_every_length_resolve(lab: &Lab) -> Result<()> {
    for name in ["nginx", "nginx.lab", "nginx.lab.svc", "nginx.lab.svc.cluster.local"] {
        let said =
            lab.text("client", &["curl", "-sS", "--fail", "-m", "20", &format!("http://{name}/")]);
        ensure!(said.with_context(|| name)? == "hello from nginx\n");
    }
    let said = lab.text("client", &["getent", "ahostsv4", "web-headless"])?;
    let status = lab.status()?;
    for instance in ["web-0", "web-1"] {
        let address = status.address(instance, false)?.to_string();
        ensure!(said.contains(&address), "{instance} ({address}) is not in {said}");
    }
    let said =
        lab.text("client", &["curl", "-sS", "--fail", "-m", "20", "http://web-headless:8080/"])?;
    ensure!(said == "abcdefghijklm", "got {said:?}");
    Ok(())
}
