//! `recommend`: three products from the catalog that go with a given one.

use anyhow::Result;

use crate::call::Remote;
use crate::catalog::Product;
use crate::serve::{Ask, Reply, Service};

/// How many to recommend.
const COUNT: usize = 3;

/// The service.
#[derive(Debug)]
pub(crate) struct Recommend {
    catalog: Remote,
}

impl Recommend {
    pub(crate) fn from_env() -> Result<Self> {
        Ok(Recommend { catalog: Remote::from_env("catalog")? })
    }
}

impl Service for Recommend {
    const NAME: &'static str = "recommend";

    async fn answer(&self, ask: Ask) -> Result<Reply> {
        if ask.parts() != ["recommendations"] {
            return Ok(Reply::NoSuchThing);
        }
        let products: Vec<Product> = self.catalog.get("/products").await?;
        let seen = ask.word("for").unwrap_or_default();
        let start = products.iter().position(|p| p.id == seen).map_or(0, |at| at + 1);
        let picked: Vec<_> = products.iter().cycle().skip(start).take(COUNT).collect();
        Reply::json(&picked)
    }
}
