//! Leno itself, with each kind of capture; and no mesh at all.

use super::adapter::{Mesh, MeshPrograms, Observed, Own, Share};
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

/// Leno as `leno up` runs it: strict mTLS, a proxy for each workload, and Leno's own control plane.
#[derive(Debug)]
pub(super) struct Leno {
    name: String,
    own: Own,
}

impl Leno {
    /// Parses `leno`, or `leno-` and a kind of capture, what is observed, or who shares a process.
    pub(super) fn named(name: &str) -> Option<Self> {
        let own = Own::default();
        let observing = |observed| Own { observed, ..own };
        let shared = |share| Own { share: Some(share), ..own };
        let own = match name.strip_prefix("leno")? {
            "" => own,
            "-access-log" => observing(Observed::AccessLog),
            "-traces-1" => observing(Observed::Traces(1)),
            "-traces-100" => observing(Observed::Traces(100)),
            "-tap" => observing(Observed::Tap),
            "-node" => shared(Share::Node),
            "-shared" => shared(Share::ServiceAccount),
            capture => Own { capture: capture.strip_prefix('-')?.parse().ok()?, ..own },
        };
        Some(Self { name: name.to_owned(), own })
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

    fn own(&self) -> Option<Own> {
        Some(self.own)
    }

    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        alone::in_plaintext(hop)
    }
}
