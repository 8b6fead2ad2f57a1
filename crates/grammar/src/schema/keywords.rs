//! Every keyword of JSON Schema and how it is handled.

use serde_json::Value;

/// The type of a supported keyword's value, or the reason why a keyword is unsupported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Does not restrict values.
    Annotation,
    Reference,
    Types,
    Literal,
    Literals,
    Schema,
    Schemas,
    /// One schema, or a list of them, which was how older drafts wrote `prefixItems`.
    Items,
    /// Has an effect only next to a list of `items`, and is read with it.
    AdditionalItems,
    /// A map from names, or regular expressions for names, to schemas.
    Properties,
    AllOf,
    OneOf,
    Names,
    Count,
    PropertyCount,
    Number,
    /// A number, or in draft 4 a boolean that changes the other bound.
    ExclusiveBound,
    Divisor,
    Pattern,
    Format,
    Refused(&'static str),
}

const ONLY_WHEN_COMPLETE: &str =
    "it can be checked only on the complete value, and generated tokens cannot be undone";

/// How a keyword is handled. One that no draft defines is an annotation, as the specification says.
pub(super) fn role(keyword: &str) -> Role {
    use Role::*;
    match keyword {
        "$ref" => Reference,
        "type" => Types,
        "const" => Literal,
        "enum" => Literals,
        "properties" | "patternProperties" => Properties,
        "additionalProperties" => Schema,
        "items" => Items,
        "additionalItems" => AdditionalItems,
        "prefixItems" | "anyOf" => Schemas,
        "allOf" => AllOf,
        "oneOf" => OneOf,
        "required" => Names,
        "minLength" | "maxLength" | "minItems" | "maxItems" => Count,
        "minProperties" | "maxProperties" => PropertyCount,
        "minimum" | "maximum" => Number,
        "exclusiveMinimum" | "exclusiveMaximum" => ExclusiveBound,
        "multipleOf" => Divisor,
        "pattern" => Pattern,
        "format" => Format,
        "not"
        | "contains"
        | "minContains"
        | "maxContains"
        | "uniqueItems"
        | "if"
        | "then"
        | "else"
        | "dependencies"
        | "dependentRequired"
        | "dependentSchemas"
        | "unevaluatedItems"
        | "unevaluatedProperties" => Refused(ONLY_WHEN_COMPLETE),
        "propertyNames" => Refused("write the names as `patternProperties`"),
        "$dynamicRef" | "$recursiveRef" => Refused("write `$ref`"),
        _ => Annotation,
    }
}

/// Whether an unsupported keyword has no effect here and can be accepted.
pub(super) fn has_no_effect(
    keyword: &str,
    value: &Value,
    siblings: &serde_json::Map<String, Value>,
) -> bool {
    let empty = value.as_object().is_some_and(serde_json::Map::is_empty);
    match keyword {
        "uniqueItems" | "not" => *value == Value::Bool(false),
        "propertyNames" | "unevaluatedItems" | "unevaluatedProperties" => {
            empty || *value == Value::Bool(true)
        }
        "dependencies" | "dependentRequired" | "dependentSchemas" => empty,
        "if" => !siblings.contains_key("then") && !siblings.contains_key("else"),
        "then" | "else" => !siblings.contains_key("if"),
        "minContains" | "maxContains" => !siblings.contains_key("contains"),
        _ => false,
    }
}

/// Supported formats of strings.
pub(super) const FORMATS: &[&str] = &[
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
];

/// Formats that describe only storage or display: OpenAPI's, and those that schema generators write
/// for numbers.
pub(super) const HINTS: &[&str] = &[
    "decimal",
    "double",
    "float",
    "int",
    "int16",
    "int32",
    "int64",
    "int8",
    "multi-line",
    "password",
    "textarea",
    "uint",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
];

pub(super) const TYPES: &[&str] = &[
    "array", "boolean", "integer", "null", "number", "object", "string",
];
