//! `leno bench run --context`.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use leno_charts::Values;
use leno_suite::cluster::{self, BenchCluster, Mesh};
use leno_suite::measurement::options::Options;
use leno_suite::real_application::images::Images;
use leno_suite::scenario;

use super::output::say_scale;
use leno_console::{Cluster, block_on};

/// The cluster to measure in, instead of the lab on this machine.
#[derive(Debug, Args)]
#[command(next_help_heading = "In a cluster")]
pub(crate) struct ClusterOptions {
    /// Measures in the cluster that the kubeconfig names, instead of on this machine. --kubeconfig and --context
    /// imply it
    #[arg(long)]
    cluster: bool,

    #[command(flatten)]
    which: Cluster,

    /// Image with this version of leno-bench as its entrypoint, which nodes have or can pull. It runs the client, the
    /// suite's own services and the node watchers. Leno's own images come from the same registry with the same tag,
    /// unless --set names others [default: leno-bench:<version>]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// Measures meshes that are already installed, instead of installing and removing them
    #[arg(long)]
    no_install: bool,

    /// Sets one value of Leno's chart for the installation, for example image.registry=registry.example. Can be
    /// repeated
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "no_install")]
    set: Vec<String>,
}

impl ClusterOptions {
    /// Whether the command line names a cluster.
    pub(super) fn is_named(&self) -> bool {
        self.cluster || self.which.is_named()
    }

    /// The first option that was given although it needs a cluster, if no cluster is named.
    pub(super) fn without_one(&self) -> Option<&'static str> {
        let given = [
            (self.image.is_some(), "--image"),
            (self.no_install, "--no-install"),
            (!self.set.is_empty(), "--set"),
        ];
        let given = given.into_iter().find_map(|(given, name)| given.then_some(name));
        given.filter(|_| !self.is_named())
    }

    /// Runs in the cluster; `scale` replaces the scale that follows from the cluster's processors.
    pub(super) fn run(
        &self,
        options: Options,
        meshes: &[String],
        scale: Option<f64>,
    ) -> Result<()> {
        let meshes: Vec<Mesh> =
            meshes.iter().map(|name| Mesh::named(name)).collect::<Result<_, _>>()?;
        is_of_use(&self.set, &meshes)?;
        let real = options.application.as_deref();
        let real = real.map(|file| Images::read(file, &options.scenarios)).transpose()?;
        let image = self.image.clone();
        let image = image.unwrap_or_else(|| format!("leno-bench:{}", env!("CARGO_PKG_VERSION")));
        let install = !self.no_install;
        let told = match install && meshes.iter().any(|mesh| mesh.is_leno()) {
            true => self.told(&image)?,
            false => Vec::new(),
        };
        let values = Values::load(&[], &told);
        let values = values.context("`leno install --show-values` lists the values")?;
        let mut run = cluster::ClusterRun { options, meshes, image, real, values, told, install };
        block_on(async {
            let ground = BenchCluster::open(&self.which.target()).await?;
            run.options.scale = scale.unwrap_or_else(|| scenario::usual_scale(ground.cpus()));
            say_scale(run.options.scale);
            cluster::run(&mut run, ground).await
        })
    }

    /// The values for Leno's installation: strict mTLS, as in the lab, and images from the same registry as the bench's
    /// image.
    fn told(&self, image: &str) -> Result<Vec<String>> {
        let mut told = vec!["mtls=strict".to_owned()];
        match beside(image) {
            Some((registry, tag)) => {
                told.extend([format!("image.registry={registry}"), format!("image.tag={tag}")]);
            }
            None if !self.set.iter().any(|one| one.starts_with("image.")) => bail!(
                "--image {image} has no tag, with which Leno's own images beside it are found: add \
                 a tag, or pass --set image.registry=... --set image.tag=..."
            ),
            None => {}
        }
        told.extend(self.set.clone());
        Ok(told)
    }
}

/// Refuses values that would have no effect.
fn is_of_use(set: &[String], meshes: &[Mesh]) -> Result<()> {
    ensure!(
        set.is_empty() || meshes.iter().any(|mesh| mesh.is_leno()),
        "--set is what Leno is told when it is installed: add leno, leno-node or leno-shared to --mesh, or leave --set out"
    );
    Ok(())
}

/// The registry and the tag of an image; `None` if it has no tag.
fn beside(image: &str) -> Option<(&str, &str)> {
    let (registry, name) = image.rsplit_once('/').unwrap_or(("", image));
    if name.contains('@') {
        return None;
    }
    let (_, tag) = name.split_once(':')?;
    Some((registry, tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_an_installation_are_refused_if_leno_is_not_installed() {
        let set = ["mtls=off".to_owned()];
        is_of_use(&set, &[Mesh::None, Mesh::Leno]).unwrap();
        let refused = is_of_use(&set, &[Mesh::None, Mesh::Linkerd]).unwrap_err().to_string();
        assert!(refused.contains("add leno, leno-node or leno-shared to --mesh"), "{refused}");
    }

    #[test]
    fn images_of_leno_have_the_registry_and_tag_of_the_bench() {
        assert_eq!(
            beside("registry.example:5000/mesh/leno:1"),
            Some(("registry.example:5000/mesh", "1"))
        );
        assert_eq!(beside("leno:0.1.0"), Some(("", "0.1.0")));
        assert_eq!(beside("registry.example:5000/leno"), None);
        assert_eq!(beside("registry.example/leno@sha256:00"), None);
    }
}
