//! Implements the commands `leno inject` and `leno uninject`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use leno_admission::{
    ContainerShape, DEFAULT_CONTROL, InjectionOutcome, InjectionReport, InjectionSettings,
    JsonValue, ManifestFormat, PodContext, inject_document, rewrite, uninject_document,
};
use leno_charts::NAMESPACE;
use leno_console::note;
use leno_resources::CAPTURE_ANNOTATION;

use super::{Cluster, block_on, print_raw};

/// Longest text that is read, in bytes; the manifests of a large cluster take a few MiB.
const MAX_BYTES: u64 = 32 << 20;

/// Adds the proxy to the pods of a manifest, and prints the manifest
///
/// Accepts every kind that creates pods (Pod, Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController,
/// Job, CronJob) and lists of them, one or several documents, in YAML or JSON. Prints everything else unchanged. A
/// changed document keeps the order of its fields and loses its comments. Reports the result for each document on
/// standard error. Exits 1 if a proxy could not be injected where it should be.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leno inject shop.yaml | kubectl apply -f -\n  \
                  kubectl get -n shop deploy -o yaml | leno inject - | kubectl apply -f -\n  \
                  leno inject --cluster shop.yaml     # as the cluster's own controller would\n  \
                  leno inject --capture nftables -o json shop.yaml")]
pub(crate) struct Inject {
    #[command(flatten)]
    text: Text,

    /// Reads the settings that are not given here from the cluster that the kubeconfig names. Without it, no cluster
    /// is queried
    #[arg(long)]
    cluster: bool,

    #[command(flatten)]
    which: Cluster,

    /// Namespace of objects that name none, as for `kubectl apply -n` [default: with --cluster that of the context,
    /// otherwise none]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Namespace of the control plane
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    system_namespace: String,

    /// Image of the proxy [default: leno-proxy of this version]
    #[arg(long, value_name = "IMAGE")]
    proxy_image: Option<String>,

    /// Trust domain of the mesh [default: cluster.local]
    #[arg(long, value_name = "NAME")]
    trust_domain: Option<String>,

    /// Address of the control plane [default: https://leno-controller.leno-system.svc:15010]
    #[arg(long, value_name = "URL")]
    control: Option<String>,

    /// How the pod's connections are steered into the proxy, unless the pod sets leno.dev/capture
    #[arg(long, value_enum)]
    capture: Option<Capture>,

    /// How long containers without a preStop hook wait before SIGTERM, in seconds. 0: no wait, as before Kubernetes
    /// 1.30 [default: 1]
    #[arg(long, value_name = "SECONDS")]
    pre_stop_sleep: Option<u32>,

    /// Kind of container in which the proxy runs [default: sidecar]
    #[arg(long, value_enum)]
    shape: Option<ShapeName>,
}

/// Removes the proxy from the pods of a manifest, and prints the manifest
///
/// The inverse of `leno inject`, for the same kinds and formats. Everything that injection did not change is printed
/// as it was.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leno uninject shop.yaml | kubectl apply -f -\n  \
                  kubectl get -n shop deploy -o yaml | leno uninject - | kubectl apply -f -")]
pub(crate) struct Uninject {
    #[command(flatten)]
    text: Text,
}

#[derive(Debug, Args)]
struct Text {
    /// The manifest; "-" reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The output format; without it, that of the input
    #[arg(short, long, value_enum)]
    output: Option<Form>,
}

/// Forms of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Yaml,
    Json,
}

/// The values that `leno.dev/capture` can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Capture {
    Auto,
    Ebpf,
    Nftables,
    Iptables,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ShapeName {
    /// A native sidecar, of Kubernetes 1.29 and later
    Sidecar,
    /// An ordinary container, first of all
    Container,
}

pub(crate) fn inject(inject: &Inject) -> Result<bool> {
    let text = inject.text.read()?;
    let (settings, mut namespaces) = inject.told()?;
    namespaces.read(&text);
    let enclosing = |namespace: Option<&str>| namespaces.enclosing(namespace);
    inject.text.run(&text, "injected", |document| inject_document(document, &settings, enclosing))
}

pub(crate) fn uninject(uninject: &Uninject) -> Result<bool> {
    let text = uninject.text.read()?;
    uninject.text.run(&text, "uninjected", uninject_document)
}

/// The settings that apply if a pod sets nothing itself.
#[derive(Default)]
struct Namespaces {
    /// How traffic is captured in all namespaces.
    capture: Option<String>,
    /// Leno's settings of namespaces, both in the cluster and in the manifest.
    settings: BTreeMap<String, BTreeMap<String, String>>,
    /// The namespace of objects that do not name one.
    default_namespace: Option<String>,
}

impl Namespaces {
    fn enclosing(&self, namespace: Option<&str>) -> PodContext {
        let namespace = namespace.or(self.default_namespace.as_deref());
        let settings = namespace.and_then(|name| self.settings.get(name));
        let mut enclosing = settings.map(PodContext::of_namespace).unwrap_or_default();
        if let Some(capture) = &self.capture {
            enclosing.agent.insert(CAPTURE_ANNOTATION, capture.clone());
        }
        enclosing
    }

    /// Reads the settings of namespaces in a manifest, which take precedence over those of the cluster. Errors in
    /// the text are ignored here, because they are reported when the text is rewritten.
    fn read(&mut self, text: &str) {
        let _said_later = rewrite(text, None, |document| {
            for (name, settings) in of_namespace(document)
                .into_iter()
                .chain(document.list("items").iter().filter_map(of_namespace))
            {
                self.settings.entry(name).or_default().extend(settings);
            }
            false
        });
    }
}

/// The labels and annotations of an object in a manifest, if it is a namespace. A label wins over an annotation.
fn of_namespace(object: &JsonValue) -> Option<(String, BTreeMap<String, String>)> {
    object.get("kind").filter(|kind| kind.text() == Some("Namespace"))?;
    let name = object.at(&["metadata", "name"])?.text()?;
    let fields = |map| object.at(&["metadata", map]).map_or(&[][..], JsonValue::fields);
    let text = |(key, value): &(String, JsonValue)| Some((key.clone(), value.text()?.to_owned()));
    let settings = fields("annotations").iter().chain(fields("labels")).filter_map(text);
    Some((name.to_owned(), settings.collect()))
}

impl Inject {
    /// The settings: the given options, then the values of the cluster, then the defaults.
    fn told(&self) -> Result<(InjectionSettings, Namespaces)> {
        let (mut settings, mut namespaces) = match self.cluster || self.which.is_named() {
            true => self.of_cluster()?,
            false => Default::default(),
        };
        if self.namespace.is_some() {
            namespaces.default_namespace.clone_from(&self.namespace);
        }
        namespaces.capture =
            self.capture.and_then(|one| Some(one.to_possible_value()?.get_name().to_owned()));
        if let Some(image) = &self.proxy_image {
            settings.image.clone_from(image);
        }
        if let Some(domain) = &self.trust_domain {
            settings.trust_domain.clone_from(domain);
        }
        if let Some(control) = &self.control {
            settings.control.clone_from(control);
        }
        if let Some(seconds) = self.pre_stop_sleep {
            settings.pre_stop_sleep = seconds;
        }
        if let Some(shape) = self.shape {
            settings.shape = match shape {
                ShapeName::Sidecar => ContainerShape::Sidecar,
                ShapeName::Container => ContainerShape::Container,
            };
        }
        Ok((settings, namespaces))
    }

    fn of_cluster(&self) -> Result<(InjectionSettings, Namespaces)> {
        let system = &self.system_namespace;
        let (there, namespaces) = block_on(async {
            let client = leno_operate::connect(&self.which.target()).await?;
            let there = leno_operate::installed(&client, system).await?;
            let settings = match (leno_operate::namespace_settings(&client).await, self.capture) {
                (Err(error), Some(_)) if error.is_forbidden() => BTreeMap::new(),
                (read, _) => {
                    read.context("cannot read the capture settings of namespaces: pass --capture")?
                }
            };
            let default_namespace = Some(client.default_namespace().to_owned());
            Ok((there, Namespaces { capture: None, settings, default_namespace }))
        })?;
        let Some(there) = there else {
            bail!(
                "Leno is not installed in namespace {system}: pass its namespace with \
                 --system-namespace"
            );
        };
        let told = there.told()?;
        let policy = serde_json::to_value(told.image.pull_policy)?;
        let workload_api = told.identity.workload_api.setting();
        let pod_certificates = if told.identity.pod_certificates {
            let lifetime = leno_console::duration(&told.controller.cert_lifetime);
            let lifetime =
                lifetime.map_err(anyhow::Error::msg).context("controller.certLifetime")?;
            Some(leno_admission::pod_certificate_seconds(lifetime))
        } else {
            None
        };
        let settings = InjectionSettings {
            image: told.image_named("leno-proxy", &there.version),
            pull_policy: policy.as_str().map(str::to_owned),
            pull_secrets: told.image.pull_secrets.into_iter().map(|one| one.name).collect(),
            trust_domain: told.trust_domain,
            control: DEFAULT_CONTROL.replace(NAMESPACE, system),
            log: Some(told.proxy.log),
            traces: leno_admission::traces(&told.proxy.traces)?,
            access_log: leno_admission::access_log(&told.proxy.access_log)?,
            metrics_compat: leno_admission::metrics_compat(&told.proxy.metrics_compat)
                .map_err(anyhow::Error::msg)?,
            tap_bodies: told.proxy.tap_bodies,
            scrape_from: leno_admission::scrape_from(&told.proxy.scrape_from)?,
            tls_profile: match told.tls_profile {
                leno_charts::TlsProfile::Default => None,
                leno_charts::TlsProfile::Fips => Some("fips".to_owned()),
            },
            workload_api: workload_api.map(|text| text.parse()).transpose()?,
            pod_certificates,
            shape: match told.proxy.shape {
                leno_charts::Shape::Sidecar => ContainerShape::Sidecar,
                leno_charts::Shape::Container => ContainerShape::Container,
            },
            pre_stop_sleep: told.proxy.pre_stop_sleep,
            ..InjectionSettings::default()
        };
        Ok((settings, namespaces))
    }
}

impl Text {
    /// Rewrites the manifest. Returns whether everything succeeded.
    fn run(
        &self,
        text: &str,
        done: &str,
        work: impl Fn(&mut JsonValue) -> Vec<InjectionReport>,
    ) -> Result<bool> {
        let name = self.name();
        let wanted = self.output.map(|form| match form {
            Form::Yaml => ManifestFormat::Yaml,
            Form::Json => ManifestFormat::Json,
        });
        let mut reports = Vec::new();
        let rewritten = rewrite(text, wanted, |document| {
            let new = work(document);
            let changed = new.iter().any(|report| report.said == InjectionOutcome::Changed);
            reports.extend(new);
            changed
        });
        let rewritten = rewritten.with_context(|| name.clone().into_owned())?;
        print_raw(&rewritten)?;
        if reports.is_empty() {
            note!("{name}: unchanged, because no object in it creates pods");
        }
        for InjectionReport { object, said } in &reports {
            match said {
                InjectionOutcome::Changed => note!("{object}: {done}"),
                InjectionOutcome::Skipped(reason) => note!("{object}: unchanged: {reason}"),
                InjectionOutcome::Failed(reason) => note!("{object}: not {done}: {reason}"),
            }
        }
        Ok(!reports.iter().any(|report| matches!(report.said, InjectionOutcome::Failed(_))))
    }

    /// The name of the manifest in messages.
    fn name(&self) -> Cow<'_, str> {
        if self.file == Path::new("-") {
            "standard input".into()
        } else {
            self.file.to_string_lossy()
        }
    }

    fn read(&self) -> Result<String> {
        self.read_bounded().with_context(|| format!("reading {}", self.name()))
    }

    fn read_bounded(&self) -> Result<String> {
        let mut text = String::new();
        let limit = MAX_BYTES + 1;
        let length = if self.file == Path::new("-") {
            io::stdin().lock().take(limit).read_to_string(&mut text)?
        } else {
            File::open(&self.file)?.take(limit).read_to_string(&mut text)?
        };
        if length as u64 > MAX_BYTES {
            bail!("it is larger than {MAX_BYTES} bytes: split it into several files");
        }
        Ok(text)
    }
}
