//! How `leno up` runs the process of a `Workload`: probes, order of start, restarts, limits, files.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::bounded::number;
use crate::check::did_you_mean;

/// The longest time between two probes, in seconds.
pub(crate) const MAX_SECONDS: u32 = 3600;
/// The largest number of consecutive results that a probe may require.
pub(crate) const MAX_THRESHOLD: u32 = 100;

/// Checks an instance, with the fields of a Kubernetes probe. Exactly one of `httpGet`, `grpc`, `tcpSocket` and
/// `exec` is required. A probe bypasses the proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Probes with an HTTP/1.1 request. It succeeds if the status is from 200 to 399.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HttpGet>,
    /// Probes with a call of `grpc.health.v1.Health/Check`. It succeeds if the answer is `SERVING`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcCheck>,
    /// Probes with a TCP connection. It succeeds if the connection is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TcpSocket>,
    /// Probes with a command that runs as the workload. It succeeds if it exits with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecCommand>,
    /// How many seconds after the start of the program the first probe is sent. The default is 0; at most 3600.
    #[serde(
        default,
        skip_serializing_if = "is_zero",
        deserialize_with = "number::<_, 0, MAX_SECONDS>"
    )]
    pub initial_delay_seconds: u32,
    /// How many seconds pass between two probes. The default is 10; from 1 to 3600. Before an instance is ready for
    /// the first time, readiness is probed more often.
    #[serde(default = "default_period", deserialize_with = "number::<_, 1, MAX_SECONDS>")]
    pub period_seconds: u32,
    /// How many seconds a probe may take before it fails. The default is 1; from 1 to 3600.
    #[serde(default = "one", deserialize_with = "number::<_, 1, MAX_SECONDS>")]
    pub timeout_seconds: u32,
    /// How many probes must succeed in a row until the instance counts as good again. The default is 1; from 1 to
    /// 100, and only 1 for liveness.
    #[serde(default = "one", deserialize_with = "number::<_, 1, MAX_THRESHOLD>")]
    pub success_threshold: u32,
    /// How many probes must fail in a row until the instance counts as failed. The default is 3; from 1 to 100.
    #[serde(default = "default_failures", deserialize_with = "number::<_, 1, MAX_THRESHOLD>")]
    pub failure_threshold: u32,
}

/// An HTTP/1.1 request without TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpGet {
    /// The path of the request with its query, such as `/ready`. The default is `/`.
    #[serde(default = "root_path")]
    pub path: String,
    /// The port, as a number from 1 to 65535 or as the name of a port of the workload.
    pub port: PortRef,
    /// The scheme. Only `HTTP` is accepted; use `exec` with a command such as `curl -k` for HTTPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<Scheme>,
    /// Additional headers of the request, such as `Host`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub http_headers: Vec<HttpHeader>,
}

/// The scheme of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Scheme {
    /// Without TLS.
    #[serde(rename = "HTTP")]
    Http,
    /// With TLS. It is parsed so that the error can name the remedy.
    #[serde(rename = "HTTPS")]
    Https,
}

/// A header of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HttpHeader {
    /// The name of the header.
    pub name: String,
    /// The value of the header, without line breaks.
    pub value: String,
}

/// A call of the health service of gRPC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GrpcCheck {
    /// The port, as a number from 1 to 65535 or as the name of a port of the workload.
    pub port: PortRef,
    /// The gRPC service whose health is requested. By default the health of the whole server is requested.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
}

/// A TCP connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TcpSocket {
    /// The port, as a number from 1 to 65535 or as the name of a port of the workload.
    pub port: PortRef,
}

/// A command that runs beside the program or before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExecCommand {
    /// The program and its arguments. They are not interpreted by a shell.
    pub command: Vec<String>,
}

/// What must have happened to another workload before an instance starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Dependency {
    /// The state that all instances of the other workload must have reached: `started` (its programs run), `ready`
    /// (the default: they get traffic) or `completed` (they have exited with 0). A completed instance counts as
    /// ready.
    #[serde(default)]
    pub condition: DependencyCondition,
}

/// The state that a workload must have reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DependencyCondition {
    /// Its programs have been started.
    Started,
    /// Its instances get traffic.
    #[default]
    Ready,
    /// Its programs have exited with 0.
    Completed,
}

/// When a program that has exited is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// Always.
    #[default]
    Always,
    /// Unless it exited with 0.
    OnFailure,
    /// Never.
    Never,
}

/// Limits on the resources of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessResources {
    /// The limits, for all processes of one instance together without its proxy. A resource that is left out is not
    /// limited.
    #[serde(default)]
    pub limits: ResourceLimits,
}

/// Limits for all processes of one instance together, without its proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ResourceLimits {
    /// How much CPU time the instance may use, in CPUs: `500m` or `0.5` is half of one CPU. At least 10m. At the
    /// limit it is slowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuQuantity>,
    /// How much memory the instance may use, in bytes or with a unit, such as `256Mi`. At least 1Mi. A process that
    /// exceeds the limit is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryQuantity>,
}

/// An amount of CPU time, in thousandths of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuantity(pub u32);

/// An amount of memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryQuantity(pub u64);

/// A file or directory of this machine that an instance sees at another path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// The file or directory of this machine, which must exist. A relative path starts at the document's directory.
    pub path: String,
    /// The path at which the instance sees it: an absolute path that exists, and that does not hide `/proc`, `/sys`
    /// or files of Leno in `/etc`.
    pub mount_path: String,
    /// Whether the instance must not write to it. The default is false. It does not apply to mounts below `path`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// A user or a group: a name or a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account(pub String);

/// A port: a number, or the name of a port of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortRef {
    /// A number.
    Number(u16),
    /// A name.
    Name(String),
}

/// The name of a signal, such as `SIGQUIT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopSignal(pub &'static str);

/// Signals with which an application may be asked to end. SIGKILL and SIGSTOP are not among them, because an
/// application cannot handle them.
const SIGNALS: [(&str, u64); 10] = [
    ("SIGHUP", 1),
    ("SIGINT", 2),
    ("SIGQUIT", 3),
    ("SIGABRT", 6),
    ("SIGUSR1", 10),
    ("SIGUSR2", 12),
    ("SIGALRM", 14),
    ("SIGTERM", 15),
    ("SIGWINCH", 28),
    ("SIGPWR", 30),
];

/// A value that may be written as a number or as a text.
trait Scalar: Sized {
    const EXPECTED: &'static str;

    fn of_text(text: &str) -> Result<Self, String>;

    fn of_number(number: u64) -> Result<Self, String> {
        Self::of_text(&number.to_string())
    }
}

struct ScalarVisitor<T>(std::marker::PhantomData<T>);

impl<T: Scalar> de::Visitor<'_> for ScalarVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        T::of_number(number).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        T::of_text(&number.to_string()).map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        T::of_text(&number.to_string()).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::of_text(text).map_err(E::custom)
    }
}

impl Scalar for CpuQuantity {
    const EXPECTED: &'static str = "an amount of CPU, such as 500m or 2";

    fn of_text(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not an amount of CPU: write 500m, 0.5 or 2");
        let millis = match text.strip_suffix('m') {
            Some(millis) => decimal(millis, 1).ok_or_else(wrong)?,
            None => decimal(text, 1000).ok_or_else(wrong)?,
        };
        // The kernel grants at least 1 ms in each 100 ms.
        match u32::try_from(millis) {
            Ok(millis) if millis >= 10 => Ok(Self(millis)),
            _ => Err(format!("{text:?} is less than 10m, or more than any machine has")),
        }
    }
}

impl Scalar for MemoryQuantity {
    const EXPECTED: &'static str = "an amount of memory, such as 256Mi";

    fn of_text(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not an amount of memory: write 256Mi, 1Gi or bytes");
        let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
        let (number, unit) = text.split_at(digits);
        let factor = match unit {
            "" => 1,
            "k" => 1_000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "T" => 1_000_000_000_000,
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            "Ti" => 1 << 40,
            _ => return Err(wrong()),
        };
        match decimal(number, factor).ok_or_else(wrong)? {
            // No program can start with less.
            bytes @ 0..=1_048_575 => Err(format!("{text:?} ({bytes} bytes) is less than 1Mi")),
            bytes => Ok(Self(bytes)),
        }
    }
}

/// `factor` times a number with an optional fraction, without rounding to more; `None` if the text is not such a number
/// or the result is too large.
fn decimal(text: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str, most| text.len() <= most && text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole, 18) || !digits(fraction, 15) || text.ends_with('.') {
        return None;
    }
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let sum = whole.parse::<u128>().ok()? * scale + part;
    u64::try_from(sum.checked_mul(factor.into())? / scale).ok()
}

impl Scalar for Account {
    const EXPECTED: &'static str = "a name or a number";

    fn of_text(text: &str) -> Result<Self, String> {
        if text.contains(':') {
            return Err(format!("{text:?} is two names: write user and group each in its field"));
        }
        let is_name = |text: &str| !text.is_empty() && !text.contains(['\0', '/', ' ', '\n']);
        match is_name(text) && !text.starts_with('-') {
            true => Ok(Self(text.to_owned())),
            false => Err(format!("{text:?} is neither a name nor a number")),
        }
    }
}

impl Scalar for PortRef {
    const EXPECTED: &'static str = "a port, or the name of one";

    fn of_number(number: u64) -> Result<Self, String> {
        match u16::try_from(number) {
            Ok(port) if port > 0 => Ok(Self::Number(port)),
            _ => Err(format!("{number} is not a port: use 1 to 65535")),
        }
    }

    fn of_text(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number) => Self::of_number(number),
            Err(_) if text.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte)) => {
                Err(format!("{text:?} is not a port: use 1 to 65535"))
            }
            Err(_) => Ok(Self::Name(text.to_owned())),
        }
    }
}

impl Scalar for StopSignal {
    const EXPECTED: &'static str = "a signal, such as SIGQUIT";

    fn of_text(text: &str) -> Result<Self, String> {
        let upper = text.to_uppercase();
        let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
        let known =
            SIGNALS.iter().find(|(name, number)| *name == full || number.to_string() == text);
        known.map(|(name, _)| Self(name)).ok_or_else(|| {
            let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
            let meant = did_you_mean(&full, names.iter().copied());
            format!("{text:?} is not one of {}{meant}", names.join(", "))
        })
    }
}

impl fmt::Display for CpuQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 1000 {
            0 => write!(f, "{}", self.0 / 1000),
            _ => write!(f, "{}m", self.0),
        }
    }
}

impl fmt::Display for MemoryQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
        match units.into_iter().find(|(_, bits)| self.0.trailing_zeros() >= *bits) {
            Some((unit, bits)) => write!(f, "{}{unit}", self.0 >> bits),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Display for DependencyCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Started => "started",
            Self::Ready => "ready",
            Self::Completed => "completed",
        })
    }
}

/// Types that are written as a number or as a text.
macro_rules! scalars {
    ($($type:ty,)*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(ScalarVisitor(std::marker::PhantomData))
            }
        }

        #[cfg(test)]
        impl schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "x-kubernetes-int-or-string": true })
            }
        }
    )*};
}

scalars! { CpuQuantity, MemoryQuantity, Account, PortRef, StopSignal, }

/// Types that are written as their `Display`.
macro_rules! texts {
    ($($type:ty,)*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

texts! { CpuQuantity, MemoryQuantity, Account, StopSignal, }

impl Serialize for PortRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u16(*number),
            Self::Name(name) => serializer.serialize_str(name),
        }
    }
}

impl ProcessResources {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl RestartPolicy {
    /// Whether this is the default of documents.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

fn root_path() -> String {
    "/".to_owned()
}

// The defaults of Kubernetes.
fn default_period() -> u32 {
    10
}

fn default_failures() -> u32 {
    3
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_reads_them() {
        for (text, millis) in [("500m", 500), ("0.5", 500), ("2", 2000), ("1.25", 1250)] {
            assert_eq!(CpuQuantity::of_text(text), Ok(CpuQuantity(millis)), "{text}");
        }
        for (text, bytes) in [("256Mi", 256 << 20), ("1.5Gi", 3 << 29), ("2000000", 2_000_000)] {
            assert_eq!(MemoryQuantity::of_text(text), Ok(MemoryQuantity(bytes)), "{text}");
        }
        for text in ["", "m", "5x", "-1", "1.", ".5", "9", "0.001", "1e3"] {
            assert!(MemoryQuantity::of_text(text).is_err(), "{text}");
        }
        assert!(CpuQuantity::of_text("9m").is_err());
    }

    #[test]
    fn amounts_are_written_so_that_they_are_read_again() {
        for millis in [10, 500, 1000, 1250] {
            assert_eq!(
                CpuQuantity::of_text(&CpuQuantity(millis).to_string()),
                Ok(CpuQuantity(millis))
            );
        }
        for bytes in [1 << 20, 3 << 29, 1_048_577, 5 << 40] {
            assert_eq!(
                MemoryQuantity::of_text(&MemoryQuantity(bytes).to_string()),
                Ok(MemoryQuantity(bytes))
            );
        }
    }

    #[test]
    fn signals_have_names_with_and_without_their_beginning_and_numbers() {
        for text in ["SIGQUIT", "quit", "3"] {
            assert_eq!(StopSignal::of_text(text), Ok(StopSignal("SIGQUIT")));
        }
        let refused = StopSignal::of_text("SIGTREM").unwrap_err();
        assert!(refused.ends_with("SIGPWR: did you mean SIGTERM?"), "{refused}");
    }
}
