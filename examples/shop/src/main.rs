//! `shop`: six small HTTP services in one binary, an example application for the mesh.
//!
//! It knows nothing about meshes: services call each other at plain `http://name:8080` URLs, which
//! the environment can override. Each service is one process with one thread.
//!
//! ```text
//!   web ─┬─► catalog ◄─┐
//!        ├─► recommend ┘
//!        ├─► cart ──► redis
//!        │     ▲
//!        └─► checkout ──► payment
//! ```
//! Start with [`web`] (the fan-out) and [`serve`].

mod call;
mod cart;
mod catalog;
mod checkout;
mod payment;
mod recommend;
mod redis;
mod serve;
mod web;

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: shop web|catalog|recommend|cart|checkout|payment

Runs one service of the example shop. Environment:
  SHOP_LISTEN     address to listen on              [::]:8080
  CATALOG_URL     where the catalog is              http://catalog:8080
  RECOMMEND_URL   where the recommendations are     http://recommend:8080
  CART_URL        where the carts are               http://cart:8080
  CHECKOUT_URL    where the checkout is             http://checkout:8080
  PAYMENT_URL     where the payment service is      http://payment:8080
  REDIS_ADDRESS   where Redis is                    redis:6379
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [service] = arguments.as_slice() else {
        note(USAGE.trim_end());
        return ExitCode::from(64);
    };
    if matches!(service.as_str(), "-h" | "--help") {
        show(USAGE.trim_end());
        return ExitCode::SUCCESS;
    }
    match run(service) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("shop {service}: {error:#}"));
            ExitCode::from(2)
        }
    }
}

fn run(service: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        match service {
            "web" => serve::run(web::Web::from_env()?).await,
            "catalog" => serve::run(catalog::Catalog).await,
            "recommend" => serve::run(recommend::Recommend::from_env()?).await,
            "cart" => serve::run(cart::Cart::from_env()).await,
            "checkout" => serve::run(checkout::Checkout::from_env()?).await,
            "payment" => serve::run(payment::Payment::default()).await,
            other => bail!("no service {other:?}\n{USAGE}"),
        }
    })
}

/// Prints a line to standard output, if that has a reader.
fn show(line: &str) {
    let _unread = writeln!(io::stdout(), "{line}");
}

/// Prints a line to standard error, if that has a reader.
fn note(line: &str) {
    let _unread = writeln!(io::stderr(), "{line}");
}

/// A setting from the environment.
fn setting(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_string())
}
