//! Settings of the access log: where its lines or records go, and which fields they have. Examples: `off`, `json`,
//! `otlp:method,path,status`, `text:%time% %method% %path% %status%`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::field::{Field, FieldName};

/// How many fields a line may have. This limits the length of a line, because a field has at most
/// [`super::MAX_FIELD_BYTES`].
const MAX_FIELDS: usize = 64;

/// The fields of a line if the settings name none.
const DEFAULT: [FieldName; 14] = [
    FieldName::Direction,
    FieldName::Client,
    FieldName::Server,
    FieldName::Method,
    FieldName::Target,
    FieldName::Protocol,
    FieldName::Status,
    FieldName::GrpcStatus,
    FieldName::ServerName,
    FieldName::RequestBytes,
    FieldName::ResponseBytes,
    FieldName::DurationUs,
    FieldName::Mtls,
    FieldName::Error,
];

/// The settings of the access log of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessSettings {
    /// The form of the lines, and where they go.
    pub form: Form,
    /// The fields of a line, and their order.
    pub layout: Layout,
}

/// The forms of the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// There is no access log.
    Off,
    /// Text, which is written to standard output.
    Text,
    /// A JSON object per line, to standard output.
    Json,
    /// Records, which are sent to a collector.
    Otlp,
}

/// The fields of a line. Copies of the layout share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(super) parts: Parts,
    /// Whether a field is only available if the details of a request are recorded ([`Field::is_observed`]).
    pub(crate) is_observed: bool,
    /// The headers that are copied when a request begins.
    pub(super) headers: Arc<[Box<str>]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parts {
    /// Keys and values. A value that is missing is left out with its key.
    Pairs(Arc<[Pair]>),
    /// Text around values. A value that is missing becomes `-`.
    Template(Arc<[Part]>),
}

/// A field and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) key: Box<str>,
    /// Whether the settings have set the key.
    pub(super) is_renamed: bool,
    pub(super) field: Field,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Literal(Box<str>),
    Field(Field),
}

/// The text is not a valid setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessSettingsError(String);

impl fmt::Display for AccessSettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: write off, text, json or otlp, optionally with fields after a colon, such as \
             json:time,client,agent=header(user-agent), or for text with a template, such as \
             text:%time% %client% %status%",
            self.0
        )
    }
}

impl std::error::Error for AccessSettingsError {}

impl Layout {
    fn new(parts: Parts) -> Self {
        let fields: Vec<&Field> = match &parts {
            Parts::Pairs(pairs) => pairs.iter().map(|pair| &pair.field).collect(),
            Parts::Template(parts) => parts.iter().filter_map(Part::field).collect(),
        };
        let is_observed = fields.iter().any(|field| field.is_observed());
        let header = |field: &&Field| match field {
            Field::Header(name) => Some(name.clone()),
            Field::Named(_) => None,
        };
        let headers = fields.iter().filter_map(header).collect();
        Self { parts, is_observed, headers }
    }

    /// Parses a list of fields, separated by commas, each optionally with another key.
    fn of_list(text: &str) -> Result<Self, String> {
        let mut pairs: Vec<Pair> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let pair = pair(part)?;
            if pairs.iter().any(|other| other.key == pair.key) {
                return Err(format!("{:?} is given twice", pair.key));
            }
            pairs.push(pair);
        }
        match pairs.len() > MAX_FIELDS {
            true => Err(format!("{} fields are more than the limit of {MAX_FIELDS}", pairs.len())),
            false => Ok(Self::new(Parts::Pairs(pairs.into()))),
        }
    }

    /// Parses text with fields between percent signs; `%%` stands for a percent sign.
    fn of_template(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut pieces = text.split('%');
        literal.push_str(pieces.next().unwrap_or_default());
        while let Some(name) = pieces.next() {
            let Some(after) = pieces.next() else {
                return Err(format!("%{name} has no % at its end"));
            };
            if name.is_empty() {
                literal.push('%');
            } else {
                let field =
                    name.parse().map_err(|unknown: super::UnknownField| unknown.to_string());
                parts.push(Part::Literal(std::mem::take(&mut literal).into()));
                parts.push(Part::Field(field?));
            }
            literal.push_str(after);
        }
        parts.push(Part::Literal(literal.into()));
        let is_control =
            |part: &Part| matches!(part, Part::Literal(text) if text.contains(char::is_control));
        if parts.iter().any(is_control) {
            return Err("a line has no control characters".to_owned());
        }
        parts.retain(|part| !matches!(part, Part::Literal(text) if text.is_empty()));
        let fields = parts.iter().filter(|part| part.field().is_some()).count();
        match fields > MAX_FIELDS {
            true => Err(format!("{fields} fields are more than the limit of {MAX_FIELDS}")),
            false => Ok(Self::new(Parts::Template(parts.into()))),
        }
    }
}

impl Default for Layout {
    fn default() -> Self {
        let pair = |name: FieldName| Pair {
            key: name.name().into(),
            is_renamed: false,
            field: Field::Named(name),
        };
        Self::new(Parts::Pairs(DEFAULT.into_iter().map(pair).collect()))
    }
}

impl Part {
    fn field(&self) -> Option<&Field> {
        match self {
            Self::Literal(_) => None,
            Self::Field(field) => Some(field),
        }
    }
}

/// Parses `status` or `code=status`.
fn pair(text: &str) -> Result<Pair, String> {
    let (key, field) = match text.split_once('=') {
        Some((key, field)) => (Some(key.trim()), field.trim()),
        None => (None, text),
    };
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if let Some(key) = key.filter(|key| key.is_empty() || !key.bytes().all(is_key)) {
        return Err(format!("{key:?} is not a valid key: use letters, digits and - _ ."));
    }
    let field: Field = field.parse().map_err(|unknown: super::UnknownField| unknown.to_string())?;
    let is_renamed = key.is_some();
    let key = key.unwrap_or_else(|| field.key()).into();
    Ok(Pair { key, is_renamed, field })
}

impl FromStr for AccessSettings {
    type Err = AccessSettingsError;

    fn from_str(text: &str) -> Result<Self, AccessSettingsError> {
        let (form, rest) = match text.split_once(':') {
            Some((form, rest)) => (form, Some(rest)),
            None => (text, None),
        };
        let form = match form {
            "off" if rest.is_none() => Form::Off,
            "text" => Form::Text,
            "json" => Form::Json,
            "otlp" => Form::Otlp,
            _ => {
                return Err(AccessSettingsError(format!(
                    "{form:?} is not a form of the access log"
                )));
            }
        };
        let layout = match rest {
            None => Ok(Layout::default()),
            Some(template) if form == Form::Text && template.contains('%') => {
                Layout::of_template(template)
            }
            Some(list) => Layout::of_list(list),
        };
        Ok(Self { form, layout: layout.map_err(AccessSettingsError)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        text.parse::<AccessSettings>().unwrap_err().to_string()
    }

    #[test]
    fn forms_have_fields_and_text_has_templates() {
        for (text, form) in
            [("off", Form::Off), ("text", Form::Text), ("json", Form::Json), ("otlp", Form::Otlp)]
        {
            let settings: AccessSettings = text.parse().unwrap();
            assert_eq!(settings, AccessSettings { form, layout: Layout::default() });
            assert!(!settings.layout.is_observed && settings.layout.headers.is_empty());
        }
        let settings: AccessSettings =
            "json:time, code=status,route,agent=header(User-Agent)".parse().unwrap();
        let Parts::Pairs(pairs) = &settings.layout.parts else { panic!("{settings:?}") };
        let keys: Vec<&str> = pairs.iter().map(|pair| &*pair.key).collect();
        assert_eq!(keys, ["time", "code", "route", "agent"]);
        assert!(settings.layout.is_observed);
        assert_eq!(&*settings.layout.headers, ["user-agent".into()]);
        let settings: AccessSettings = "text:[%time%] 100%% %status%".parse().unwrap();
        let Parts::Template(parts) = &settings.layout.parts else { panic!("{settings:?}") };
        let field = |name| Part::Field(Field::Named(name));
        let wanted = [
            Part::Literal("[".into()),
            field(FieldName::Time),
            Part::Literal("] 100% ".into()),
            field(FieldName::Status),
        ];
        assert_eq!(**parts, wanted);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, what) in [
            ("", "\"\" is not a form"),
            ("yaml", "\"yaml\" is not a form"),
            ("off:status", "\"off\" is not a form"),
            ("json:state", "\"state\" is not a field: use time, "),
            ("json:", "\"\" is not a field"),
            ("json:status,status", "\"status\" is given twice"),
            ("json:a b=status", "\"a b\" is not a valid key"),
            ("otlp:%status%", "\"%status%\" is not a field"),
            ("text:%status", "%status has no % at its end"),
            ("text:%state%", "\"state\" is not a field"),
            ("text:%status%\n", "a line has no control characters"),
        ] {
            let error = wrong(text);
            assert!(
                error.contains(what) && error.contains("write off, text, json or otlp"),
                "{text}: {error}"
            );
        }
        assert!(wrong(&format!("text:{}", "%status%".repeat(65))).contains("65 fields"));
    }
}
