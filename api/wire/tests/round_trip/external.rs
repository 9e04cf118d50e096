//! Generates a value for each kind of external endpoint, chosen by a number.

use std::sync::Arc;

use leno_types::mesh::{ExternalEndpoints, NamedEndpoint, Origination, Roots, SubjectName};

pub(crate) fn of(number: u16) -> Arc<ExternalEndpoints> {
    let names = vec![NamedEndpoint { host: "api.example.com".into(), port: number.max(1) }];
    let tls = (!number.is_multiple_of(3)).then(|| Origination {
        source: "BackendTLSPolicy shop/pay".into(),
        hostname: "api.example.com".into(),
        roots: match number % 5 {
            0 => Roots::System,
            1 => Roots::Missing("there is no ConfigMap shop/ca".into()),
            _ => Roots::Given([vec![1, 2], vec![3]].into()),
        },
        names: [SubjectName::Host("a.example".into()), SubjectName::Uri("spiffe://a/b".into())]
            .into(),
    });
    Arc::new(ExternalEndpoints { names, tls })
}
