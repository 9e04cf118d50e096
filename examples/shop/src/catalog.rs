//! `catalog`: what the shop sells.

use anyhow::Result;
use hyper::Method;
use serde::{Deserialize, Serialize};

use crate::serve::{Ask, Reply, Service};

/// A product.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Product {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) price_cents: u64,
}

const PRODUCTS: [(&str, &str, u64); 12] = [
    ("gauze", "Leno gauze, 1 m", 1290),
    ("marquisette", "Marquisette curtain", 4950),
    ("scrim", "Stage scrim, 10 m", 18900),
    ("net-bag", "Produce net bag", 450),
    ("grenadine", "Grenadine tie", 7900),
    ("doup", "Doup heddle, pair", 3600),
    ("shuttle", "Boat shuttle", 2850),
    ("reed", "Reed, 10 dents", 5400),
    ("bobbin", "Bobbins, 12", 990),
    ("linen", "Linen yarn, 500 g", 2490),
    ("cotton", "Cotton yarn, 500 g", 1690),
    ("loom", "Table loom, 8 shafts", 89000),
];

/// The service.
#[derive(Debug)]
pub(crate) struct Catalog;

impl Service for Catalog {
    const NAME: &'static str = "catalog";

    async fn answer(&self, ask: Ask) -> Result<Reply> {
        if ask.method != Method::GET {
            return Ok(Reply::WrongMethod("GET"));
        }
        let mut products = PRODUCTS.iter().map(|(id, name, price_cents)| Product {
            id: (*id).to_string(),
            name: (*name).to_string(),
            price_cents: *price_cents,
        });
        match ask.parts().as_slice() {
            ["products"] => Reply::json(&products.collect::<Vec<_>>()),
            ["products", id] => match products.find(|product| product.id == *id) {
                Some(product) => Reply::json(&product),
                None => Ok(Reply::NoSuchThing),
            },
            _ => Ok(Reply::NoSuchThing),
        }
    }
}
