//! The changes that a rule and one of its backends make together.

use leno_types::routes::{Filter, HeaderChanges, Mirror, Rewrite, RouteBackend, RouteRule};

use crate::headers::combined;

/// The filters of a rule and of a backend, merged. The effect is as if the rule's filters were applied first.
/// Redirections and CORS are not merged: [`TableRule`](crate::TableRule) has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergedFilters {
    /// Changes of the request's headers.
    pub request: HeaderChanges,
    /// Changes of the response's headers.
    pub response: HeaderChanges,
    /// Changes of host and path. Those of the backend take precedence over those of the rule.
    pub rewrite: Rewrite,
    /// Where copies of the request go.
    pub mirrors: Vec<Mirror>,
}

impl MergedFilters {
    /// Merges the filters of a rule and a backend.
    #[must_use]
    pub fn new(rule: &RouteRule, backend: &RouteBackend) -> Self {
        let mut changes = Self::default();
        for filter in rule.filters.iter().chain(&backend.filters) {
            match filter {
                Filter::RequestHeaders(headers) => {
                    changes.request = combined(&changes.request, headers);
                }
                Filter::ResponseHeaders(headers) => {
                    changes.response = combined(&changes.response, headers);
                }
                Filter::Rewrite(Rewrite { hostname, path }) => {
                    let rewrite = &mut changes.rewrite;
                    rewrite.hostname = hostname.clone().or_else(|| rewrite.hostname.take());
                    rewrite.path = path.clone().or_else(|| rewrite.path.take());
                }
                Filter::Mirror(mirror) => changes.mirrors.push(mirror.clone()),
                Filter::Redirect(_) | Filter::Cors(_) => {}
            }
        }
        changes
    }
}
