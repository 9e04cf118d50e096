//! Adds what the observer shows to the user: the last minutes of the mesh, and its present state.

use std::io;

use serde_json::Value;

use super::ReportScope;
use super::gather::ReportContent;
use crate::ClusterHistory;

/// The pages of the observer's interface, some with a window in milliseconds, each with the name of its file in the
/// report.
const PAGES: [(&str, &str); 7] = [
    ("overview", "overview.json"),
    ("topology?window=300000", "topology.json"),
    ("routes?window=300000", "routes.json"),
    ("changes", "changes.json"),
    ("proxies", "proxies.json"),
    ("policies?window=300000", "policies.json"),
    ("flows", "flows.json"),
];

impl ReportContent {
    /// Adds the pages for the namespaces of the report, as far as the user may see them. The observer decides by
    /// the user's own token what it shows.
    pub(super) async fn observed(
        &mut self,
        history: &ClusterHistory,
        wanted: &ReportScope,
    ) -> io::Result<()> {
        for (page, file) in PAGES {
            let file = format!("observer/{file}");
            let reply = match history.ask(&path(page, &wanted.namespaces)).await {
                Ok(reply) => reply,
                Err(error) => {
                    // If the observer does not answer the first query, the others are left out.
                    self.missing.push(format!("observer: {}", error.said()));
                    return Ok(());
                }
            };
            match serde_json::from_str::<Value>(&reply.body) {
                Ok(page) if reply.status == 200 => {
                    let has_room = self.archive.found(&file, &page)?;
                    if !has_room {
                        self.missing.push(format!(
                            "{file}: left out, because the archive has \
                             reached its largest size"
                        ));
                    }
                }
                _ => self.missing.push(format!("{file}: status {}", reply.status)),
            }
        }
        Ok(())
    }
}

fn path(page: &str, namespaces: &[String]) -> String {
    let path = format!("/api/v1/{page}");
    if namespaces.is_empty() {
        return path;
    }
    let separator = if page.contains('?') { '&' } else { '?' };
    format!("{path}{separator}namespaces={}", namespaces.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_of_the_namespaces_of_the_report() {
        let both = ["shop".to_owned(), "bank".to_owned()];
        assert_eq!(path("flows", &[]), "/api/v1/flows");
        assert_eq!(path("flows", &both), "/api/v1/flows?namespaces=shop,bank");
        assert_eq!(path("routes?window=1", &both), "/api/v1/routes?window=1&namespaces=shop,bank");
    }
}
