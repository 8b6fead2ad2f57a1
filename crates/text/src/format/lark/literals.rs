//! Values in the notations of Python and of Gemma.

use serde_json::{Map, Value};

use super::{ToolRule, cannot_hold, join, literal};
use crate::Result;

#[derive(Debug, Clone, Copy)]
pub(super) enum Notation {
    /// `a=1, b=[True, None], c={"d": "x"}`
    Python,
    /// `a:1,b:[true,null],c:{d:<quote>x<quote>}`
    Gemma {
        quote: &'static str,
        /// If the quotation mark is a special token.
        token: Option<u32>,
    },
}

/// Writes the rules of one tool's values.
pub(super) struct Literals {
    /// Prefix of every rule name.
    prefix: String,
    notation: Notation,
    rules: Vec<String>,
    /// Whether the rules of any value are written.
    has_any: bool,
}

/// Keywords that values can be constrained to, and those without effect.
const KEYWORDS: &[&str] = &[
    "type",
    "enum",
    "const",
    "anyOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "title",
    "description",
    "default",
    "examples",
    "$schema",
];

const INTEGER: &str = "/-?(0|[1-9][0-9]{0,17})/";
const NUMBER: &str = r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?/";

impl Literals {
    pub fn new(prefix: String, notation: Notation) -> Self {
        Self {
            prefix,
            notation,
            rules: Vec::new(),
            has_any: false,
        }
    }

    pub fn into_rules(self) -> Vec<String> {
        self.rules
    }

    /// The text between a call's brackets.
    pub fn arguments(&mut self, tool: &ToolRule<'_>) -> Result<String> {
        let properties = tool.parameters.get("properties").and_then(Value::as_object);
        match properties {
            Some(properties) if !properties.is_empty() => {
                self.fields(tool, tool.parameters, properties, FieldContext::Call)
            }
            _ if tool.strict => Ok(String::new()),
            _ => {
                let (value, equals, comma) = (self.any(), self.equals(), self.comma());
                let name = self.name("argument");
                let key = "/[A-Za-z_][A-Za-z0-9_]{0,63}/";
                self.rules.push(format!("{name}: {key} {equals} {value}"));
                Ok(format!("({name} ({comma} {name})*)?"))
            }
        }
    }

    fn name(&self, what: &str) -> String {
        format!("{}_{}_{what}", self.prefix, self.rules.len())
    }

    fn equals(&self) -> String {
        literal(match self.notation {
            Notation::Python => "=",
            Notation::Gemma { .. } => ":",
        })
    }

    fn comma(&self) -> String {
        literal(match self.notation {
            Notation::Python => ", ",
            Notation::Gemma { .. } => ",",
        })
    }

    /// An object's properties in schema order. An optional property includes its comma, so each
    /// position has its own rule for what may follow.
    fn fields(
        &mut self,
        tool: &ToolRule<'_>,
        schema: &Value,
        properties: &Map<String, Value>,
        context: FieldContext,
    ) -> Result<String> {
        let required = schema.get("required").and_then(Value::as_array);
        let mut fields = Vec::with_capacity(properties.len());
        for (key, schema) in properties {
            if !self.can_write(key, context) {
                return Err(cannot_hold(tool, &format!("properties/{key}")));
            }
            let value = self.value(tool, schema)?;
            let is_required = required.is_some_and(|keys| keys.iter().any(|each| each == key));
            fields.push((join([self.key(key, context), value]), is_required));
        }
        let comma = self.comma();
        // Built from last to first: what follows a field, and what starts at it.
        let (mut following, mut beginning) = (String::new(), String::new());
        for (field, is_required) in fields.into_iter().rev() {
            let (after, before) = (self.name("after"), self.name("from"));
            let with = join([field, following.clone()]);
            let skipped = |rest: &str| {
                if is_required {
                    String::new()
                } else if rest.is_empty() {
                    " | \"\"".to_owned()
                } else {
                    format!(" | {rest}")
                }
            };
            self.rules
                .push(format!("{after}: {comma} {with}{}", skipped(&following)));
            self.rules
                .push(format!("{before}: {with}{}", skipped(&beginning)));
            (following, beginning) = (after, before);
        }
        Ok(beginning)
    }

    /// A bare key is a word; only Python's dictionaries quote theirs.
    fn can_write(&self, key: &str, context: FieldContext) -> bool {
        let quotes = matches!(
            (self.notation, context),
            (Notation::Python, FieldContext::Object)
        );
        let mut bytes = key.bytes();
        let is_word = bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !key.is_empty()
            && !key.starts_with(|c: char| c.is_ascii_digit());
        quotes || is_word
    }

    fn key(&self, key: &str, context: FieldContext) -> String {
        literal(&match (self.notation, context) {
            (Notation::Python, FieldContext::Call) => format!("{key}="),
            (Notation::Python, FieldContext::Object) => format!("{}: ", super::quoted(key)),
            (Notation::Gemma { .. }, _) => format!("{key}:"),
        })
    }

    fn value(&mut self, tool: &ToolRule<'_>, schema: &Value) -> Result<String> {
        let Some(keywords) = schema.as_object().filter(|_| tool.strict) else {
            return Ok(self.any());
        };
        let unknown = |keyword: &&String| !KEYWORDS.contains(&keyword.as_str());
        if let Some(keyword) = keywords.keys().find(unknown) {
            return Err(cannot_hold(tool, keyword));
        }
        if let Some(value) = keywords.get("const") {
            return Ok(self.written(value));
        }
        if let Some(Value::Array(values)) = keywords.get("enum") {
            let values: Vec<String> = values.iter().map(|value| self.written(value)).collect();
            return Ok(format!("({})", values.join(" | ")));
        }
        if let Some(Value::Array(schemas)) = keywords.get("anyOf") {
            let values = schemas.iter().map(|schema| self.value(tool, schema));
            let values = values.collect::<Result<Vec<_>>>()?;
            return Ok(format!("({})", values.join(" | ")));
        }
        match keywords.get("type") {
            None => Ok(self.any()),
            Some(Value::Array(kinds)) => {
                let values = kinds.iter().map(|kind| self.for_kind(tool, schema, kind));
                let values = values.collect::<Result<Vec<_>>>()?;
                Ok(format!("({})", values.join(" | ")))
            }
            Some(kind) => self.for_kind(tool, schema, kind),
        }
    }

    fn for_kind(&mut self, tool: &ToolRule<'_>, schema: &Value, kind: &Value) -> Result<String> {
        Ok(match kind.as_str() {
            Some("string") => self.string(),
            Some("integer") => INTEGER.into(),
            Some("number") => NUMBER.into(),
            Some("boolean") => self.booleans(),
            Some("null") => self.word("null").into(),
            Some("array") => self.array(tool, schema)?,
            Some("object") => self.object(tool, schema)?,
            _ => return Err(cannot_hold(tool, "type")),
        })
    }

    fn array(&mut self, tool: &ToolRule<'_>, schema: &Value) -> Result<String> {
        let item = match schema.get("items") {
            Some(items) => self.value(tool, items)?,
            None => self.any(),
        };
        let count = |keyword: &str| schema.get(keyword).and_then(Value::as_u64);
        let least = count("minItems").unwrap_or(0);
        let (open, close, comma) = (literal("["), literal("]"), self.comma());
        let more = match count("maxItems") {
            Some(0) => return Ok(join([open, close])),
            Some(most) => format!("{{{},{}}}", least.saturating_sub(1), most - 1),
            None => format!("{{{},}}", least.saturating_sub(1)),
        };
        let items = format!("{item} ({comma} {item}){more}");
        Ok(match least {
            0 => format!("{open} ({items})? {close}"),
            _ => format!("{open} {items} {close}"),
        })
    }

    fn object(&mut self, tool: &ToolRule<'_>, schema: &Value) -> Result<String> {
        let properties = schema.get("properties").and_then(Value::as_object);
        match properties {
            Some(properties) if !properties.is_empty() => {
                let fields = self.fields(tool, schema, properties, FieldContext::Object)?;
                Ok(join([literal("{"), fields, literal("}")]))
            }
            _ => match schema.get("additionalProperties") {
                None | Some(Value::Bool(true)) => Ok(self.any_object()),
                Some(Value::Bool(false)) => Ok(literal("{}")),
                Some(_) => Err(cannot_hold(tool, "additionalProperties")),
            },
        }
    }

    /// Rules for any value of the notation; the grammar handles nesting.
    fn any(&mut self) -> String {
        let (any, array) = (
            format!("{}_any", self.prefix),
            format!("{}_array", self.prefix),
        );
        if std::mem::replace(&mut self.has_any, true) {
            return any;
        }
        let (comma, object) = (self.comma(), format!("{}_object", self.prefix));
        let (string, booleans, null) = (self.string(), self.booleans(), self.word("null"));
        self.rules.push(format!(
            "{any}: {string} | {NUMBER} | {booleans} | {null} | {array} | {object}"
        ));
        self.rules.push(format!(
            "{array}: {} ({any} ({comma} {any})*)? {}",
            literal("["),
            literal("]")
        ));
        let pair = match self.notation {
            Notation::Python => format!("{string} {} {any}", literal(": ")),
            Notation::Gemma { .. } => {
                format!("/[A-Za-z_][A-Za-z0-9_]{{0,63}}/ {} {any}", literal(":"))
            }
        };
        self.rules.push(format!(
            "{object}: {} ({pair} ({comma} {pair})*)? {}",
            literal("{"),
            literal("}")
        ));
        any
    }

    fn any_object(&mut self) -> String {
        self.any();
        format!("{}_object", self.prefix)
    }

    fn booleans(&self) -> String {
        format!("({} | {})", self.word("true"), self.word("false"))
    }

    fn word(&self, word: &str) -> &'static str {
        match (self.notation, word) {
            (Notation::Python, "true") => "\"True\"",
            (Notation::Python, "false") => "\"False\"",
            (Notation::Python, _) => "\"None\"",
            (Notation::Gemma { .. }, "true") => "\"true\"",
            (Notation::Gemma { .. }, "false") => "\"false\"",
            (Notation::Gemma { .. }, _) => "\"null\"",
        }
    }

    fn string(&mut self) -> String {
        match self.notation {
            Notation::Python => r#"/"([^"\\\x00-\x1f\x7f]|\\["\\nrt]|\\u[0-9a-f]{4})*"/"#.into(),
            Notation::Gemma {
                token: Some(id), ..
            } => format!("<[{id}]> /(?s:.*)/ <[{id}]>"),
            Notation::Gemma { quote, token: None } => {
                let name = format!("{}_string", self.prefix);
                let rule = format!("{name}[lazy]: /(?s:.*)/ {}", literal(quote));
                if !self.rules.contains(&rule) {
                    self.rules.push(rule);
                }
                join([literal(quote), name])
            }
        }
    }

    /// One value, as the notation spells it.
    fn written(&self, value: &Value) -> String {
        match value {
            Value::Null => self.word("null").into(),
            Value::Bool(true) => self.word("true").into(),
            Value::Bool(false) => self.word("false").into(),
            Value::Number(number) => literal(&number.to_string()),
            Value::String(text) => match self.notation {
                Notation::Python => literal(&super::quoted(text)),
                Notation::Gemma { quote, token } => {
                    let mark = token.map_or_else(|| literal(quote), |id| format!("<[{id}]>"));
                    join([mark.clone(), literal(text), mark])
                }
            },
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.written(item)).collect();
                let comma = format!(" {} ", self.comma());
                join([literal("["), items.join(&comma), literal("]")])
            }
            Value::Object(fields) => {
                let field = |(key, value): (&String, &Value)| {
                    join([self.key(key, FieldContext::Object), self.written(value)])
                };
                let fields: Vec<String> = fields.iter().map(field).collect();
                let comma = format!(" {} ", self.comma());
                join([literal("{"), fields.join(&comma), literal("}")])
            }
        }
    }
}

/// Where fields are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldContext {
    /// Between a call's brackets.
    Call,
    Object,
}
