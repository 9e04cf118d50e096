//! Encodes the endpoints outside of the mesh.

use leno_types::mesh::{ExternalEndpoints, Origination, Roots, SubjectName};

use crate::proto;

pub(super) fn external(external: &ExternalEndpoints) -> proto::External {
    let names = external
        .names
        .iter()
        .map(|one| proto::NamedEndpoint { host: one.host.to_string(), port: one.port.into() });
    proto::External { names: names.collect(), tls: external.tls.as_ref().map(origination) }
}

fn origination(tls: &Origination) -> proto::Origination {
    let roots = match &tls.roots {
        Roots::System => proto::origination::Roots::System(true),
        Roots::Given(roots) => {
            let der = roots.iter().map(|der| der.clone().into()).collect();
            proto::origination::Roots::Given(proto::Certificates { der })
        }
        Roots::Missing(why) => proto::origination::Roots::Missing(why.to_string()),
    };
    proto::Origination {
        source: tls.source.to_string(),
        hostname: tls.hostname.to_string(),
        roots: Some(roots),
        names: tls.names.iter().map(subject_name).collect(),
    }
}

fn subject_name(name: &SubjectName) -> proto::SubjectName {
    let name = match name {
        SubjectName::Host(host) => proto::subject_name::Name::Host(host.to_string()),
        SubjectName::Uri(uri) => proto::subject_name::Name::Uri(uri.to_string()),
    };
    proto::SubjectName { name: Some(name) }
}
