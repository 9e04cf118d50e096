//! Decodes the endpoints outside of the mesh.

use leno_types::mesh::{ExternalEndpoints, NamedEndpoint, Origination, Roots, SubjectName};

use super::{DecodeError, bounded, port};
use crate::proto;

/// The largest number of names behind one port: as many as an EndpointSlice may have endpoints.
const MAX_NAMES: usize = 1_000;
/// The largest number of certificate authorities of one policy; a bundle of all public ones has about 150.
const MAX_ROOTS: usize = 1_000;
/// The largest number of alternative names that a server's certificate may have.
const MAX_SUBJECT_NAMES: usize = 100;

pub(super) fn external(message: proto::External) -> Result<ExternalEndpoints, DecodeError> {
    bounded("external names", message.names.len(), MAX_NAMES)?;
    let name = |one: proto::NamedEndpoint| match one.host.is_empty() {
        true => Err(DecodeError::Missing("host of an external name")),
        false => Ok(NamedEndpoint { host: one.host.into(), port: port(one.port)? }),
    };
    Ok(ExternalEndpoints {
        names: message.names.into_iter().map(name).collect::<Result<_, _>>()?,
        tls: message.tls.map(origination).transpose()?,
    })
}

fn origination(message: proto::Origination) -> Result<Origination, DecodeError> {
    let roots = match message.roots {
        Some(proto::origination::Roots::System(true)) => Roots::System,
        Some(proto::origination::Roots::Given(given)) => {
            bounded("authorities", given.der.len(), MAX_ROOTS)?;
            Roots::Given(given.der.iter().map(|der| der.to_vec()).collect())
        }
        Some(proto::origination::Roots::Missing(why)) => Roots::Missing(why.into()),
        // A control plane always says where the authorities come from. `System(false)` is not a value that it sends.
        Some(proto::origination::Roots::System(false)) | None => {
            return Err(DecodeError::Missing("authorities of an external service"));
        }
    };
    bounded("names of a certificate", message.names.len(), MAX_SUBJECT_NAMES)?;
    Ok(Origination {
        source: message.source.into(),
        hostname: message.hostname.into(),
        roots,
        names: message.names.into_iter().map(subject_name).collect::<Result<_, _>>()?,
    })
}

fn subject_name(message: proto::SubjectName) -> Result<SubjectName, DecodeError> {
    match message.name {
        Some(proto::subject_name::Name::Host(host)) => Ok(SubjectName::Host(host.into())),
        Some(proto::subject_name::Name::Uri(uri)) => Ok(SubjectName::Uri(uri.into())),
        None => Err(DecodeError::Missing("name of a certificate")),
    }
}
