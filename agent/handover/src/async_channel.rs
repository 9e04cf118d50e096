//! A [`Channel`] for the async runtime tokio.

#![expect(unsafe_code, reason = "AsyncFd cannot check that a descriptor stays open")]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::channel::Channel;

/// The pause before another attempt to send, while the queue of the other end is full.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// A [`Channel`] that is read without blocking, in a runtime of tokio.
#[derive(Debug)]
pub struct AsyncChannel(AsyncFd<Channel>);

impl AsyncChannel {
    /// Makes the channel non-blocking. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// The system's reason.
    pub fn new(channel: Channel) -> io::Result<Self> {
        channel.set_nonblocking()?;
        // SAFETY: the channel owns its descriptor, which stays the same until the channel is dropped.
        Ok(Self(unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) }?))
    }

    /// The plain channel, for example for use in another runtime. It stays non-blocking.
    #[must_use]
    pub fn into_channel(self) -> Channel {
        self.0.into_inner()
    }

    /// Sends a message like [`Channel::send`]. Fails with `WouldBlock` if the queue of the other end is full.
    ///
    /// # Errors
    /// The errors of [`Channel::send`].
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.0.get_ref().send(message, descriptors)
    }

    /// Sends like [`Self::send`], but waits while the queue of the other end is full.
    ///
    /// # Errors
    /// The errors of [`Self::send`], and `WouldBlock` if the queue is still full after `longest`.
    pub async fn send_within(
        &self,
        longest: Duration,
        message: &(impl Serialize + Sync),
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let began = Instant::now();
        loop {
            match self.send(message, descriptors) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if began.elapsed() >= longest {
                        return Err(error);
                    }
                    tokio::time::sleep(FULL_PAUSE).await;
                }
                sent => return sent,
            }
        }
    }

    /// As [`Channel::shut_down`].
    pub fn shut_down(&self) {
        self.0.get_ref().shut_down();
    }

    /// Waits for the next message, like [`Channel::receive`]. Cancel safe: no message is lost if the future is
    /// dropped.
    ///
    /// # Errors
    /// The errors of [`Channel::receive`].
    pub async fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.0.async_io(Interest::READABLE, Channel::receive).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::MAX_MESSAGE;

    #[tokio::test]
    async fn sending_waits_for_a_slow_receiver_until_the_connection_ends() {
        let (one, other) = Channel::pair().unwrap();
        let (one, other) = (AsyncChannel::new(one).unwrap(), AsyncChannel::new(other).unwrap());
        let (text, count) = ("x".repeat(MAX_MESSAGE / 2), 100);
        let longest = Duration::from_secs(60);
        let send = async {
            for _ in 0..count {
                one.send_within(longest, &text, &[]).await.unwrap();
            }
            let full = (0..).find_map(|_| one.send(&text, &[]).err()).unwrap();
            assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
            one.shut_down();
        };
        let receive = async {
            let mut received = 0;
            while other.receive::<String>().await.unwrap().is_some() {
                received += 1;
            }
            received
        };
        let ((), received) = tokio::join!(send, receive);
        assert!(received > count, "{received}");
        assert!(one.receive::<String>().await.unwrap().is_none(), "it ends for both ends");
    }
}
