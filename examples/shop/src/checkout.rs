//! `checkout`: pays for a cart and empties it.

use anyhow::Result;
use hyper::Method;

use crate::call::Remote;
use crate::cart::Entry;
use crate::payment::{Bill, Receipt};
use crate::serve::{Ask, Reply, Service, is_word};

/// The service.
#[derive(Debug)]
pub(crate) struct Checkout {
    cart: Remote,
    payment: Remote,
}

impl Checkout {
    pub(crate) fn from_env() -> Result<Self> {
        Ok(Checkout { cart: Remote::from_env("cart")?, payment: Remote::from_env("payment")? })
    }
}

impl Service for Checkout {
    const NAME: &'static str = "checkout";

    async fn answer(&self, ask: Ask) -> Result<Reply> {
        let user = match ask.parts().as_slice() {
            ["checkouts", user] if is_word(user) => (*user).to_string(),
            _ => return Ok(Reply::NoSuchThing),
        };
        if ask.method != Method::POST {
            return Ok(Reply::WrongMethod("POST"));
        }
        let cart = format!("/carts/{user}");
        let entries: Vec<Entry> = self.cart.get(&cart).await?;
        let amount_cents = entries.iter().map(|entry| entry.price_cents).sum();
        let bill = serde_json::to_vec(&Bill { user, amount_cents })?;
        let receipt: Receipt = self.payment.call(Method::POST, "/payments", bill).await?;
        let _: String = self.cart.call(Method::DELETE, &cart, "").await?;
        Reply::json(&receipt)
    }
}
