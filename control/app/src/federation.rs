//! The other trust domains whose workloads are accepted as clients, and the sources of their trust bundles.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use leno_identity::Authority;
use leno_keys::{DocumentStore, WebAuthorities};
use leno_spiffe::{Bundle, MAX_BUNDLE_BYTES};
use leno_types::TrustDomain;
use leno_wire::trust::MAX_FEDERATED;

use crate::admin::Render;
use crate::workload_bundles;

mod endpoint;

use endpoint::{BundleFollower, BundleLocation};

/// How often a file is checked for changes. Bundles are published long before their roots are used, so this need
/// not be fast.
const LOOK: Duration = Duration::from_secs(2);
/// The text in place of a file or URL that names the Workload API as the source.
const WORKLOAD_API: &str = "workload-api";

/// A trust domain and the source of its bundle, written as `DOMAIN=SOURCE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Federation {
    domain: TrustDomain,
    source: BundleSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum BundleSource {
    File(PathBuf),
    Endpoint(BundleLocation),
    WorkloadApi,
}

impl FromStr for Federation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            || format!("{text:?} is not DOMAIN=FILE, DOMAIN=https://URL or DOMAIN={WORKLOAD_API}");
        let (domain, source) = text.split_once('=').ok_or_else(form)?;
        let domain = TrustDomain::new(domain).map_err(|error| error.to_string())?;
        let source = match source {
            "" => return Err(form()),
            WORKLOAD_API => BundleSource::WorkloadApi,
            url if url.starts_with("https://") => BundleSource::Endpoint(url.parse()?),
            file => BundleSource::File(file.into()),
        };
        Ok(Self { domain, source })
    }
}

/// Checks the list: it is not too long, each trust domain occurs once and is not this mesh's own, and each source is
/// usable.
pub(crate) fn check(
    all: &[Federation],
    own: &TrustDomain,
    has_workload_api: bool,
) -> anyhow::Result<()> {
    ensure!(
        all.len() <= MAX_FEDERATED,
        "at most {MAX_FEDERATED} other trust domains can be federated"
    );
    for (index, one) in all.iter().enumerate() {
        let Federation { domain, source } = one;
        ensure!(domain != own, "{domain} is the trust domain of this mesh itself: remove it");
        let is_again = all.iter().take(index).any(|earlier| earlier.domain == *domain);
        ensure!(!is_again, "{domain} is given twice: keep one");
        let is_there = has_workload_api || *source != BundleSource::WorkloadApi;
        ensure!(is_there, "{domain}={WORKLOAD_API} needs --spiffe-endpoint-socket");
        if let BundleSource::Endpoint(endpoint) = source {
            let is_known =
                |other: &TrustDomain| other == own || all.iter().any(|one| one.domain == *other);
            endpoint.check(domain, is_known)?;
        }
    }
    Ok(())
}

/// The trust domains whose bundles come from the Workload API.
pub(crate) fn of_workload_api(all: &[Federation]) -> Vec<TrustDomain> {
    let of_api = all.iter().filter(|one| one.source == BundleSource::WorkloadApi);
    of_api.map(|one| one.domain.clone()).collect()
}

/// Whether a bundle may be stored under this name: that of a trust domain, with the ending `.json`.
pub(crate) fn is_document(name: &str) -> bool {
    name.strip_suffix(".json").is_some_and(|domain| TrustDomain::new(domain).is_ok())
}

/// Reads all files, and follows them and the endpoints until the process ends. Until a valid bundle of a domain is
/// known, its clients are not accepted; everything else works. A later invalid bundle does not replace a valid one.
/// Bundles from endpoints are kept in `store` for the next start. Returns a function that appends the metrics.
pub(crate) fn begin(
    all: &[Federation],
    (authority, authorities): (&Arc<Authority>, &Arc<WebAuthorities>),
    store: &DocumentStore,
) -> anyhow::Result<Render> {
    let mut counts = Vec::new();
    let mut kept = BTreeSet::new();
    for Federation { domain, source } in all {
        match source {
            BundleSource::File(file) => {
                kept.extend(name(file));
                follow_file(domain.clone(), file.clone(), authority);
            }
            BundleSource::Endpoint(endpoint) => {
                kept.insert(endpoint::document(domain));
                kept.extend(endpoint.given().and_then(name));
                let of = (domain.clone(), endpoint.clone());
                let with = (Arc::clone(authority), Arc::clone(authorities));
                let follower = BundleFollower::new(of, with, store.clone())?;
                counts.push(follower.counts());
                tokio::spawn(follower.run());
            }
            BundleSource::WorkloadApi => {}
        }
    }
    store.retain(|name| kept.contains(name));
    Ok(Box::new(move |text| endpoint::render(&counts, text)))
}

/// The name of a file that the operator has given. The file may be in the directory of the store, which must then keep
/// it.
fn name(file: &Path) -> Option<String> {
    Some(file.file_name()?.to_str()?.to_owned())
}

fn follow_file(domain: TrustDomain, file: PathBuf, authority: &Arc<Authority>) {
    let mut said = String::new();
    take(&domain, &file, authority, &mut said);
    let authority = Arc::clone(authority);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK).await;
            take(&domain, &file, &authority, &mut said);
        }
    });
}

/// Uses the content of a file if it is valid. Otherwise the last valid content stays in use. `said` is the last
/// logged error.
fn take(domain: &TrustDomain, file: &Path, authority: &Authority, said: &mut String) {
    match read(file) {
        Ok(bundle) => {
            authority.federate(domain, bundle.roots_der);
            said.clear();
        }
        Err(error) => {
            let error = format!("{error:#}");
            if error != *said {
                tracing::error!(%domain, error, "cannot read a trust bundle; the last one stays in \
                                                 effect, if there is one");
                *said = error;
            }
        }
    }
}

fn read(file: &Path) -> anyhow::Result<Bundle> {
    parsed(&text(file)?, file)
}

/// The text of a file, which must have at most [`MAX_BUNDLE_BYTES`].
fn text(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let opened = File::open(file).with_context(|| format!("opening {}", file.display()))?;
    let read = opened.take(MAX_BUNDLE_BYTES as u64 + 1).read_to_string(&mut text);
    let bytes = read.with_context(|| format!("reading {}", file.display()))?;
    let most = MAX_BUNDLE_BYTES;
    ensure!(bytes <= most, "{} is larger than {most} bytes", file.display());
    Ok(text)
}

/// Parses the bundle in a text; `from` is its source, for errors.
fn parsed(text: &str, from: &Path) -> anyhow::Result<Bundle> {
    let bundle =
        Bundle::read(text).with_context(|| format!("{} is not a trust bundle", from.display()))?;
    workload_bundles::check(&bundle.roots_der).with_context(|| from.display().to_string())?;
    Ok(bundle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(all: &[&str], has_workload_api: bool) -> Result<Vec<TrustDomain>, String> {
        let all = all.iter().map(|one| one.parse()).collect::<Result<Vec<Federation>, _>>()?;
        let checked = check(&all, &TrustDomain::default(), has_workload_api);
        checked.map_err(|error| error.to_string())?;
        Ok(of_workload_api(&all))
    }

    #[test]
    fn each_other_trust_domain_has_one_source() {
        let both = ["a.example=/etc/a.json", "b.example=workload-api"];
        assert_eq!(checked(&both, true), Ok(vec![TrustDomain::new("b.example").unwrap()]));
        assert!(checked(&both, false).unwrap_err().contains("--spiffe-endpoint-socket"));
        let twice = ["a.example=/a", "a.example=/b"];
        assert!(checked(&twice, false).unwrap_err().contains("twice"));
        assert!(checked(&["cluster.local=/a"], false).unwrap_err().contains("of this mesh"));
        for wrong in ["", "a.example", "a.example=", "A=/a", "a.example=https://"] {
            assert!(checked(&[wrong], false).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_endpoint_is_authenticated_by_its_name_or_by_a_spiffe_id_whose_roots_are_known() {
        let endpoint = |more: &str| format!("a.example=https://bundle.a.example:8443/b.json{more}");
        let of = |all: &[&str]| checked(all, false).map(drop);
        assert_eq!(of(&[&endpoint("")]), Ok(()));
        let own = endpoint(";spiffe-id=spiffe://a.example/server;bundle=/etc/a.json");
        assert_eq!(of(&[&own]), Ok(()));
        let without = endpoint(";spiffe-id=spiffe://a.example/server");
        assert!(of(&[&without]).unwrap_err().contains(";bundle=FILE"));
        let of_another = endpoint(";spiffe-id=spiffe://b.example/server");
        assert!(of(&[&of_another]).unwrap_err().contains("b.example"));
        assert_eq!(of(&[&of_another, "b.example=/etc/b.json"]), Ok(()));
        assert_eq!(of(&[&endpoint(";spiffe-id=spiffe://cluster.local/server")]), Ok(()));
        for wrong in [";spiffe-id=a.example", ";bundle=/a", ";other=1", ";spiffe-id=spiffe://A/b"] {
            assert!(of(&[&endpoint(wrong)]).is_err(), "{wrong}");
        }
        assert!(of(&["a.example=https://user@a.example/"]).is_err());
    }
}
