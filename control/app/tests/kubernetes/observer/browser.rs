//! The pages of the observer, in a browser with the token of a reader.

use std::time::Duration;

use leno_testkit::browser::Browser;
use leno_testkit::command;

/// How long the browser may take for one reader.
const STAGE: Duration = Duration::from_secs(600);

/// Visits every page as a reader who may see the namespace `seen` but not the namespace `hidden`.
pub(super) async fn drives_the_pages(address: &str, token: &str, seen: &str, hidden: &str) {
    let Some(browser) = Browser::find_or_skip().unwrap() else { return };
    let mut node = browser.run("browser.mjs");
    node.args(["cluster", &format!("http://{address}/#token={token}")]);
    node.env("LENO_SEEN", seen).env("LENO_HIDDEN", hidden);
    let driven = tokio::task::spawn_blocking(move || command::text(&mut node, STAGE));
    driven.await.unwrap().unwrap();
}
