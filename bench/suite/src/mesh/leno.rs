//! Leno itself, with each kind of capture; and no mesh at all.

use leno_capture::Choice;

use super::{Mesh, MeshPrograms, Missing, NONE, tools};

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
}

impl Leno {
    /// Parses `leno`, or `leno-` and a kind of capture.
    pub(super) fn named(name: &str) -> Option<Self> {
        let capture = match name.strip_prefix("leno")? {
            "" => Choice::Auto,
            capture => capture.strip_prefix('-')?.parse().ok()?,
        };
        Some(Self { name: name.to_owned(), capture })
    }
}

impl Mesh for Leno {
    fn name(&self) -> &str {
        &self.name
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        let missing =
            |what: &str| Missing { what: what.to_owned(), bring: "make build".to_owned() };
        for program in ["leno-proxy", "leno-controller"] {
            leno_local::program::find(program).ok_or_else(|| missing(program))?;
        }
        let program =
            leno_local::program::find("leno-proxy").ok_or_else(|| missing("leno-proxy"))?;
        let version = tools::version(&program, "--version");
        Ok(MeshPrograms { program: Some(program), version })
    }

    fn own(&self) -> Option<Choice> {
        Some(self.capture)
    }
}
