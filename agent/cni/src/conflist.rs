//! Adds the plugin to the text of a node's CNI configuration, and removes it.
//!
//! The agent reads and writes the files.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::NAME;

/// Why a configuration cannot be edited.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not JSON.
    #[error("it is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The JSON is not a CNI configuration.
    #[error("it has neither a list of `plugins` nor a `type`")]
    Shape,
}

/// The file that a runtime uses: of those that end in `.conf`, `.conflist` or `.json`, the first by name.
#[must_use]
pub fn active(files: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    files.into_iter().filter(|file| is_read(file)).min()
}

/// Whether a runtime reads a file with this name.
#[must_use]
pub fn is_read(file: &Path) -> bool {
    let known = ["conf", "conflist", "json"].map(OsStr::new);
    file.extension().is_some_and(|extension| known.contains(&extension))
}

/// The configuration with this plugin once, at the end of the list; `None` if it need not be changed. A
/// configuration of a single plugin is turned into a list.
///
/// # Errors
/// If the text is not a CNI configuration.
pub fn with(text: &str, plugin: &Value) -> Result<Option<String>, Error> {
    let mut list = parse(text)?;
    let plugins = plugins(&mut list)?;
    if plugins.last() == Some(plugin) && plugins.iter().filter(|p| is_ours(p)).count() == 1 {
        return Ok(None);
    }
    plugins.retain(|p| !is_ours(p));
    plugins.push(plugin.clone());
    Ok(Some(written(&list)))
}

/// The configuration without the plugin; `None` if it does not contain the plugin.
///
/// # Errors
/// If the text is not a CNI configuration.
pub fn without(text: &str) -> Result<Option<String>, Error> {
    let mut list = parse(text)?;
    let plugins = plugins(&mut list)?;
    let before = plugins.len();
    plugins.retain(|p| !is_ours(p));
    Ok((plugins.len() < before).then(|| written(&list)))
}

/// Whether the configuration is a list. The name of a file with a list must end in `.conflist`, and with a single
/// plugin in `.conf`.
///
/// # Errors
/// If the text is not a CNI configuration.
pub fn is_list(text: &str) -> Result<bool, Error> {
    let value: Value = serde_json::from_str(text)?;
    Ok(value.get("plugins").is_some())
}

fn is_ours(plugin: &Value) -> bool {
    plugin.get("type").and_then(Value::as_str) == Some(NAME)
}

/// Parses a configuration. One of a single plugin is turned into a list.
fn parse(text: &str) -> Result<Map<String, Value>, Error> {
    let Value::Object(read) = serde_json::from_str(text)? else { return Err(Error::Shape) };
    if read.contains_key("plugins") {
        return Ok(read);
    }
    if !read.contains_key("type") {
        return Err(Error::Shape);
    }
    let mut plugin = read;
    let mut list = Map::new();
    for (key, default) in [("cniVersion", "0.3.1"), ("name", "default")] {
        let value = plugin.remove(key).unwrap_or_else(|| json!(default));
        list.insert(key.to_owned(), value);
    }
    list.insert("plugins".to_owned(), json!([plugin]));
    Ok(list)
}

fn plugins(list: &mut Map<String, Value>) -> Result<&mut Vec<Value>, Error> {
    list.get_mut("plugins").and_then(Value::as_array_mut).ok_or(Error::Shape)
}

fn written(list: &Map<String, Value>) -> String {
    format!("{:#}\n", Value::Object(list.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str =
        r#"{"cniVersion":"1.0.0","name":"bed","plugins":[{"type":"bridge"},{"type":"portmap"}]}"#;

    fn ours() -> Value {
        json!({"type": NAME, "socket": "/run/leno/agent.sock"})
    }

    #[test]
    fn the_plugin_is_put_last_and_taken_out_again() {
        let golden = r#"{
  "cniVersion": "1.0.0",
  "name": "bed",
  "plugins": [
    {
      "type": "bridge"
    },
    {
      "type": "portmap"
    },
    {
      "socket": "/run/leno/agent.sock",
      "type": "leno-cni"
    }
  ]
}
"#;
        let edited = with(LIST, &ours()).unwrap().unwrap();
        assert_eq!(edited, golden);
        assert_eq!(with(&edited, &ours()).unwrap(), None, "twice is once");
        let restored: Value = serde_json::from_str(&without(&edited).unwrap().unwrap()).unwrap();
        assert_eq!(restored, serde_json::from_str::<Value>(LIST).unwrap());
        assert_eq!(without(LIST).unwrap(), None);
    }

    #[test]
    fn a_plugin_that_is_not_last_or_says_something_else_is_replaced() {
        for others in [
            r#"{"type":"leno-cni"},{"type":"bridge"}"#,
            r#"{"type":"bridge"},{"type":"leno-cni","socket":"/old"}"#,
            r#"{"type":"leno-cni"},{"type":"bridge"},{"type":"leno-cni","socket":"/run/leno/agent.sock"}"#,
        ] {
            let text = format!(r#"{{"name":"n","cniVersion":"0.4.0","plugins":[{others}]}}"#);
            let edited: Value =
                serde_json::from_str(&with(&text, &ours()).unwrap().unwrap()).unwrap();
            assert_eq!(edited["plugins"], json!([{"type": "bridge"}, ours()]), "{others}");
        }
    }

    #[test]
    fn a_single_plugin_becomes_a_list() {
        let text = r#"{"cniVersion":"0.3.1","name":"one","type":"bridge","mtu":1400}"#;
        assert!(!is_list(text).unwrap());
        let edited: Value = serde_json::from_str(&with(text, &ours()).unwrap().unwrap()).unwrap();
        let plugins = json!([{"type": "bridge", "mtu": 1400}, ours()]);
        assert_eq!(edited, json!({"cniVersion": "0.3.1", "name": "one", "plugins": plugins}));
    }

    #[test]
    fn what_is_no_configuration_is_refused() {
        for text in ["", "[]", "{}", r#"{"plugins":{}}"#, "not json"] {
            assert!(with(text, &ours()).is_err(), "{text}");
        }
    }

    #[test]
    fn the_first_file_by_name_that_a_runtime_reads_is_active() {
        let files = ["20-b.conflist", "10-a.conflist.leno-tmp", "15-c.conf", "10-x.txt"];
        assert_eq!(active(files.map(PathBuf::from)), Some("15-c.conf".into()));
        assert_eq!(active([]), None);
    }
}
