//! Waiting for something of a cluster, with a bound, and with a word about how far it is.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::interrupt::Interrupt;

/// Between two looks: each is a request or a few.
const LOOK: Duration = Duration::from_millis(500);
/// Between two words about how far it is.
const WORD: Duration = Duration::from_secs(10);

/// What a look has shown.
pub(super) enum Seen<T> {
    /// What was waited for.
    There(T),
    /// It is not there yet; how far it is.
    NotYet(String),
}

/// What is waited for, how long, and who is told meanwhile.
pub(super) struct Wait<'a> {
    pub(super) what: &'a str,
    pub(super) limit: Duration,
    pub(super) interrupt: &'a Interrupt,
    pub(super) say: &'a mut dyn FnMut(&str),
}

impl Wait<'_> {
    /// Looks until it is there.
    ///
    /// # Errors
    /// When it is not within the limit, which says how far it was; when a look fails; when somebody
    /// interrupts.
    pub(super) async fn until<T>(
        self,
        mut look: impl AsyncFnMut() -> Result<Seen<T>>,
    ) -> Result<T> {
        let begin = Instant::now();
        let mut said = begin;
        loop {
            let far = match look().await? {
                Seen::There(found) => return Ok(found),
                Seen::NotYet(far) => far,
            };
            if begin.elapsed() > self.limit {
                bail!("{}: waited for {} s: {far}", self.what, self.limit.as_secs());
            }
            if said.elapsed() > WORD {
                said = Instant::now();
                (self.say)(&format!("  {}: {far}", self.what));
            }
            self.interrupt.check()?;
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Lets time pass, unless somebody interrupts.
pub(super) async fn pass(time: Duration, interrupt: &Interrupt) -> Result<()> {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        interrupt.check()?;
        tokio::time::sleep(left.min(LOOK)).await;
    }
    interrupt.check()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_does_not_come_is_waited_for_with_a_bound_and_told_of() {
        let interrupt = Interrupt::default();
        let wait = |limit| Wait {
            what: "pods",
            limit,
            interrupt: &interrupt,
            say: Box::leak(Box::new(|_: &str| {})),
        };
        let mut looks = 0;
        let found = wait(Duration::from_secs(60)).until(async || {
            looks += 1;
            Ok(if looks == 2 { Seen::There(looks) } else { Seen::NotYet("1 of 2".into()) })
        });
        assert_eq!(found.await.unwrap(), 2);
        let never = async || Ok(Seen::<()>::NotYet("1 of 2 ready".into()));
        let error = wait(Duration::ZERO).until(never).await.unwrap_err().to_string();
        assert_eq!(error, "pods: waited for 0 s: 1 of 2 ready");
        interrupt.raise();
        let error = wait(Duration::from_secs(60)).until(never).await.unwrap_err();
        assert!(error.is::<crate::interrupt::Interrupted>());
    }
}
