//! `payment`: pretends to charge the user.

use std::cell::Cell;

use anyhow::Result;
use hyper::Method;
use serde::{Deserialize, Serialize};

use crate::serve::{Ask, Reply, Service};

/// An amount to pay.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Bill {
    pub(crate) user: String,
    pub(crate) amount_cents: u64,
}

/// The confirmation of a payment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) number: u64,
    pub(crate) user: String,
    pub(crate) amount_cents: u64,
}

/// The service; counts its receipts.
#[derive(Debug, Default)]
pub(crate) struct Payment {
    receipts: Cell<u64>,
}

impl Service for Payment {
    const NAME: &'static str = "payment";

    async fn answer(&self, ask: Ask) -> Result<Reply> {
        if ask.parts() != ["payments"] {
            return Ok(Reply::NoSuchThing);
        }
        if ask.method != Method::POST {
            return Ok(Reply::WrongMethod("POST"));
        }
        let Ok(bill) = serde_json::from_slice::<Bill>(&ask.body) else {
            return Ok(Reply::Bad("a payment is {\"user\": ..., \"amount_cents\": ...}\n"));
        };
        let number = self.receipts.get() + 1;
        self.receipts.set(number);
        Reply::json(&Receipt { number, user: bill.user, amount_cents: bill.amount_cents })
    }
}
