//! The file of images: the image of each service of a scenario in a cluster.

use std::collections::BTreeMap;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::Path;

use anyhow::{Result, anyhow, bail, ensure};
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
    /// The scenario of these services.
    pub scenario: String,
    /// The images by service name. A Service of the same name is created in the namespace of the
    /// bench.
    pub services: BTreeMap<String, Image>,
}

/// The container of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// The image, as a pod names it.
    pub image: String,
    /// Replaces the image's entrypoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Replaces the image's arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The container's environment. Records contain it too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The port that the container listens on; 8080 by default.
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
    /// Those of Pod Security `restricted`, with a read-only root file system.
    #[default]
    Restricted,
    /// Those of the image: its user, which may be root, the default capabilities, and a writable
    /// file system.
    Image,
}

/// The file of images for a scenario, with the published images, for the user to edit.
///
/// # Errors
/// If the scenario has no real application; the error lists those that have one.
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
        "{scenario} is not the shape of a real application, which {} are: leave --application out",
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

impl Images {
    /// Reads the file for a run, which must have exactly one scenario.
    ///
    /// # Errors
    /// If the file cannot be read, or its services are not exactly those of the scenario; the error
    /// says what is wrong and what to do.
    pub fn read(file: &Path, scenarios: &[Scenario]) -> Result<Self> {
        let [scenario] = scenarios else {
            bail!(
                "--application is of one scenario in a cluster, not of {}: run each with its own file",
                scenarios.len()
            );
        };
        is_one(scenario)?;
        ensure!(
            !file.is_dir(),
            "{} is a folder, which is for the lab: in a cluster --application names a file with an image for \
                 each service; `leno bench list --application {}` prints one to edit",
            file.display(),
            scenario.name
        );
        let text = files::read(file)?;
        let images = Self::parse(&text)
            .and_then(|images| images.check(scenario).map(|()| images))
            .map_err(|reason| anyhow!("{}: {reason}", file.display()))?;
        Ok(images)
    }

    fn parse(text: &str) -> Result<Self, String> {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    }

    /// Compares the file with a scenario; the error says what is wrong.
    fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let of = &scenario.name;
        if self.scenario != *of {
            return Err(format!("scenario: it is of {:?}, and {of} is run", self.scenario));
        }
        let names: Vec<String> = (0..scenario.services).map(|nth| scenario.service(nth)).collect();
        let known = names.join(", ");
        if let Some(other) = self.services.keys().find(|name| !names.contains(name)) {
            return Err(format!("services.{other}: {of} has no such service; it has {known}"));
        }
        if let Some(missing) = names.iter().find(|name| !self.services.contains_key(*name)) {
            return Err(format!("services: {missing} is missing; {of} has {known}"));
        }
        for (name, one) in &self.services {
            if one.image.trim().is_empty() {
                return Err(format!("services.{name}.image: it is empty"));
            }
            if one.image.chars().any(char::is_whitespace) {
                return Err(format!("services.{name}.image: there is a space in {:?}", one.image));
            }
            if let Some(word) = one.env.keys().find(|word| !is_variable(word)) {
                return Err(format!(
                    "services.{name}.env: {word:?} is no name of a variable: letters, digits, `_`, `-` and `.` are, \
                     with no digit and no `..` first"
                ));
            }
            if let Some(user) = one.user.filter(|user| user.get() > MAX_USER) {
                return Err(format!("services.{name}.user: {user} is above {MAX_USER}"));
            }
            if one.user.is_some() && one.privileges == Privileges::Image {
                return Err(format!(
                    "services.{name}.user: with `privileges: image` it runs as the user of its image; leave one out"
                ));
            }
        }
        Ok(())
    }

    /// The complete contents in one line.
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

    /// Checks a file for Faces.
    fn read(text: &str) -> Result<Images, String> {
        let images = Images::parse(text)?;
        images.check(&scenario::find("faces").unwrap()).map(|()| images)
    }

    fn refused(text: &str) -> String {
        read(text).unwrap_err()
    }

    #[test]
    fn the_printed_file_of_images_parses_and_has_every_service() {
        for (name, text) in FILES {
            let scenario = scenario::find(name).unwrap();
            let images = Images::parse(text).unwrap();
            images.check(&scenario).unwrap();
            // Every address in an environment must be that of an existing service, with its port.
            for (service, one) in &images.services {
                for (word, value) in &one.env {
                    let host = value.split(':').next().unwrap_or_default();
                    let is_port = word.ends_with("_PORT");
                    assert!(
                        is_port || images.services.contains_key(host),
                        "{service}: {word}={value}"
                    );
                }
            }
        }
        let shop = Images::parse(printed("teastore").unwrap()).unwrap();
        let db = &shop.services["db"];
        assert_eq!((db.service_port.get(), db.app_protocol), (3306, Some(AppProtocol::Tcp)));
        assert!(
            shop.line().contains("db docker.io/descartesresearch/teastore-db"),
            "{}",
            shop.line()
        );
    }

    #[test]
    fn a_service_is_restricted_and_listens_on_8080_where_nothing_else_is_said() {
        let images = read(
            "{scenario: faces, services: {face: {image: a}, smiley: {image: b}, color: {image: c}}}",
        );
        let images = images.unwrap();
        let face = &images.services["face"];
        assert_eq!((face.port.get(), face.service_port.get()), (8080, 8080));
        assert_eq!(
            (face.privileges, face.user, face.app_protocol),
            (Privileges::Restricted, None, None)
        );
        let json = serde_json::to_string(&images).unwrap();
        assert_eq!(serde_json::from_str::<Images>(&json).unwrap(), images, "as records have it");
    }

    #[test]
    fn an_error_in_a_file_of_images_names_its_place() {
        let others = "smiley: {image: b}, color: {image: c}";
        let of = |face: &str| format!("scenario: faces\nservices: {{face: {{{face}}}, {others}}}");
        read(&of("image: a, user: 1000, env: {PORT: \"1\"}, args: [-port, \"1\"]")).unwrap();
        for (text, words) in [
            (of("image: a, tag: b"), &["unknown field", "tag", "line 2"][..]),
            (of("port: 80"), &["image", "line 2"]),
            (of("image: \" \""), &["services.face.image: it is empty"]),
            (of("image: a, port: 0"), &["line 2"]),
            (of("image: a, port: 70000"), &["line 2"]),
            (of("image: a, app_protocol: mysql"), &["mysql", "tcp", "line 2"]),
            (of("image: a, privileges: all"), &["all", "restricted", "image"]),
            (of("image: a, user: 0"), &["line 2"]),
            (
                of("image: a, user: 3000000000"),
                &["services.face.user: 3000000000 is above 2147483647"],
            ),
            (of("image: \"a \""), &["services.face.image: there is a space in \"a \""]),
            (of("image: a, env: {\"A=B\": x}"), &["services.face.env: \"A=B\" is no name"]),
            (of("image: a, env: {\"\": x}"), &["services.face.env: \"\" is no name"]),
            (of("image: a, env: {1A: x}"), &["services.face.env: \"1A\" is no name"]),
            (
                of("image: a, user: 5, privileges: image"),
                &["services.face.user: with `privileges: image`", "leave one out"],
            ),
            (
                format!("scenario: faces\nservices: {{{others}}}"),
                &["face is missing", "face, smiley, color"],
            ),
            (
                format!(
                    "scenario: faces\nservices: {{face: {{image: a}}, s3: {{image: d}}, {others}}}"
                ),
                &["services.s3: faces has no such service; it has face, smiley, color"],
            ),
            (
                "scenario: teastore\nservices: {}".to_owned(),
                &["scenario: it is of \"teastore\", and faces is run"],
            ),
        ] {
            let said = refused(&text);
            for word in words {
                assert!(said.contains(word), "{word} is not in {said}");
            }
        }
    }

    #[test]
    fn a_file_is_of_one_scenario_and_is_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let of = |names: &[&str]| -> Vec<Scenario> {
            names.iter().map(|name| scenario::find(name).unwrap()).collect()
        };
        let why = |at: &Path, names: &[&str]| Images::read(at, &of(names)).unwrap_err().to_string();
        let said = why(folder.path(), &["faces"]);
        assert!(
            said.contains("is a folder") && said.contains("list --application faces"),
            "{said}"
        );
        assert!(why(folder.path(), &["faces", "teastore"]).contains("not of 2"));
        assert!(why(folder.path(), &["http-1k"]).contains("http-1k is not the shape"));
        let file = folder.path().join("images.yaml");
        assert!(why(&file, &["faces"]).starts_with("cannot read"));
        fs::write(&file, printed("teastore").unwrap()).unwrap();
        let said = why(&file, &["faces"]);
        assert!(said.contains("images.yaml: scenario: it is of \"teastore\""), "{said}");
        fs::write(&file, printed("faces").unwrap()).unwrap();
        assert_eq!(Images::read(&file, &of(&["faces"])).unwrap().services.len(), 3);
    }
}
