//! `web`: the front end. One page needs three services, which it calls at the same time.

use std::fmt::Write as _;

use anyhow::Result;
use hyper::Method;
use serde::Serialize;

use crate::call::Remote;
use crate::cart::Entry;
use crate::catalog::Product;
use crate::payment::Receipt;
use crate::serve::{Ask, Reply, Service};

/// The product of a `POST /buy` without one.
const DEFAULT_PRODUCT: &str = "gauze";

/// The service.
#[derive(Debug)]
pub(crate) struct Web {
    catalog: Remote,
    cart: Remote,
    recommend: Remote,
    checkout: Remote,
}

/// The contents of the page.
#[derive(Serialize)]
struct Page {
    user: String,
    products: Vec<Product>,
    cart: Vec<Entry>,
    recommended: Vec<Product>,
}

impl Web {
    pub(crate) fn from_env() -> Result<Self> {
        Ok(Web {
            catalog: Remote::from_env("catalog")?,
            cart: Remote::from_env("cart")?,
            recommend: Remote::from_env("recommend")?,
            checkout: Remote::from_env("checkout")?,
        })
    }

    async fn page(&self, ask: &Ask) -> Result<Reply> {
        let user = user(ask).to_string();
        let cart = format!("/carts/{user}");
        let (products, cart, recommended) = tokio::try_join!(
            self.catalog.get("/products"),
            self.cart.get(&cart),
            self.recommend.get("/recommendations?for=gauze"),
        )?;
        let page = Page { user, products, cart, recommended };
        if ask.accept.contains("application/json") {
            return Reply::json(&page);
        }
        html(&page)
    }

    /// Puts a product into the cart.
    async fn add(&self, ask: &Ask) -> Result<Reply> {
        let product = ask.word("product").unwrap_or(DEFAULT_PRODUCT);
        let product: Product = self.catalog.get(&format!("/products/{product}")).await?;
        let entry = Entry { product: product.name, price_cents: product.price_cents };
        let path = format!("/carts/{}", user(ask));
        let _: String = self.cart.call(Method::POST, &path, serde_json::to_vec(&entry)?).await?;
        Reply::json(&entry)
    }

    /// Puts a product into the cart and pays for the whole cart.
    async fn buy(&self, ask: &Ask) -> Result<Reply> {
        self.add(ask).await?;
        let path = format!("/checkouts/{}", user(ask));
        let receipt: Receipt = self.checkout.call(Method::POST, &path, "").await?;
        Reply::json(&receipt)
    }
}

impl Service for Web {
    const NAME: &'static str = "web";

    async fn answer(&self, ask: Ask) -> Result<Reply> {
        match (ask.method.clone(), ask.path.as_str()) {
            (Method::GET | Method::HEAD, "/") => self.page(&ask).await,
            (Method::POST, "/cart") => self.add(&ask).await,
            (Method::POST, "/buy") => self.buy(&ask).await,
            (_, "/") => Ok(Reply::WrongMethod("GET, HEAD")),
            (_, "/cart" | "/buy") => Ok(Reply::WrongMethod("POST")),
            _ => Ok(Reply::NoSuchThing),
        }
    }
}

fn user(ask: &Ask) -> &str {
    ask.word("user").unwrap_or("guest")
}

/// The page as HTML. It contains only the shop's own texts and a validated user name.
fn html(page: &Page) -> Result<Reply> {
    let mut out = String::from(
        "<!doctype html><meta charset=\"utf-8\"><title>The loom shop</title>\n<h1>The loom shop</h1>\n",
    );
    let total: u64 = page.cart.iter().map(|entry| entry.price_cents).sum();
    writeln!(out, "<p>{}: {} in the cart, {}</p>", page.user, page.cart.len(), euros(total))?;
    for (title, products) in [("All", &page.products), ("For you", &page.recommended)] {
        writeln!(out, "<h2>{title}</h2>\n<ul>")?;
        for product in products {
            writeln!(out, "<li>{} <b>{}</b></li>", product.name, euros(product.price_cents))?;
        }
        out.push_str("</ul>\n");
    }
    Ok(Reply::Html(out))
}

fn euros(cents: u64) -> String {
    format!("{}.{:02} €", cents / 100, cents % 100)
}
