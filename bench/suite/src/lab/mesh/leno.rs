//! Leno itself, with each kind of capture; and no mesh at all.

use leno_capture::Choice;

use super::adapter::{Mesh, MeshPrograms, Observed};
use super::alone;
use super::hop::{Configuration, Hop};
use crate::mesh_names::NONE;
use crate::tools::Missing;

/// No proxy.
#[derive(Debug)]
pub(super) struct None;

impl Mesh for None {
    fn name(&self) -> &str {
        NONE
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        Ok(MeshPrograms::default())
    }
}

/// Leno as `leno up` runs it: strict mTLS, a proxy beside each workload, and Leno's own control
/// plane.
#[derive(Debug)]
pub(super) struct Leno {
    name: String,
    capture: Choice,
    observed: Observed,
}

/// What proxies observe, by the rest of the mesh's name.
const OBSERVED: [(&str, Observed); 4] = [
    ("-access-log", Observed::AccessLog),
    ("-traces-1", Observed::Traces(1)),
    ("-traces-100", Observed::Traces(100)),
    ("-tap", Observed::Tap),
];

impl Leno {
    /// Parses `leno`, or `leno-` and a kind of capture or what is observed.
    pub(super) fn named(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("leno")?;
        let observed = OBSERVED.iter().find(|(of, _)| *of == rest).map(|(_, observed)| *observed);
        let capture = match rest {
            _ if observed.is_some() => Choice::Auto,
            "" => Choice::Auto,
            capture => capture.strip_prefix('-')?.parse().ok()?,
        };
        let observed = observed.unwrap_or(Observed::Counts);
        Some(Self { name: name.to_owned(), capture, observed })
    }
}

impl Mesh for Leno {
    fn name(&self) -> &str {
        &self.name
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        let find = |program: &str| {
            let missing = || Missing::new(program, "make build");
            leno_local::program::find(program).ok_or_else(missing)
        };
        find("leno-controller")?;
        Ok(MeshPrograms::of(find("leno-proxy")?, "--version"))
    }

    fn own(&self) -> Option<Choice> {
        Some(self.capture)
    }

    fn observed(&self) -> Observed {
        self.observed
    }

    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        alone::in_plaintext(hop)
    }
}
