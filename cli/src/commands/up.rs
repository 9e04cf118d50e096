//! `leno up`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use leno_capture::Choice;
use leno_local::up::Options;
use leno_types::MtlsMode;

use super::MeshName;

/// Runs the workloads of YAML documents as processes, meshed, until Ctrl-C
///
/// Each instance gets a network namespace, addresses, DNS names, a proxy and an identity. Edits of
/// the files are followed; one with a mistake is refused with its line, and the last good state
/// stays. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno up examples/shop/shop.yaml --mtls strict")]
pub(crate) struct Up {
    /// YAML files or directories; "-" reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    mesh: MeshName,

    /// How traffic is captured: auto, ebpf, nftables or iptables
    #[arg(long, default_value = "auto", value_name = "BACKEND")]
    capture: Choice,

    /// What workloads do with plaintext: strict, permissive or disabled
    #[arg(long, default_value = "permissive", value_name = "MODE")]
    mtls: MtlsMode,

    /// How long certificates hold, for example 60s, 90m or 24h; they are renewed at 70 %
    #[arg(long, default_value = "24h", value_name = "DURATION", value_parser = duration)]
    cert_lifetime: Duration,

    /// How long applications may take to end
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = duration)]
    grace: Duration,

    /// Prints no colours; so does the variable NO_COLOR
    #[arg(long)]
    no_color: bool,

    /// What proxies and the control plane log, for example info or leno_outbound=debug
    #[arg(long, default_value = "warn", env = "LENO_LOG")]
    log: String,

    /// One line for each request, printed by the proxies
    #[arg(long, value_enum, default_value_t = AccessLog::Off)]
    access_log: AccessLog,
}

/// The forms of the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AccessLog {
    /// None
    Off,
    /// key=value pairs
    Text,
    /// A JSON object a line
    Json,
}

pub(crate) fn run(up: &Up) -> Result<bool> {
    let no_colour = up.no_color || std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
    let access_log = match up.access_log {
        AccessLog::Off => "off",
        AccessLog::Text => "text",
        AccessLog::Json => "json",
    };
    let options = Options {
        files: up.files.clone(),
        mesh: up.mesh.name.clone(),
        capture: up.capture,
        mtls: up.mtls,
        cert_lifetime: up.cert_lifetime,
        grace: up.grace,
        colour: !no_colour && std::io::stdout().is_terminal(),
        log: up.log.clone(),
        access_log: access_log.to_owned(),
    };
    leno_local::up::up(&options)?;
    Ok(true)
}

/// `90`, `90s`, `15m`, `24h`, `7d` or `500ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is not a duration: use for example 500ms, 60s, 90m, 24h or 7d");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let count: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let ms = match &text[digits..] {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    count.checked_mul(ms).map(Duration::from_millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("24h"), Ok(Duration::from_secs(86_400)));
        for wrong in ["", "s", "1y", "-1s", "1.5h", "99999999999999999999s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
