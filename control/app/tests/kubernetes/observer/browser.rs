//! The pages of the observer, in a browser with the token of a reader.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leno_testkit::{binaries, command, tools};

/// How long the browser may take for one reader.
const STAGE: Duration = Duration::from_secs(600);

/// Visits every page as a reader who can see `seen` and nothing of `hidden`.
pub(super) async fn drives_the_pages(address: &str, token: &str, seen: &str, hidden: &str) {
    let Some(driver) = tools::install_or_skip("browser").unwrap() else { return };
    let Some((chromium, _)) = binaries::find("chromium").zip(binaries::find("node")) else {
        assert!(!tools::required("tools"), "LENO_REQUIRE has tools: chromium or node is missing");
        println!("skipped: chromium or node is missing");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboard/web/test/browser.mjs");
    let mut node = Command::new("node");
    node.arg(script).args(["cluster", &format!("http://{address}/#token={token}")]);
    node.env("LENO_BROWSER", driver).env("LENO_CHROMIUM", chromium);
    node.env("LENO_SEEN", seen).env("LENO_HIDDEN", hidden);
    let driven = tokio::task::spawn_blocking(move || command::text(&mut node, STAGE));
    driven.await.unwrap().unwrap();
}
