//! Settings of traces: which requests are traced, and where their spans are sent. An example:
//! `observability/collector:4317,sampling=5%,errors,slower=1s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use leno_program::duration;

/// The share of new traces that is sampled by default: 1 %.
const DEFAULT_SAMPLING: Sampling = Sampling { millionths: 10_000 };

/// The settings of a proxy for traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// The namespace of the collector's service.
    pub namespace: Box<str>,
    /// The service's name.
    pub service: Box<str>,
    /// The port of the service.
    pub port: u16,
    /// The protocol of the collector.
    pub protocol: TraceProtocol,
    /// The share of traces that is sampled, of the traces that begin in this proxy.
    pub sampling: Sampling,
    /// Other shares, for requests that follow the route `namespace/name`.
    pub routes: Vec<(Box<str>, Sampling)>,
    /// Whether failed requests have spans even if their trace is not sampled.
    pub keeps_errors: bool,
    /// Requests that take at least this long have spans even if their trace is not sampled.
    pub keeps_slower: Option<Duration>,
}

/// The transports of OTLP, the protocol in which spans are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceProtocol {
    /// Each batch of spans is sent as a gRPC call.
    #[default]
    Grpc,
    /// Each batch of spans is sent as a POST of protobuf to `/v1/traces`.
    Http,
}

/// A share of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    millionths: u32,
}

/// The text is not a valid setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettingsError(String);

impl fmt::Display for TraceSettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: write \
             NAMESPACE/SERVICE:PORT[,protocol=grpc|http][,sampling=PERCENT%][,route=NAMESPACE/NAME:PERCENT%][,errors][,slower=DURATION]",
            self.0
        )
    }
}

impl std::error::Error for TraceSettingsError {}

impl TraceSettings {
    /// Whether requests may have spans although their trace is not sampled.
    #[must_use]
    pub fn keeps_any(&self) -> bool {
        self.keeps_errors || self.keeps_slower.is_some()
    }

    /// The share for a request that follows the route rule with this name, `HTTPRoute shop/cart rule 1`.
    pub(super) fn of_route(&self, route: &str) -> Option<Sampling> {
        let name = route.split(' ').nth(1)?;
        self.routes.iter().find(|(one, _)| &**one == name).map(|(_, sampling)| *sampling)
    }
}

impl Sampling {
    /// Whether a trace is sampled. Proxies with the same share decide in the same way for the same trace.
    #[must_use]
    pub fn takes(self, trace_id: u128) -> bool {
        // Only the last 56 bits are used: W3C Trace Context, level 2, asks every program that begins a trace to make
        // them random.
        let random = trace_id & ((1 << 56) - 1);
        random.wrapping_mul(1_000_000) >> 56 < u128::from(self.millionths)
    }
}

impl FromStr for Sampling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unfit = || format!("{text:?} is not a share such as 5%, from 0% to 100%");
        let percent: f64 =
            text.strip_suffix('%').ok_or_else(unfit)?.parse().map_err(|_| unfit())?;
        if !(0.0..=100.0).contains(&percent) {
            return Err(unfit());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 0 to 1,000,000"
        )]
        let millionths = (percent * 10_000.0).round() as u32;
        Ok(Self { millionths })
    }
}

impl FromStr for TraceSettings {
    type Err = TraceSettingsError;

    fn from_str(text: &str) -> Result<Self, TraceSettingsError> {
        let mut parts = text.split(',').map(str::trim);
        let collector = parts.next().unwrap_or_default();
        let mut settings = collector_of(collector).ok_or_else(|| {
            TraceSettingsError(format!("{collector:?} is not the port of a service"))
        })?;
        for part in parts {
            settings.set(part).map_err(TraceSettingsError)?;
        }
        Ok(settings)
    }
}

impl TraceSettings {
    fn set(&mut self, part: &str) -> Result<(), String> {
        match part.split_once('=') {
            None if part == "errors" => self.keeps_errors = true,
            Some(("protocol", "grpc")) => self.protocol = TraceProtocol::Grpc,
            Some(("protocol", "http")) => self.protocol = TraceProtocol::Http,
            Some(("sampling", share)) => self.sampling = share.parse()?,
            Some(("slower", text)) => self.keeps_slower = Some(duration(text)?),
            Some(("route", text)) => {
                let unfit = || format!("{text:?} is not a route with its share");
                let (route, share) = text.split_once(':').ok_or_else(unfit)?;
                if !matches!(route.split_once('/'), Some((namespace, name)) if !namespace.is_empty() && !name.is_empty())
                {
                    return Err(unfit());
                }
                self.routes.push((route.into(), share.parse()?));
            }
            _ => return Err(format!("{part:?} is unknown")),
        }
        Ok(())
    }
}

/// Parses `observability/collector:4317`.
fn collector_of(text: &str) -> Option<TraceSettings> {
    let (namespace, rest) = text.split_once('/')?;
    let (service, port) = rest.split_once(':')?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let is_label = |name: &str| {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&name.len()) && name.bytes().all(fits)
    };
    (is_label(namespace) && is_label(service)).then(|| TraceSettings {
        namespace: namespace.into(),
        service: service.into(),
        port,
        protocol: TraceProtocol::default(),
        sampling: DEFAULT_SAMPLING,
        routes: Vec::new(),
        keeps_errors: false,
        keeps_slower: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_what_is_unknown_is_refused() {
        let read: TraceSettings =
            "observability/collector:4318,protocol=http,sampling=12.5%,route=shop/cart:100%,errors,slower=500ms"
                .parse()
                .unwrap();
        assert_eq!(
            (&*read.namespace, &*read.service, read.port),
            ("observability", "collector", 4318)
        );
        assert_eq!((read.protocol, read.sampling.millionths), (TraceProtocol::Http, 125_000));
        assert_eq!(read.of_route("HTTPRoute shop/cart rule 1").unwrap().millionths, 1_000_000);
        assert_eq!(read.of_route("HTTPRoute shop/web rule 1"), None);
        assert!(read.keeps_errors && read.keeps_slower == Some(Duration::from_millis(500)));
        let short: TraceSettings = "a/b:1".parse().unwrap();
        assert_eq!(short.sampling, DEFAULT_SAMPLING);
        assert!(!short.keeps_any());
        for wrong in [
            "",
            "collector:4317",
            "a/b",
            "a/b:0",
            "a/b:x",
            "A/b:1",
            "a/b:1,sampling=5",
            "a/b:1,sampling=101%",
            "a/b:1,protocol=udp",
            "a/b:1,route=cart:5%",
            "a/b:1,slower=soon",
            "a/b:1,",
            "a/b:1,samplign=5%",
        ] {
            let error = wrong.parse::<TraceSettings>().unwrap_err().to_string();
            assert!(error.contains("write NAMESPACE/SERVICE:PORT"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_share_is_taken_of_random_traces() {
        let taken = |share: &str| {
            let sampling: Sampling = share.parse().unwrap();
            let mut id = 1_u128;
            let next = |id: &mut u128| {
                *id = id.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).wrapping_add(1);
                *id >> 64
            };
            (0..10_000).filter(|_| sampling.takes(next(&mut id))).count()
        };
        assert_eq!((taken("0%"), taken("100%")), (0, 10_000));
        assert!((300..700).contains(&taken("5%")), "{}", taken("5%"));
    }
}
