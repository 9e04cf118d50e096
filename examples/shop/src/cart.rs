//! `cart`: each user's cart, stored in Redis.

use anyhow::{Context, Result};
use hyper::Method;
use serde::{Deserialize, Serialize};

use crate::redis::Redis;
use crate::serve::{Ask, Reply, Service, is_word};
use crate::setting;

/// Most entries of one cart; the oldest are dropped.
const MAX_ENTRIES: usize = 20;

/// One entry of a cart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) product: String,
    pub(crate) price_cents: u64,
}

/// The service.
#[derive(Debug)]
pub(crate) struct Cart {
    redis: Redis,
}

impl Cart {
    pub(crate) fn from_env() -> Self {
        Cart { redis: Redis::new(setting("REDIS_ADDRESS", "redis:6379")) }
    }

    async fn entries(&self, key: &str) -> Result<Vec<Entry>> {
        let list = self.redis.list(key).await?;
        list.iter()
            .map(|entry| serde_json::from_str(entry).context("redis holds something else"))
            .collect()
    }
}

impl Service for Cart {
    const NAME: &'static str = "cart";

    async fn answer(&self, ask: Ask) -> Result<Reply> {
        let key = match ask.parts().as_slice() {
            ["carts", user] if is_word(user) => format!("cart:{user}"),
            _ => return Ok(Reply::NoSuchThing),
        };
        match ask.method {
            Method::GET => Reply::json(&self.entries(&key).await?),
            Method::POST => {
                let Ok(entry) = serde_json::from_slice::<Entry>(&ask.body) else {
                    return Ok(Reply::Bad(
                        "an entry is {\"product\": ..., \"price_cents\": ...}\n",
                    ));
                };
                let entry = serde_json::to_string(&entry)?;
                self.redis.push(&key, &entry, MAX_ENTRIES).await?;
                Reply::json(&"added")
            }
            Method::DELETE => {
                self.redis.delete(&key).await?;
                Reply::json(&"emptied")
            }
            _ => Ok(Reply::WrongMethod("GET, POST, DELETE")),
        }
    }
}
