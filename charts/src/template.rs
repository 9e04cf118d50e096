//! The part of Helm's template language that the chart uses.
//!
//! `{{ .Values.a.b }}`, `.Release.Namespace`, `.Release.Name` and `.Chart.AppVersion`, optionally with
//! `| quote` or `| toJson`; `{{ if X }}`, `{{ else }}`, `{{ end }}`, where X is such a value, `not X`, `or X Y`, or
//! `eq X "text"`;
//! comments; and `{{-`, `-}}`, which remove the white space before and after. Anything else is an error, so
//! that a template cannot mean one thing to Helm and another here.

use serde_json::Value;

/// Why a template cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct TemplateError {
    line: usize,
    reason: String,
}

/// Renders `template`; `names` contains the values of its names.
///
/// # Errors
/// If the template uses an unsupported construct, or names a value that does not exist.
pub(crate) fn render(template: &str, names: &Value) -> Result<String, TemplateError> {
    let mut out = String::with_capacity(template.len());
    // For each enclosing `if`: whether the current branch is shown, and whether its `else` was seen.
    let mut open: Vec<(bool, bool)> = Vec::new();
    let mut line = 1;
    for piece in pieces(template)? {
        let fail = |reason: String| TemplateError { line, reason };
        let shown = open.iter().all(|(taken, _)| *taken);
        match piece.action {
            None if shown => out.push_str(piece.shown),
            None => {}
            Some(action) if action.starts_with("/*") => {}
            Some("else") => {
                let Some((taken, false)) = open.last_mut() else {
                    return Err(fail("`else` without `if`".to_owned()));
                };
                *taken = !*taken;
                open.last_mut().expect("just seen").1 = true;
            }
            Some("end") => {
                open.pop().ok_or_else(|| fail("`end` without `if`".to_owned()))?;
            }
            Some(action) => match action.strip_prefix("if ") {
                Some(condition) => {
                    open.push((truth(condition.trim(), names).map_err(fail)?, false))
                }
                None if shown => out.push_str(&text(action, names).map_err(fail)?),
                None => {}
            },
        }
        line += piece.source.matches('\n').count();
    }
    if open.is_empty() {
        Ok(out)
    } else {
        Err(TemplateError { line, reason: "`if` without `end`".to_owned() })
    }
}

/// A piece of text, or an action in braces.
struct Piece<'a> {
    source: &'a str,
    shown: &'a str,
    action: Option<&'a str>,
}

fn pieces(template: &str) -> Result<Vec<Piece<'_>>, TemplateError> {
    let mut found = Vec::new();
    let (mut rest, mut trim) = (template, false);
    loop {
        let start = rest.find("{{");
        let source = &rest[..start.unwrap_or(rest.len())];
        let mut shown = if trim { source.trim_start() } else { source };
        let Some(start) = start else {
            found.push(Piece { source, shown, action: None });
            return Ok(found);
        };
        let inner = &rest[start + 2..];
        let Some(end) = inner.find("}}") else {
            let line = 1 + template[..template.len() - inner.len()].matches('\n').count();
            return Err(TemplateError { line, reason: "`{{` without `}}`".to_owned() });
        };
        let (mut action, whole) = (&inner[..end], &rest[start..start + end + 4]);
        if let Some(after) = action.strip_prefix("- ") {
            (action, shown) = (after, shown.trim_end());
        }
        trim = action.ends_with(" -");
        action = action.strip_suffix(" -").unwrap_or(action);
        found.push(Piece { source, shown, action: None });
        found.push(Piece { source: whole, shown: "", action: Some(action.trim()) });
        rest = &inner[end + 2..];
    }
}

fn truth(condition: &str, names: &Value) -> Result<bool, String> {
    if let Some(inner) = condition.strip_prefix("not ") {
        return truth(inner.trim(), names).map(|truth| !truth);
    }
    if let Some(any) = condition.strip_prefix("or ") {
        let mut truths = any.split_whitespace().map(|path| truth(path, names));
        return truths.try_fold(false, |known, one| one.map(|one| known || one));
    }
    if let Some(both) = condition.strip_prefix("eq ") {
        let (path, text) = both.trim().split_once(' ').ok_or("`eq` wants a value and a text")?;
        let text: String =
            serde_json::from_str(text.trim()).map_err(|_| format!("{text} is no text"))?;
        return Ok(value(path, names)? == &Value::String(text));
    }
    Ok(match value(condition, names)? {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    })
}

fn text(action: &str, names: &Value) -> Result<String, String> {
    let mut parts = action.split('|').map(str::trim);
    let path = parts.next().unwrap_or_default();
    let mut value = value(path, names)?.clone();
    for function in parts {
        value = Value::String(match (function, value) {
            ("toJson", value) => value.to_string(),
            ("quote", Value::String(text)) => Value::from(text).to_string(),
            ("quote", value @ (Value::Bool(_) | Value::Number(_))) => format!("\"{value}\""),
            ("quote", _) => return Err(format!("{path} is no plain value")),
            _ => return Err(format!("`{function}` is not known here")),
        });
    }
    match value {
        Value::String(text) => Ok(text),
        Value::Bool(_) | Value::Number(_) => Ok(value.to_string()),
        _ => Err(format!("{path} is no plain value")),
    }
}

fn value<'a>(path: &str, names: &'a Value) -> Result<&'a Value, String> {
    let Some(keys) = path.strip_prefix('.') else {
        return Err(format!("`{path}` is not known here"));
    };
    keys.split('.')
        .try_fold(names, |value, key| value.get(key).ok_or_else(|| format!("there is no {path}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names() -> Value {
        json!({"Values": {"a": {"b": "c", "n": 3}, "no": false, "none": "", "list": ["x"]}})
    }

    #[test]
    fn values_conditions_and_blanks_are_as_helm_has_them() {
        for (template, wanted) in [
            ("x: {{ .Values.a.b }}\n", "x: c\n"),
            ("x: {{ .Values.a.n | quote }}", "x: \"3\""),
            ("{{ .Values.a | toJson }}", r#"{"b":"c","n":3}"#),
            ("{{ .Values.a | toJson | quote }}", r#""{\"b\":\"c\",\"n\":3}""#),
            ("a\n{{- if .Values.no }}\nb\n{{- end }}\nc\n", "a\nc\n"),
            ("a\n{{- if .Values.no }}\nb\n{{- else }}\nd\n{{- end }}\nc\n", "a\nd\nc\n"),
            ("{{ if not .Values.none }}y{{ end }}", "y"),
            ("{{ if or .Values.no .Values.a.b }}y{{ end }}", "y"),
            ("{{ if or .Values.no .Values.no }}y{{ else }}n{{ end }}", "n"),
            (r#"{{ if eq .Values.a.b "c" }}y{{ else }}n{{ end }}"#, "y"),
            (
                "{{ if .Values.no }}{{ if .Values.list }}y{{ else }}x{{ end }}{{ else }}z{{ end }}",
                "z",
            ),
            ("a {{- /* nothing */ -}} b", "ab"),
        ] {
            assert_eq!(render(template, &names()).as_deref(), Ok(wanted), "{template}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named_with_its_line() {
        for (template, wanted) in [
            ("a\n{{ .Values.x }}", "line 2: there is no .Values.x"),
            ("{{ include \"x\" . }}", "line 1: `include \"x\" .` is not known here"),
            ("{{ .Values.a.b | upper }}", "line 1: `upper` is not known here"),
            ("{{ .Values.a }}", "line 1: .Values.a is no plain value"),
            ("\n{{ if .Values.no }}", "line 2: `if` without `end`"),
            ("{{ end }}", "line 1: `end` without `if`"),
            ("{{ else }}", "line 1: `else` without `if`"),
            ("a\n\n{{ .Values.a", "line 3: `{{` without `}}`"),
        ] {
            assert_eq!(render(template, &names()).unwrap_err().to_string(), wanted, "{template}");
        }
    }
}
