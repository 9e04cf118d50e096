//! `--prometheus`: takes figures from a Prometheus server that scrapes the proxies, instead of from the proxies
//! themselves.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use leno_local::layout::Layout;
use leno_local::status::MeshStatus;
use leno_observe::admin::{ANSWER_BOUND, ask};
use leno_observe::metrics::Sample;
use leno_observe::prometheus::{queries, samples};
use leno_observe::stat::{Scrape, StatInstance, StatReport};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{AnyMesh, ChosenMesh};

/// The option that names another source of figures than the mesh itself.
#[derive(Clone, Debug, Args)]
pub(crate) struct Recorded {
    /// Takes the figures from this Prometheus, http://HOST:PORT[/PREFIX], instead of from the proxies and the
    /// history. It must scrape the proxies. It does not check which namespaces you may read
    #[arg(long, value_name = "URL")]
    pub(crate) prometheus: Option<PrometheusUrl>,
}

/// The address of a Prometheus server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrometheusUrl {
    /// Host and port.
    address: String,
    /// The prefix of all paths of its interface, without a slash at the end.
    prefix: String,
}

impl FromStr for PrometheusUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("http://") else {
            return Err("not an http:// address: write http://HOST:PORT; for a Prometheus that \
                        requires TLS or a password, forward a port to it"
                .to_owned());
        };
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() || host.contains(['@', '?', '#']) || path.contains(['?', '#', ' ']) {
            return Err(
                "not the address of a Prometheus: write http://HOST:PORT[/PREFIX]".to_owned()
            );
        }
        // The brackets of an IPv6 address contain colons as well.
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { host.to_owned() } else { format!("{host}:80") };
        let prefix = path.trim_end_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("/{prefix}") };
        Ok(Self { address, prefix })
    }
}

impl PrometheusUrl {
    /// The report on the time up to now. The workloads that exist are read from the mesh itself.
    pub(crate) async fn report(
        &self,
        mesh: &AnyMesh,
        namespace: Option<&str>,
        window: Duration,
    ) -> Result<StatReport> {
        let (name, instances) = instances(mesh, namespace).await?;
        let mut all = Vec::new();
        for query in queries(window, namespace) {
            all.extend(self.ask(query.family, &query.text).await?);
        }
        let report = Scrape::recorded(&name, instances, &all, window);
        Ok(match namespace {
            Some(namespace) => report.of_namespace(namespace),
            None => report,
        })
    }

    async fn ask(&self, family: &str, query: &str) -> Result<Vec<Sample>> {
        let address = &self.address;
        let what = || {
            format!(
                "the Prometheus at {address} does not answer: check that it runs and \
                 that --prometheus has its address"
            )
        };
        let query: String = form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let path = format!("{}/api/v1/query?query={query}", self.prefix);
        let asked = async { ask(TcpStream::connect(address).await?, "GET", &path).await };
        let reply = timeout(ANSWER_BOUND, asked).await.with_context(what)?.with_context(what)?;
        match samples(family, &reply.body) {
            Ok(samples) => Ok(samples),
            Err(reason) => bail!("the Prometheus at {address}: HTTP {}: {reason}", reply.status),
        }
    }
}

/// The name of a mesh, and its instances.
async fn instances(mesh: &AnyMesh, namespace: Option<&str>) -> Result<(String, Vec<StatInstance>)> {
    match mesh.choose()? {
        ChosenMesh::Machine(name) => {
            let layout = Layout::new(&name)?;
            let status = MeshStatus::read(&layout)?;
            if let Some(namespace) = namespace {
                status.has_namespace(namespace)?;
            }
            let reported = leno_local::status::InstanceStatus::reported;
            Ok((name, status.instances.iter().map(reported).collect()))
        }
        ChosenMesh::Cluster(target) => {
            let client = leno_operate::connect(&target).await?;
            let mut all =
                leno_operate::instances(&client, namespace, &mesh.system_namespace).await?;
            all.retain(|one| one.meshed);
            Ok((target.name(), all))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read() {
        let of = |text: &str| text.parse::<PrometheusUrl>().map(|url| (url.address, url.prefix));
        let is = |address: &str, prefix: &str| Ok((address.to_owned(), prefix.to_owned()));
        assert_eq!(of("http://prometheus:9090"), is("prometheus:9090", ""));
        assert_eq!(of("http://[::1]:9090/"), is("[::1]:9090", ""));
        assert_eq!(of("http://prometheus/a/b/"), is("prometheus:80", "/a/b"));
        for wrong in
            ["https://prometheus", "prometheus:9090", "http://", "http://a@b", "http://a/?b"]
        {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
