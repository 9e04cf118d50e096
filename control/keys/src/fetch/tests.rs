use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

const SET: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc"}]}"#;

/// A server that gives these answers by path. Returns its origin.
async fn server(answers: Vec<(&'static str, String)>) -> Origin {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let origin = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 4096];
            let read = stream.read(&mut head).await.expect("a request");
            let head = String::from_utf8_lossy(&head[..read]).into_owned();
            let path = head.split(' ').nth(1).expect("a path").to_owned();
            let answer = answers.iter().find(|(of, _)| *of == path).map(|(_, answer)| answer);
            if let Some(answer) = answer {
                // The write fails if the client has read enough and closed the connection.
                let _closed = stream.write_all(answer.as_bytes()).await;
            }
        }
    });
    origin.parse().expect("an origin")
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn redirect(to: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n")
}

fn authorities() -> Arc<WebAuthorities> {
    Arc::new(WebAuthorities::open(None).expect("those of the machine, or the built-in ones"))
}

/// A fetcher that may connect to loopback, where the servers of tests listen.
fn fetcher(permitted: &[&Origin]) -> Fetcher {
    let permitted = permitted.iter().map(|one| (*one).clone()).collect();
    Fetcher::new(permitted, authorities()).connecting_to_loopback()
}

async fn why(fetcher: &Fetcher, url: String) -> String {
    fetcher.fetch(&url).await.expect_err(&url).to_string()
}

#[tokio::test]
async fn a_set_is_fetched_and_checked() {
    let long = format!("{SET}{}", " ".repeat(MAX_KEY_SET_BYTES));
    let secret = r#"{"keys":[{"kty":"oct","k":"AA"}]}"#;
    let origin = server(vec![
        ("/keys?v=1", ok(SET)),
        ("/moved", redirect("/keys?v=1")),
        ("/long", ok(&long)),
        ("/html", ok("<html>")),
        ("/secret", ok(secret)),
        ("/loop", redirect("/loop")),
        ("/error", "HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n".to_owned()),
    ])
    .await;
    let fetcher = fetcher(&[&origin]);
    for path in ["/keys?v=1", "/moved"] {
        let fetched = fetcher.fetch(&format!("{origin}{path}")).await.expect(path);
        assert_eq!((fetched.text(), fetched.left_out()), (SET, 0), "{path}");
    }
    for (path, expected) in [
        ("/long", "is larger than 65536 bytes"),
        ("/html", "is not a set of keys"),
        ("/secret", "shared secret"),
        ("/loop", "more than 3 times"),
        ("/error", "500"),
    ] {
        let said = why(&fetcher, format!("{origin}{path}")).await;
        assert!(said.contains(expected), "{path}: {said}");
    }
}

#[tokio::test]
async fn cve_2026_41413_only_permitted_origins_are_connected_to() {
    let other = server(vec![("/keys", ok(SET))]).await;
    let origin = server(vec![
        ("/keys", ok(SET)),
        ("/away", redirect(&format!("{other}/keys"))),
        ("/aside", redirect("//127.0.0.1:1/keys")),
        ("/metadata", redirect("http://169.254.169.254/latest/meta-data")),
    ])
    .await;
    let permissive = fetcher(&[&origin]);
    let said = why(&permissive, format!("{other}/keys")).await;
    assert!(said.contains("keys-from"), "{said}");
    for path in ["/away", "/aside", "/metadata"] {
        let said = why(&permissive, format!("{origin}{path}")).await;
        assert!(said.contains("redirects to another origin"), "{path}: {said}");
    }
    for url in ["file:///etc/passwd", "gopher://a", "http://u:p@127.0.0.1/", "keys"] {
        let said = why(&permissive, url.to_owned()).await;
        assert!(said.contains("not an http or https URL"), "{url}: {said}");
    }
    // A permitted name may be resolved to any address, so this must be refused.
    let strict = Fetcher::new(vec![origin.clone()], authorities());
    let said = why(&strict, format!("{origin}/keys")).await;
    assert!(said.contains("of this machine"), "{said}");
}
