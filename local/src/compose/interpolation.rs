//! Variables in the texts of a Compose file: `$NAME`, `${NAME}`, `${NAME:-default}`, and `$$` for a dollar.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// Values by name.
pub(super) type Variables = BTreeMap<String, String>;

/// The environment variables of this process. Variables that it lacks come from the file `.env` beside the Compose
/// file.
pub(super) fn variables(file: &Path) -> Variables {
    let beside = file.with_file_name(".env");
    let text = std::fs::read_to_string(beside).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let (name, value) =
            line.trim().split_once('=').filter(|(name, _)| !name.starts_with('#'))?;
        let value = value.trim();
        let unquoted = ['"', '\''].into_iter().find_map(|quote| {
            value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote))
        });
        Some((name.trim().to_owned(), unquoted.unwrap_or(value).to_owned()))
    });
    let mut variables: Variables = lines.collect();
    let own = std::env::vars_os();
    variables.extend(
        own.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
    );
    variables
}

/// A value with the variables in its texts replaced.
pub(super) fn filled(value: &Value, variables: &Variables) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => Value::String(replaced(text, variables)?),
        Value::Array(items) => Value::Array(
            items.iter().map(|item| filled(item, variables)).collect::<Result<_, _>>()?,
        ),
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| {
                Ok::<_, String>((name.clone(), filled(value, variables)?))
            };
            Value::Object(fields.iter().map(field).collect::<Result<_, _>>()?)
        }
        other => other.clone(),
    })
}

fn replaced(text: &str, variables: &Variables) -> Result<String, String> {
    let (mut done, mut rest) = (String::new(), text);
    while let Some(dollar) = rest.find('$') {
        done += &rest[..dollar];
        rest = &rest[dollar + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            done.push('$');
            rest = after;
        } else if let Some(inner) = rest.strip_prefix('{') {
            let end = inner.find('}').ok_or_else(|| format!("{text:?} has a ${{ without a }}"))?;
            done += &expression(&inner[..end], variables)?;
            rest = &inner[end + 1..];
        } else {
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let (name, after) = rest.split_at(length.unwrap_or(rest.len()));
            if name.is_empty() {
                return Err(format!("{text:?} has a single $: write $$ for a dollar"));
            }
            done += &expression(name, variables)?;
            rest = after;
        }
    }
    Ok(done + rest)
}

/// Evaluates the expression between the braces of `${...}`.
fn expression(text: &str, variables: &Variables) -> Result<String, String> {
    let length = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let (name, operation) = text.split_at(length.unwrap_or(text.len()));
    let value = variables.get(name);
    let filled = value.filter(|value| !value.is_empty());
    match (operation.strip_prefix(":-"), operation.strip_prefix('-'), value) {
        (Some(default), ..) => Ok(filled.map_or(default, String::as_str).to_owned()),
        (None, Some(default), value) => Ok(value.map_or(default, String::as_str).to_owned()),
        (None, None, Some(value)) if operation.is_empty() => Ok(value.clone()),
        (None, None, None) if operation.is_empty() => Err(format!(
            "the variable {name} is not set: set it, write it into .env beside the file, or give it a default, \
             ${{{name}:-value}}"
        )),
        _ => Err(format!(
            "leno up does not read ${{{text}}}: write ${{{name}}} or ${{{name}:-value}}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced() {
        let variables =
            [("A", "1"), ("EMPTY", "")].map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        let replaced = |text: &str| replaced(text, &variables);
        for (text, expected) in [
            ("plain", "plain"),
            ("$A-${A}", "1-1"),
            ("$$A $${A}", "$A ${A}"),
            ("${B:-two}${EMPTY:-three}${EMPTY-four}", "twothree"),
        ] {
            assert_eq!(replaced(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, reason) in [
            ("$B", "the variable B is not set"),
            ("cost: 5$", "a single $"),
            ("${A", "without a }"),
            ("${A:?wrong}", "leno up does not read ${A:?wrong}"),
        ] {
            assert!(replaced(text).unwrap_err().contains(reason), "{text}");
        }
    }
}
