//! Tests every kind of client with every mTLS mode, kind of policy and protocol, through a whole inbound side over
//! loopback. The outcomes must equal the table in `docs/reference/authorization-matrix.md`; `LENO_UPDATE=1` rewrites
//! it.
#![expect(clippy::unwrap_used, reason = "tests")]

mod clients;
mod server;
mod tokens;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use leno_types::{MtlsMode, Protocol};
use tokio::task::LocalSet;
use tokio::time::timeout;

use clients::{Client, Clients};
use server::{Rules, Workload};
use tokens::Tokens;

const PAGE: &str = "../../docs/reference/authorization-matrix.md";

/// Far more than one cell of the table takes; a client that hangs fails the test.
const CELL: Duration = Duration::from_secs(20);

const MODES: [MtlsMode; 3] = [MtlsMode::Strict, MtlsMode::Permissive, MtlsMode::Disabled];
const PROTOCOLS: [(Protocol, &str); 3] =
    [(Protocol::Http1, "HTTP/1"), (Protocol::Http2, "HTTP/2"), (Protocol::Opaque, "bytes")];

const HEAD: &str = "# What becomes of each client

What the proxy of a workload in namespace `shop` does with a client, by mode of mTLS, protocol of the port and policy. Tested cell by cell in
`proxy/inbound/tests/inbound/matrix`; this page is written by that test.

| policy | |
|---|---|
| Allow | permits clients of namespace `shop` |
| Deny | denies clients of namespace `bank` |
| Audit | audits clients of namespace `shop` |
| token | permits requests with a valid token of an issuer, of any client: one that is good, expired, for another audience, with the algorithm `none`, of an unknown `kid`, or none |

| outcome | |
|---|---|
| served | the application serves the client |
| audited | the same, and the policy has counted it |
| 401, 403 | the answer, with what `leno-error` gives as its reason |
| reset | the connection ends before the application gets a byte |
| no TLS | the connection ends in the handshake or right after it, and the application gets nothing |
| passed on | under `disabled` TLS is bytes of the client, which the application of such a port gets |

`federated` is a client of a trust domain whose bundle the mesh takes, in a namespace of the same name: `namespaces` in policies are of the mesh's own
trust domain. `of a federated authority` is one with an identity of this trust domain that the other one's authority has signed.

";

/// The columns of the table: a policy, and the token of the request.
fn columns(tokens: &Tokens) -> Vec<(&'static str, Rules, Option<&str>)> {
    let mut all: Vec<(_, _, Option<&str>)> = vec![
        ("Allow", Rules::Allow, None),
        ("Deny", Rules::Deny, None),
        ("Audit", Rules::Audit, None),
    ];
    all.extend(tokens.all().map(|(name, token)| (name, Rules::Tokens, token)));
    all
}

/// The table of the proxy's decisions.
async fn table() -> String {
    let (clients, tokens) = (Clients::new(), Tokens::new());
    let columns = columns(&tokens);
    let mut table = String::from("| mTLS | protocol | client |");
    columns.iter().for_each(|(name, ..)| write!(table, " {name} |").unwrap());
    writeln!(table, "\n|---|---|---|{}", "---|".repeat(columns.len())).unwrap();
    for mode in MODES {
        for (protocol, name) in PROTOCOLS {
            let mut rows: Vec<String> = Client::ALL
                .iter()
                .map(|client| format!("| {mode} | {name} | {client} |"))
                .collect();
            let mut workload: Option<(Rules, Workload)> = None;
            for (_, rules, token) in &columns {
                if workload.as_ref().is_none_or(|(known, _)| known != rules) {
                    let keyring = clients.of_server();
                    workload = Some((
                        *rules,
                        Workload::serve((mode, protocol), *rules, &tokens, &keyring).await,
                    ));
                }
                let Some((_, workload)) = &workload else { continue };
                for (client, row) in Client::ALL.into_iter().zip(&mut rows) {
                    let outcome = timeout(CELL, clients.try_as(client, workload, protocol, *token));
                    let outcome = outcome.await.unwrap_or_else(|_| panic!("{row} ... waits"));
                    write!(row, " {outcome} |").unwrap();
                }
            }
            rows.iter().for_each(|row| writeln!(table, "{row}").unwrap());
        }
    }
    table
}

#[test]
fn each_client_gets_what_the_table_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let table = LocalSet::new().block_on(&runtime, table());
    let page = format!("{HEAD}{table}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os("LENO_UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let stated = std::fs::read_to_string(&path).unwrap_or_default();
    for (stated, found) in stated.lines().zip(page.lines()) {
        assert_eq!(stated, found);
    }
    assert_eq!(stated.lines().count(), page.lines().count());
    for row in table.lines().skip(2) {
        hold(&row.split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect::<Vec<_>>());
    }
}

/// Checks rules that each row must satisfy, whatever the documented table contains.
fn hold(row: &[&str]) {
    let [mode, protocol, client, allow, deny, audit, good, refused @ ..] = row else {
        panic!("{row:?}")
    };
    let is_served = |cell: &str| cell == "served" || cell == "audited";
    let is_proven = matches!(*client, "right" | "other namespace" | "federated");
    let is_right = *client == "right" && *mode != "disabled";
    assert_eq!(is_served(allow), is_right, "{row:?}");
    assert!(refused.iter().all(|cell| !is_served(cell)), "{row:?}");
    assert!(!is_served(good) || *protocol != "bytes", "bytes have no token: {row:?}");
    assert_eq!(*audit == "audited", is_right, "{row:?}");
    assert!(*client != "other namespace" || !is_served(deny) || *mode == "disabled", "{row:?}");
    if *mode == "strict" {
        assert!(is_proven || !row.iter().any(|cell| is_served(cell)), "{row:?}");
    }
}
