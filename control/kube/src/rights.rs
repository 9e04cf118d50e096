//! Asks the API server which actions the user is permitted to do.

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client, Error};

/// Most reviews that are requested at the same time. Each is one short request.
const AT_ONCE: usize = 16;

/// A right: verb, group (empty for Kubernetes' core), and resource, optionally with a subresource
/// after a slash.
pub type Right = (&'static str, &'static str, &'static str);

/// An action that needs a right: on one object or on all, in one namespace or in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredRight {
    verb: &'static str,
    group: String,
    resource: String,
    namespace: Option<String>,
    name: Option<String>,
}

impl From<&Right> for RequiredRight {
    fn from((verb, group, resource): &Right) -> Self {
        Self::new(verb, group, resource)
    }
}

impl RequiredRight {
    /// The action on any object, in all namespaces. The resource may have a subresource after a slash.
    #[must_use]
    pub fn new(verb: &'static str, group: &str, resource: &str) -> Self {
        let (group, resource) = (group.to_owned(), resource.to_owned());
        Self { verb, group, resource, namespace: None, name: None }
    }

    /// The action in this namespace, or in all namespaces if `None`.
    #[must_use]
    pub fn inside(self, namespace: Option<&str>) -> Self {
        Self { namespace: namespace.map(str::to_owned), ..self }
    }

    /// The action on the object with this name only.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..self }
    }

    fn said(&self) -> String {
        let Self { verb, group, resource, namespace, name } = self;
        let of = if group.is_empty() { String::new() } else { format!(".{group}") };
        let which = name.as_ref().map_or_else(String::new, |name| format!(" {name}"));
        let place = namespace.as_ref().map_or_else(String::new, |name| format!(" in {name}"));
        format!("{verb} {resource}{of}{which}{place}")
    }

    async fn is_allowed(&self, client: &Client) -> Result<bool, Error> {
        let (resource, sub) = match self.resource.split_once('/') {
            Some((resource, sub)) => (resource, Some(sub.to_owned())),
            None => (&*self.resource, None),
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(self.verb.to_owned()),
                    group: Some(self.group.clone()),
                    resource: Some(resource.to_owned()),
                    subresource: sub,
                    namespace: self.namespace.clone(),
                    name: self.name.clone(),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let asked = Api::all(client.clone()).create(&PostParams::default(), &review).await;
        Ok(asked?.status.is_some_and(|status| status.allowed))
    }
}

/// The actions among these that the user is not permitted to do, as text and in the same order.
///
/// # Errors
/// If the API server does not answer.
pub async fn unmet(client: &Client, needs: Vec<RequiredRight>) -> Result<Vec<String>, Error> {
    let asked = stream::iter(needs).map(async |need: RequiredRight| {
        let allowed = need.is_allowed(client).await?;
        Ok::<_, Error>((!allowed).then(|| need.said()))
    });
    let answers: Vec<Option<String>> = asked.buffered(AT_ONCE).try_collect().await?;
    Ok(answers.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_allowed_is_named_as_precisely_as_it_is_needed() {
        let any = RequiredRight::new("list", "", "pods");
        assert_eq!(any.said(), "list pods");
        let one =
            RequiredRight::new("delete", "apps", "deployments").inside(Some("mesh")).named("web");
        assert_eq!(one.said(), "delete deployments.apps web in mesh");
    }
}
