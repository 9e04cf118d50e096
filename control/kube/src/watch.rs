//! Watches the objects of a kind.
//!
//! ```text
//!            ┌───────────────── expired (410): wait, then list again ◄────────┐
//!            ▼                                                                │
//!  list: Init, InitApply.., InitDone ──► watch: Apply, Delete .. ──► cut ──► wait, then watch from
//!    ▲                        │                                               the last version
//!    └── failed: Failed, wait ┘
//! ```
//! The list is a stream from the API server's cache if the server supports that (KEP-3157, on by default since
//! Kubernetes 1.34), or else is read in pages. After an outage of the API server, a watch continues from its last
//! version. It lists again only if the server no longer has that version.

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use kube::runtime::watcher;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use crate::connect::CONNECT_TIMEOUT;

pub use kube::runtime::watcher::{Error as WatchError, Event};

/// The shortest wait after a failure. Each further failure doubles the wait.
const FIRST_WAIT: Duration = Duration::from_millis(400);
/// For how long a server may answer requests for a streamed list with errors before the list is requested in
/// pages. A server that cannot fill its cache, for example because a conversion webhook fails, answers a request
/// for pages with the reason. This value applies to the first list, for which callers wait, such as a control
/// plane that is starting.
const FIRST_PATIENCE: Duration = Duration::from_secs(2);

/// As [`FIRST_PATIENCE`], for later lists. At that time callers still have the earlier objects. After a restart of
/// the server, all clients may request lists at once, and lists in pages are read from etcd, which would overload
/// it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which objects to watch, and how long to wait after failures.
#[derive(Clone, Debug)]
pub struct WatchSelection {
    /// A field selector; empty for all objects.
    pub fields: String,
    /// A label selector; empty for all objects.
    pub labels: String,
    /// How many objects one page has, if the server cannot stream a list. A whole page is in memory at once.
    pub page: u32,
    /// The longest wait after a failure, without the random addition, which is up to half of it.
    pub longest_wait: Duration,
}

impl Default for WatchSelection {
    /// All objects. The waits are for a client with only a few instances: a watch continues at most 8 s after the
    /// API server is available again.
    fn default() -> Self {
        let (fields, labels) = (String::new(), String::new());
        Self { fields, labels, page: 500, longest_wait: Duration::from_secs(4) }
    }
}

impl WatchSelection {
    /// The object of this name, in each namespace of the watch.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { fields: format!("metadata.name={name}"), ..Self::default() }
    }

    /// The objects with this value of a label.
    #[must_use]
    pub fn labelled(label: &str, value: &str) -> Self {
        Self { labels: format!("{label}={value}"), ..Self::default() }
    }

    fn config(&self, streams: bool) -> watcher::Config {
        let config = watcher::Config::default().page_size(self.page);
        let config = if streams { config.streaming_lists() } else { config };
        if self.fields.is_empty() && self.labels.is_empty() {
            return config;
        }
        // Without this, etcd would read all objects. The server's cache has an index, but does not support pages.
        let config = config.any_semantic();
        let selector = |text: &String| (!text.is_empty()).then(|| text.clone());
        watcher::Config {
            field_selector: selector(&self.fields),
            label_selector: selector(&self.labels),
            page_size: None,
            ..config
        }
    }

    fn waits(&self) -> ExponentialBackoff {
        let waits = ExponentialBuilder::new().with_min_delay(FIRST_WAIT).with_jitter();
        waits.with_max_delay(self.longest_wait).with_factor(2.0).without_max_times().build()
    }

    /// How long after a failure a watch without a further failure or event counts as resumed.
    fn settled(&self) -> Duration {
        self.longest_wait * 2 + CONNECT_TIMEOUT
    }
}

/// What a watch yields.
#[derive(Debug)]
pub enum WatchReport<K> {
    /// A change, or a part of a list.
    Event(Event<K>),
    /// The list or the watch has failed, and is retried after a wait.
    Failed(WatchError),
    /// The watch works again after a failure, and has nothing else to report.
    Resumed,
}

impl<K> WatchReport<K> {
    /// The same report, with the object converted by `of`.
    pub fn map<V>(self, of: impl FnOnce(K) -> V) -> WatchReport<V> {
        match self {
            Self::Event(event) => WatchReport::Event(match event {
                Event::Init => Event::Init,
                Event::InitApply(object) => Event::InitApply(of(object)),
                Event::InitDone => Event::InitDone,
                Event::Apply(object) => Event::Apply(of(object)),
                Event::Delete(object) => Event::Delete(of(object)),
            }),
            Self::Failed(error) => WatchReport::Failed(error),
            Self::Resumed => WatchReport::Resumed,
        }
    }
}

/// Watches objects, without their managed fields. The stream never ends.
pub fn watch<K>(api: Api<K>, selection: WatchSelection) -> impl Stream<Item = WatchReport<K>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    stream::unfold(Watch::new(api, selection), async |mut watch| Some((watch.next().await, watch)))
}

struct Watch<K> {
    api: Api<K>,
    selection: WatchSelection,
    events: BoxStream<'static, Result<Event<K>, WatchError>>,
    /// Whether the list under way is requested as a stream.
    streams: bool,
    /// Whether the server has rejected requests for streams, so that only pages are requested.
    only_pages: bool,
    /// Since when the server has answered only with errors.
    refused_since: Option<Instant>,
    /// Whether a list was completed once.
    has_listed: bool,
    waits: ExponentialBackoff,
    /// The wait before the next request, if any.
    wait: Option<Duration>,
    /// Whether a list is in progress.
    listing: bool,
    failing: bool,
}

impl<K> Watch<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    fn new(api: Api<K>, selection: WatchSelection) -> Self {
        let events = watcher::watcher(api.clone(), selection.config(true)).boxed();
        let waits = selection.waits();
        Self {
            api,
            selection,
            events,
            streams: true,
            only_pages: false,
            refused_since: None,
            has_listed: false,
            waits,
            wait: None,
            listing: true,
            failing: false,
        }
    }

    /// Begins with a list, streamed if `streams` is true.
    fn begin(&mut self, streams: bool) {
        self.streams = streams && !self.only_pages;
        let config = self.selection.config(self.streams);
        self.events = watcher::watcher(self.api.clone(), config).boxed();
        self.listing = true;
    }

    async fn next(&mut self) -> WatchReport<K> {
        loop {
            if let Some(wait) = self.wait.take() {
                sleep(wait).await;
            }
            let next = self.events.next();
            // A resumed watch reports nothing until an object changes. So if no error occurs for a while, the
            // watch is assumed to work.
            let next = if self.failing && !self.listing {
                let Ok(next) = timeout(self.selection.settled(), next).await else {
                    self.recovered();
                    return WatchReport::Resumed;
                };
                next
            } else {
                next.await
            };
            match next {
                Some(Ok(event)) => return self.event(event),
                Some(Err(error)) => {
                    if let Some(failed) = self.failed(error) {
                        return failed;
                    }
                }
                // Cannot happen, because kube's watcher never ends.
                None => self.begin(true),
            }
        }
    }

    fn event(&mut self, mut event: Event<K>) -> WatchReport<K> {
        if let Event::InitApply(object) | Event::Apply(object) | Event::Delete(object) = &mut event
        {
            // These fields record which client wrote which field. Leno does not use them, and they would take most
            // of the memory of a small object.
            object.meta_mut().managed_fields = None;
        }
        self.listing = matches!(event, Event::Init | Event::InitApply(_));
        // The start of a list does not count as success, because the list may still fail.
        if !self.listing {
            self.has_listed = true;
            self.recovered();
        }
        WatchReport::Event(event)
    }

    /// Records that the list is complete, or that the watch works.
    fn recovered(&mut self) {
        self.failing = false;
        self.refused_since = None;
        self.waits = self.selection.waits();
    }

    /// Handles an error. `None` if there is nothing to report.
    fn failed(&mut self, error: WatchError) -> Option<WatchReport<K>> {
        if is_expired(&error) {
            tracing::debug!(%error, "the version of the watch has expired; listing again");
            // After a restart of the server, all of its clients get here at once, and the random wait spreads
            // their requests.
            self.wait = self.waits.next();
            self.refused_since = None;
            self.begin(true);
            return None;
        }
        let refusal = refusal(&error);
        if let (Some(StreamRefusal::Unsupported), true, true) =
            (&refusal, self.streams, self.listing)
        {
            self.only_pages = true;
            self.begin(false);
            return None;
        }
        let is_patient = self.is_patient(refusal.as_ref());
        if self.streams && self.listing && !is_patient {
            self.waits = self.selection.waits();
            self.begin(false);
        }
        self.failing = true;
        let postponed = retry_after(&error).filter(|_| is_patient);
        let postponed = postponed.map(|wait| jittered(wait.min(self.selection.longest_wait)));
        self.wait = postponed.or_else(|| self.waits.next());
        Some(WatchReport::Failed(error))
    }

    /// Records an answer of the server. Returns false if it has given only errors for too long.
    fn is_patient(&mut self, refusal: Option<&StreamRefusal>) -> bool {
        let Some(StreamRefusal::Broken) = refusal else {
            self.refused_since = None;
            return true;
        };
        let patience = if self.has_listed { PATIENCE } else { FIRST_PATIENCE };
        self.refused_since.get_or_insert_with(Instant::now).elapsed() < patience
    }
}

/// Why a server does not stream a list, although it may answer a request for pages.
enum StreamRefusal {
    /// The API server does not support the parameters of a streaming list.
    Unsupported,
    /// The watch has failed, or the API server's cache is not filled yet.
    Broken,
}

fn refusal(error: &WatchError) -> Option<StreamRefusal> {
    let code = match error {
        WatchError::WatchStartFailed(kube::Error::Api(status)) => status.code,
        WatchError::WatchError(status) => status.code,
        _ => return None,
    };
    match code {
        400 | 422 => Some(StreamRefusal::Unsupported),
        429 | 500.. => Some(StreamRefusal::Broken),
        // A request for pages would get the same answer, for example if the right or the kind is missing.
        _ => None,
    }
}

/// How long the server asks to wait before the next request, if it is overloaded.
fn retry_after(error: &WatchError) -> Option<Duration> {
    const TOO_MANY_REQUESTS: u16 = 429;
    let WatchError::WatchStartFailed(kube::Error::Api(status)) = error else { return None };
    let details = status.details.as_ref().filter(|_| status.code == TOO_MANY_REQUESTS)?;
    let seconds = u64::from(details.retry_after_seconds);
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// The wait with a random addition of up to half of it.
fn jittered(wait: Duration) -> Duration {
    // The hasher is seeded randomly by the system. 53 bits are as many as a double can represent exactly.
    let random = (RandomState::new().hash_one(0_u8) >> 11) as f64 / (1_u64 << 53) as f64;
    wait.mul_f64(1.0 + random / 2.0)
}

/// Whether the server no longer has the version from which the watch should continue (410 Gone).
fn is_expired(error: &WatchError) -> bool {
    const GONE: u16 = 410;
    match error {
        WatchError::WatchError(status) => status.code == GONE,
        WatchError::WatchStartFailed(kube::Error::Api(status)) => status.code == GONE,
        _ => false,
    }
}

/// Whether the server answered that this client has no right to the objects.
#[must_use]
pub fn is_refused(error: &WatchError) -> bool {
    const FORBIDDEN: u16 = 403;
    match error {
        WatchError::WatchError(status) => status.code == FORBIDDEN,
        WatchError::InitialListFailed(kube::Error::Api(status))
        | WatchError::WatchStartFailed(kube::Error::Api(status)) => status.code == FORBIDDEN,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
