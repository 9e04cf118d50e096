//! Tests the requests that a mesh without proxies reads from frames of plain traffic, against the counts of real
//! servers with real clients. One mesh serves all protocols; each server's own count is compared with the rows of
//! both ends.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use leno_testkit::tools;

use crate::flows::{flows, sum_of};
use crate::mesh::{Mesh, root};

/// Without a probe, an instance counts as ready after 5 s, whether it listens or not.
const MESH: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {leno.dev/inject: disabled, leno.dev/flow-metrics: requests}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: shop}
spec: {command: [sleep, infinity], env: {PYTHONPATH: '@TOOLS@/grpcio'}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec:
  command: [nginx, -c, '@DIR@/nginx.conf']
  ports: [{name: http1, port: 8080}, {name: http2, port: 8081}]
  readiness: {tcpSocket: {port: 8081}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: calls, namespace: shop}
spec:
  command: [python3, calls.py]
  env: {PYTHONPATH: '@TOOLS@/grpcio'}
  ports: [{port: 9000}]
  readiness: {tcpSocket: {port: 9000}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: redis, namespace: shop}
spec:
  command: [redis-server, --save, '', --protected-mode, 'no']
  ports: [{port: 6379}]
  readiness: {tcpSocket: {port: 6379}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: postgres, namespace: shop}
spec:
  user: postgres
  workingDir: '@DIR@/postgres'
  command:
  - sh
  - -ec
  - |
    PATH=\"$PATH:$(echo /usr/lib/postgresql/*/bin)\"  # where Debian has them
    initdb --no-sync -A trust -D data >/dev/null
    echo 'host all all all trust' >>data/pg_hba.conf
    exec postgres -D data -c listen_addresses='*' -c unix_socket_directories= -c fsync=off -c log_statement=all \\
      -c ssl=off 2>log
  ports: [{port: 5432}]
  readiness: {tcpSocket: {port: 5432}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: maria, namespace: shop}
spec:
  command:
  - sh
  - -ec
  - |
    mkdir -p maria
    exec mariadbd --no-defaults --user=root --datadir=\"$PWD/maria\" --socket=\"$PWD/maria/socket\" --pid-file=\"$PWD/maria/pid\" \\
      --skip-grant-tables --skip-networking=0 --innodb=OFF --default-storage-engine=Aria --init-file=\"$PWD/init.sql\"
  ports: [{port: 3306}]
  readiness: {tcpSocket: {port: 3306}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: kafka, namespace: shop}
spec:
  command: ['@TOOLS@/kafka/kafka', serve, '9092', '127.0.0.1:9093']
  ports: [{port: 9092}]
  readiness: {tcpSocket: {port: 9092}}
";

const NGINX: &str = "daemon off;
pid @DIR@/nginx.pid;
error_log stderr;
events {}
http {
  log_format short '$server_protocol $request_method $status';
  access_log @DIR@/access.log short;
  server {
    listen [::]:8080 ipv6only=off;
    listen [::]:8081 ipv6only=off http2;
    location / { return 200 'hello'; }
    location /none { return 404; }
    location /broken { return 503; }
  }
}
";

/// A server that logs each call, and its client.
const CALLS: &str = "import sys, grpc
from concurrent import futures
def answer(request, context):
    with open('calls.log', 'a') as log: log.write(request.decode() + '\\n')
    if request == b'none': context.abort(grpc.StatusCode.NOT_FOUND, 'none')
    return b'hello'
if len(sys.argv) > 1:
    with grpc.insecure_channel(sys.argv[1]) as channel:
        call = channel.unary_unary('/shop.Cart/Add')
        for one in range(60):
            try: call(b'none' if one % 3 == 0 else b'some', timeout=30, wait_for_ready=True)
            except grpc.RpcError as error: assert error.code() == grpc.StatusCode.NOT_FOUND, error
else:
    methods = {'Add': grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('shop.Cart', methods),))
    server.add_insecure_port('[::]:9000')
    server.start()
    server.wait_for_termination()
";

/// The server requires each statement to be on its own line.
const INIT: &str = "CREATE DATABASE shop;\nCREATE TABLE shop.orders (id INT);\n";

/// How many requests there were, by kind and result.
type Counts = BTreeMap<(String, String), u64>;

fn counts<'a>(rows: impl IntoIterator<Item = (&'a str, &'a str, u64)>) -> Counts {
    let rows = rows.into_iter().filter(|(_, _, count)| *count > 0);
    rows.map(|(kind, result, count)| ((kind.to_owned(), result.to_owned()), count)).collect()
}

/// The mesh and its servers.
struct Shop(Mesh);

impl Shop {
    fn start() -> Option<Self> {
        for (program, package) in [
            ("nginx", "nginx-light"),
            ("h2load", "nghttp2-client"),
            ("redis-server", "redis-server"),
            ("redis-cli", "redis-tools"),
            ("redis-benchmark", "redis-tools"),
            ("psql", "postgresql"),
            ("pgbench", "postgresql"),
            ("mariadbd", "mariadb-server"),
            ("mariadb", "mariadb-client"),
            ("curl", "curl"),
            ("dig", "bind9-dnsutils"),
            ("python3", "python3"),
        ] {
            tools::find_or_skip(program, package).unwrap()?;
        }
        // Debian has a folder for each version of the server's programs, and none of them is in PATH.
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        if !versions.into_iter().any(|version| version.path().join("bin/initdb").exists()) {
            tools::find_or_skip("initdb", "postgresql").unwrap()?;
        }
        tools::install_or_skip("grpcio").unwrap()?;
        let kafka = tools::install_or_skip("kafka").unwrap()?;
        let all_tools = kafka.parent().unwrap().display().to_string();
        let mesh = root(|| Mesh::draft(MESH))?;
        let directory = mesh.directory().display().to_string();
        // The server runs as another user, who must be able to enter the folder of the mesh and has a folder in
        // it.
        fs::set_permissions(mesh.directory(), Permissions::from_mode(0o755)).unwrap();
        let mut own = Command::new("install");
        own.args(["-d", "-o", "postgres"]).arg(mesh.directory().join("postgres"));
        assert!(own.status().unwrap().success(), "{own:?}");
        mesh.edit(&MESH.replace("@DIR@", &directory).replace("@TOOLS@", &all_tools));
        for (name, text) in [
            ("nginx.conf", &*NGINX.replace("@DIR@", &directory)),
            ("calls.py", CALLS),
            ("init.sql", INIT),
            ("select.sql", "SELECT 7;\n"),
        ] {
            fs::write(mesh.directory().join(name), text).unwrap();
        }
        // On a busy machine the kernel's programs may seem to take more than their budget.
        let options = ["--wait", "--wait-timeout", "180s", "--flow-cpu-budget", "none"];
        let up = mesh.detached(&options);
        assert!(up.status.success(), "{up:?}\n{}", mesh.log());
        Some(Self(mesh))
    }

    /// Runs a line of shell script in an instance; returns its output.
    fn sh(&self, who: &str, line: &str) -> String {
        let path = "PATH=\"$PATH:$(echo /usr/lib/postgresql/*/bin)\"";
        self.0.text(who, &["bash", "-c", &format!("{path}; {line}")])
    }

    /// How many lines of a file of the mesh contain a text.
    fn lines(&self, file: &str, text: &str) -> u64 {
        let lines = fs::read_to_string(self.0.directory().join(file)).unwrap();
        lines.lines().filter(|line| line.contains(text)).count() as u64
    }

    /// The counts of one end in the metrics.
    fn read(&self, labels: &[&str]) -> Counts {
        let page = self.sh("client", "curl -sSf http://10.89.0.1:15025/metrics");
        let rows = page.lines().filter(|row| row.starts_with("leno_flow_requests_total{"));
        let mut counts = Counts::new();
        for row in rows.filter(|row| labels.iter().all(|label| row.contains(label))) {
            let of = |label: &str| {
                let (_, rest) = row.split_once(&format!("{label}=\"")).unwrap();
                rest.split('"').next().unwrap().to_owned()
            };
            let count: u64 = row.rsplit(' ').next().unwrap().parse().unwrap();
            *counts.entry((of("kind"), of("result"))).or_default() += count;
        }
        let lost = "leno_flow_samples_lost_total";
        assert!(page.lines().any(|row| row.starts_with(&format!("{lost} "))), "{page}");
        assert_eq!(sum_of(&page, lost, &[]), 0);
        counts
    }

    /// Compares the counts of both ends of connections with a server with the server's own counts.
    fn compare(&self, server: &str, protocol: &str, expected: &Counts) {
        let protocol = format!("protocol=\"{protocol}\"");
        let [own, peer] = ["", "peer_"].map(|of| format!(",{of}workload=\"{server}\""));
        let client = [",workload=\"client\"", &peer, "role=\"client\"", &protocol];
        let server = [&own, ",peer_workload=\"client\"", "role=\"server\"", &protocol];
        for labels in [client, server] {
            self.until(&labels, expected);
        }
    }

    fn until(&self, labels: &[&str], expected: &Counts) {
        let all = expected.values().sum();
        self.0.wait_for(&format!("{expected:?} of {labels:?}"), || {
            self.read(labels).values().sum::<u64>() >= all
        });
        assert_eq!(self.read(labels), *expected, "{labels:?}");
    }
}

#[test]
fn requests_of_plain_traffic_are_those_that_real_servers_count() {
    let Some(shop) = Shop::start() else { return };
    http(&shop);
    grpc(&shop);
    redis(&shop);
    postgresql(&shop);
    mysql(&shop);
    kafka(&shop);
    dns(&shop);
    // The command lists the same as the metrics.
    let listed = flows(&shop.0, &["client", "--requests", "--socket", "wire"]);
    let mut protocols: Vec<_> =
        listed.iter().map(|row| row["protocol"].as_str().unwrap()).collect();
    protocols.sort_unstable();
    protocols.dedup();
    let all = ["dns", "grpc", "http1", "http2", "kafka", "mysql", "postgresql", "redis"];
    assert_eq!(protocols, all, "{listed:?}");
}

fn http(shop: &Shop) {
    let (one, both) = ("curl -sS -o /dev/null", "h2load -c 2 -m 2");
    for line in [
        format!("{one} 'http://web:8080/?[1-100]'"),
        format!("{one} -I 'http://web:8080/?[1-20]'"),
        format!("{one} 'http://web:8080/none?[1-30]'"),
        format!("{one} 'http://web:8080/broken?[1-10]'"),
        format!("{both} -n 100 http://web:8081/"),
        format!("{both} -n 20 -H ':method: HEAD' http://web:8081/"),
        format!("{both} -n 30 http://web:8081/none"),
        format!("{both} -n 10 http://web:8081/broken"),
    ] {
        shop.sh("client", &line);
    }
    for (protocol, version) in [("http1", "HTTP/1.1"), ("http2", "HTTP/2.0")] {
        let logged = |text: &str| shop.lines("access.log", &format!("{version} {text}"));
        // nginx writes its log line after the response.
        shop.0.wait_for("the log of nginx", || logged("") >= 160);
        let expected = counts([
            ("GET", "2xx", logged("GET 200")),
            ("HEAD", "2xx", logged("HEAD 200")),
            ("GET", "4xx", logged("GET 404")),
            ("GET", "5xx", logged("GET 503")),
        ]);
        assert_eq!(expected.values().sum::<u64>(), 160, "{expected:?}");
        shop.compare("web", protocol, &expected);
    }
}

fn grpc(shop: &Shop) {
    shop.sh("client", "python3 calls.py calls:9000");
    let logged = |text: &str| shop.lines("calls.log", text);
    let expected = counts([("POST", "0", logged("some")), ("POST", "5", logged("none"))]);
    assert_eq!(expected.values().sum::<u64>(), 60, "{expected:?}");
    shop.compare("calls", "grpc", &expected);
}

fn redis(shop: &Shop) {
    // Pipelined commands on their own connections, and errors one by one.
    shop.sh("client", "redis-benchmark -h redis -n 400 -c 5 -P 4 -t set,get,lpush -q");
    shop.sh("client", "redis-cli -h redis -r 10 INCR mylist");
    let stats = shop.sh("redis", "redis-cli INFO commandstats | tr -d '\\r'");
    let mut expected = Counts::new();
    for line in stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")) {
        let (command, rest) = line.split_once(':').unwrap();
        let of = |field: &str| -> u64 {
            let (_, rest) = rest.split_once(&format!("{field}=")).unwrap();
            rest.split(',').next().unwrap().parse().unwrap()
        };
        let kind = command.split('|').next().unwrap().to_uppercase();
        // The server does not yet count the command that it is answering.
        let failed = of("failed_calls");
        *expected.entry((kind.clone(), "ok".to_owned())).or_default() += of("calls") - failed;
        *expected.entry((kind, "error".to_owned())).or_default() += failed;
    }
    expected.retain(|_, count| *count > 0);
    assert_eq!(expected[&("SET".to_owned(), "ok".to_owned())], 400, "{stats}");
    assert_eq!(expected[&("INCR".to_owned(), "error".to_owned())], 10, "{stats}");
    shop.compare("redis", "redis", &expected);
}

fn postgresql(shop: &Shop) {
    for protocol in ["simple", "extended", "prepared"] {
        let bench = "pgbench -n -h postgres -U postgres -c 2 -t 50 -f select.sql";
        shop.sh("client", &format!("{bench} -M {protocol} postgres"));
    }
    let psql = "psql -q -h postgres -U postgres postgres";
    shop.sh("client", &format!("{psql} -c 'CREATE TABLE orders (id int)'"));
    shop.sh("client", &format!("{psql} -c 'INSERT INTO orders VALUES (1)'"));
    for _ in 0..3 {
        shop.sh("client", &format!("! {psql} -c 'SELECT 1/0'"));
    }
    // The server writes its log line before it answers.
    let logged = |text: &str| shop.lines("postgres/log", text);
    let failed = logged("ERROR:  division by zero");
    // A prepared statement needs one more request for each connection.
    let [unnamed, executed] = ["execute <unnamed>: SELECT 7", "execute "].map(logged);
    let prepared = executed - unnamed;
    let simple = logged("statement: SELECT 7") + logged("statement: SELECT 1/0");
    let expected = counts([
        ("SELECT", "ok", simple + unnamed + 2 - failed),
        ("SELECT", "error", failed),
        ("EXECUTE", "ok", prepared),
        ("CREATE", "ok", logged("statement: CREATE TABLE")),
        ("INSERT", "ok", logged("statement: INSERT INTO")),
    ]);
    assert_eq!([simple, unnamed, prepared, failed], [103, 100, 100, 3], "{expected:?}");
    shop.compare("postgres", "postgresql", &expected);
}

fn mysql(shop: &Shop) {
    // After an error, the client continues with the next line of its input.
    let statements = "INSERT INTO shop.orders VALUES (1);\n".repeat(20)
        + &"SELECT COUNT(*) FROM shop.orders;\n".repeat(30)
        + &"SELECT nothing FROM shop.orders;\n".repeat(5);
    let client = "mariadb --no-defaults --skip-ssl";
    shop.sh("client", &format!("echo '{statements}' | {client} -h maria --force"));
    let status = |name: &str| -> u64 {
        let query = format!("SHOW GLOBAL STATUS LIKE \"{name}\"");
        let line = shop.sh("maria", &format!("{client} -h 127.0.0.1 -N -e '{query}'"));
        line.split_whitespace().last().unwrap().parse().unwrap()
    };
    let failed = 5;
    let expected = counts([
        ("INSERT", "ok", status("Com_insert")),
        ("SELECT", "ok", status("Com_select") - failed),
        ("SELECT", "error", failed),
    ]);
    assert_eq!(expected.values().sum::<u64>(), 55, "{expected:?}");
    shop.compare("maria", "mysql", &expected);
}

fn kafka(shop: &Shop) {
    let program = tools::install("kafka").unwrap().join("kafka");
    shop.sh("client", &format!("{} call kafka:9092 orders 30", program.display()));
    let names = ["ApiVersions", "InitProducerId", "ListOffsets", "Metadata", "Produce"];
    // The counts of the broker: those of Fetch requests, and those of all others.
    let count = || {
        let counted = shop.sh("kafka", "curl -sSf http://127.0.0.1:9093/");
        let mut counted: BTreeMap<String, u64> = serde_json::from_str(&counted).unwrap();
        let fetched = counted.remove("Fetch").unwrap();
        let mut rest = Counts::new();
        for (name, count) in counted {
            let known =
                names.iter().find(|one| one.eq_ignore_ascii_case(&name)).unwrap_or(&"other");
            *rest.entry(((*known).to_owned(), "answered".to_owned())).or_default() += count;
        }
        (fetched, rest)
    };
    for (own, role) in [("client", "client"), ("kafka", "server")] {
        let labels =
            [&format!(",workload=\"{own}\""), &format!("role=\"{role}\""), "protocol=\"kafka\""];
        let read = || {
            let mut rest = shop.read(&labels);
            let all: u64 = rest.values().sum();
            rest.retain(|(kind, _), _| kind != "Fetch");
            (all - rest.values().sum::<u64>(), rest)
        };
        shop.0.wait_for("the requests of Kafka", || {
            let [(fetched, rest), (expected_fetched, expected)] = [read(), count()];
            // When a client closes, it does not wait for the response to its last Fetch.
            let all = [&rest, &expected].map(|counts| counts.values().sum::<u64>());
            all[0] >= all[1] && fetched + 1 >= expected_fetched
        });
        let (_, expected) = count();
        assert_eq!(expected[&("Produce".to_owned(), "answered".to_owned())], 30, "{expected:?}");
        assert_eq!(read().1, expected, "{labels:?}");
    }
}

fn dns(shop: &Shop) {
    let dig = "dig +short +tries=1 +time=20";
    for _ in 0..5 {
        // Query types that no other client in this test uses.
        shop.sh("client", &format!("{dig} web.shop.svc.cluster.local MX"));
        shop.sh("client", &format!("{dig} +tcp web.shop.svc.cluster.local NAPTR"));
        shop.sh("client", &format!("{dig} none.shop.svc.cluster.local CAA"));
    }
    let labels = [",workload=\"client\"", "role=\"client\"", "protocol=\"dns\""];
    let asked = |kind: &str, result: &str| {
        let of_kind = format!("kind=\"{kind}\"");
        let labels = [&labels[..], &[&of_kind]].concat();
        shop.until(&labels, &counts([(kind, result, 5)]));
    };
    asked("MX", "NOERROR");
    asked("NAPTR", "NOERROR");
    asked("CAA", "NXDOMAIN");
}
