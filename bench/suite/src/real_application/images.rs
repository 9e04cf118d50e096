//! The file of images: the image of each service of a scenario in a cluster.

use std::collections::BTreeMap;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::application::PORT;
use crate::files;
use crate::scenario::{self, Scenario};

/// The highest user ID that Kubernetes allows for a container.
const MAX_USER: u32 = i32::MAX as u32;

pub(super) const FILES: &[(&str, &str)] = &[
    ("faces", include_str!("../../data/images/faces.yaml")),
    ("teastore", include_str!("../../data/images/teastore.yaml")),
];

/// A real application: an image for each service of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Images {
    /// The scenario to which these services belong.
    pub scenario: String,
    /// The images by service name. A Service with the same name is created in the namespace of the bench.
    pub services: BTreeMap<String, Image>,
}

/// The container of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// The image, as it is written in a pod.
    pub image: String,
    /// The command in place of the image's entrypoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The arguments in place of the image's arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The container's environment. Records contain it, too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The port on which the container listens; 8080 by default.
    #[serde(default = "own_port")]
    pub port: NonZeroU16,
    /// The port of the Service; 8080 by default.
    #[serde(default = "own_port")]
    pub service_port: NonZeroU16,
    /// The protocol, if it differs from that of the suite's own service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<AppProtocol>,
    /// The container's privileges; restricted by default.
    #[serde(default)]
    pub privileges: Privileges,
    /// The user ID, 1 to 2147483647; 65532 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<NonZeroU32>,
}

/// The protocol of a service, as in `appProtocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AppProtocol {
    /// HTTP/1.1.
    Http,
    /// gRPC.
    Grpc,
    /// Opaque bytes: a mesh must not detect a protocol.
    Tcp,
}

/// The privileges of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Privileges {
    /// The privileges that Pod Security `restricted` permits, with a read-only root file system.
    #[default]
    Restricted,
    /// The privileges that the image asks for: its user, which may be root, the default capabilities, and a writable
    /// file system.
    Image,
}

/// The file of images for a scenario, with the published images, which the user can edit.
///
/// # Errors
/// If the scenario has no real application; the error lists the scenarios that have one.
pub fn printed(scenario: &str) -> Result<&'static str> {
    let found = FILES.iter().find(|(name, _)| *name == scenario);
    found.map(|(_, text)| *text).ok_or_else(|| none(scenario))
}

/// Refuses a scenario that does not model a real application.
pub(super) fn is_one(scenario: &Scenario) -> Result<()> {
    if scenario.is_an_application() { Ok(()) } else { Err(none(&scenario.name)) }
}

fn none(scenario: &str) -> anyhow::Error {
    if let Err(unknown) = scenario::find(scenario) {
        return unknown;
    }
    let known: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
    anyhow!(
        "{scenario} has no real application, only {} have: remove --application",
        known.join(" and ")
    )
}

/// Whether all versions of Kubernetes accept the name of an environment variable (apimachinery's
/// `IsEnvVarName`).
fn is_variable(word: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let begins_well = word.starts_with(|c: char| !c.is_ascii_digit());
    begins_well && word.chars().all(known) && word != "." && !word.starts_with("..")
}

fn own_port() -> NonZeroU16 {
    NonZeroU16::new(PORT).expect("it is not 0")
}

impl Image {
    fn check(&self) -> Result<()> {
        let is_name = !self.image.is_empty() && !self.image.contains(char::is_whitespace);
        ensure!(is_name, "image: {:?} is empty or has a space", self.image);
        if let Some(word) = self.env.keys().find(|word| !is_variable(word)) {
            bail!(
                "env: {word:?} is not the name of a variable: use letters, digits, `_`, `-` and \
                 `.`, with no digit and no `..` first"
            );
        }
        let Some(user) = self.user else { return Ok(()) };
        ensure!(user.get() <= MAX_USER, "user: {user} is above {MAX_USER}");
        ensure!(
            self.privileges == Privileges::Restricted,
            "user: with `privileges: image` it runs as the user of its image; leave one out"
        );
        Ok(())
    }
}

impl Images {
    /// Reads the file for a run, which must have exactly one scenario.
    ///
    /// # Errors
    /// If the file cannot be read, or its services are not exactly those of the scenario; the error says what is wrong
    /// and what to do.
    pub fn read(file: &Path, scenarios: &[Scenario]) -> Result<Self> {
        let [scenario] = scenarios else {
            bail!(
                "in a cluster, --application is a file for one scenario, but the run has {}: run \
                 each with its own file",
                scenarios.len()
            );
        };
        is_one(scenario)?;
        ensure!(
            !file.is_dir(),
            "{} is a directory, which is for the lab: in a cluster, --application is a file with \
             an image for each service; `leno bench list --application {}` prints one to edit",
            file.display(),
            scenario.name
        );
        let text = files::read(file)?;
        Self::parse(&text, scenario).with_context(|| file.display().to_string())
    }

    fn parse(text: &str, scenario: &Scenario) -> Result<Self> {
        let images: Self = serde_saphyr::from_str(text).map_err(|error| anyhow!("{error}"))?;
        images.check(scenario)?;
        Ok(images)
    }

    /// Compares the file with a scenario; the error says what is wrong.
    fn check(&self, scenario: &Scenario) -> Result<()> {
        let (of, file) = (&scenario.name, &self.scenario);
        ensure!(file == of, "scenario: the file is for {file:?}, but the run measures {of}");
        let names: Vec<String> = (0..scenario.services).map(|nth| scenario.service(nth)).collect();
        let known = names.join(", ");
        if let Some(other) = self.services.keys().find(|name| !names.contains(name)) {
            bail!("services.{other}: {of} has no such service: use {known}");
        }
        if let Some(missing) = names.iter().find(|name| !self.services.contains_key(*name)) {
            bail!("services: {missing} is missing: {of} has {known}");
        }
        let checked = |(name, one): (&String, &Image)| {
            one.check().with_context(|| format!("services.{name}"))
        };
        self.services.iter().try_for_each(checked)
    }

    /// The complete contents, in one line.
    pub fn in_full(&self) -> String {
        serde_json::to_string(&self.services).expect("it has only text keys")
    }

    /// The images by service, in one line.
    pub fn line(&self) -> String {
        let each = self.services.iter().map(|(name, one)| format!("{name} {}", one.image));
        each.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_printed_file_of_images_parses_and_has_every_service() {
        for (name, text) in FILES {
            let images = Images::parse(text, &scenario::find(name).unwrap()).unwrap();
            // Every address in an environment must belong to a service in the file, and have its port.
            for (service, one) in &images.services {
                for (word, value) in one.env.iter().filter(|(word, _)| !word.ends_with("_PORT")) {
                    let host = value.split(':').next().unwrap_or_default();
                    assert!(images.services.contains_key(host), "{service}: {word}={value}");
                }
            }
        }
        let shop = scenario::find("teastore").unwrap();
        let shop = Images::parse(printed("teastore").unwrap(), &shop).unwrap();
        let db = &shop.services["db"];
        assert_eq!((db.service_port.get(), db.app_protocol), (3306, Some(AppProtocol::Tcp)));
        let line = shop.line();
        assert!(line.contains("db docker.io/descartesresearch/teastore-db"), "{line}");
    }

    #[test]
    fn a_service_is_restricted_and_listens_on_8080_where_nothing_else_is_said() {
        let text = "{scenario: faces, services: {face: {image: a}, smiley: {image: b}, color: {image: c}}}";
        let images = Images::parse(text, &scenario::find("faces").unwrap()).unwrap();
        let face = &images.services["face"];
        assert_eq!((face.port.get(), face.service_port.get()), (8080, 8080));
        let rights = (face.privileges, face.user, face.app_protocol);
        assert_eq!(rights, (Privileges::Restricted, None, None));
        let json = serde_json::to_string(&images).unwrap();
        assert_eq!(serde_json::from_str::<Images>(&json).unwrap(), images, "as records have it");
    }

    /// A file for Faces, or the part of it about one service, and words that the error must contain; none if the file
    /// is right.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct FileOfImages {
        face: Option<String>,
        #[serde(default)]
        file: String,
        #[serde(default)]
        says: Vec<String>,
    }

    #[test]
    fn an_error_in_a_file_of_images_names_its_place() {
        let all: Vec<FileOfImages> =
            serde_saphyr::from_str(include_str!("../../data/images/files.test.yaml")).unwrap();
        let faces = scenario::find("faces").unwrap();
        for FileOfImages { face, file, says } in all {
            let with_face = |face| {
                let others = "smiley: {image: b}, color: {image: c}";
                format!("scenario: faces\nservices: {{face: {{{face}}}, {others}}}")
            };
            let parsed = Images::parse(&face.map_or(file, with_face), &faces);
            let said = parsed.err().map_or_else(String::new, |error| format!("{error:#}"));
            assert_eq!(said.is_empty(), says.is_empty(), "{said}");
            assert!(says.iter().all(|words| said.contains(words)), "{says:?} is not in {said}");
        }
    }

    #[test]
    fn a_file_of_images_is_for_one_scenario_and_not_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let read = |at: &Path, names: &[&str]| {
            let scenarios = names.iter().map(|name| scenario::find(name).unwrap());
            Images::read(at, &scenarios.collect::<Vec<_>>())
        };
        let why = |at: &Path, names: &[&str]| format!("{:#}", read(at, names).unwrap_err());
        let said = why(folder.path(), &["faces"]);
        assert!(said.contains("is a directory") && said.contains("--application faces"), "{said}");
        assert!(why(folder.path(), &["faces", "teastore"]).contains("the run has 2"));
        assert!(why(folder.path(), &["http-1k"]).contains("http-1k has no real application"));
        let file = folder.path().join("images.yaml");
        assert!(why(&file, &["faces"]).starts_with("cannot read"));
        fs::write(&file, printed("teastore").unwrap()).unwrap();
        let said = why(&file, &["faces"]);
        assert!(said.contains("images.yaml: scenario: the file is for \"teastore\""), "{said}");
        fs::write(&file, printed("faces").unwrap()).unwrap();
        assert_eq!(read(&file, &["faces"]).unwrap().services.len(), 3);
    }
}
