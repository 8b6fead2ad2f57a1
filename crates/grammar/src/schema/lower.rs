//! Rewrites a schema with supported keywords only.
//!
//! Drafts differ little here, and all of it is rewritten to 2020-12: `items` as a list,
//! `exclusiveMinimum` as a boolean. References are resolved and numbered here, so that escapes and
//! cycles are handled in one place. `oneOf` becomes `anyOf` if no value can satisfy two
//! alternatives, and is refused otherwise.

use std::collections::HashMap;

use llguidance::derivre::RegexBuilder;
use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

use super::counts::{self, Count};
use super::keywords::{FORMATS, HINTS, Role, TYPES, has_no_effect, role};
use super::path::{SchemaPath, resolve};
use super::{dates, disjoint, productive, values};
use crate::error::reason;
use crate::source::Notation;
use crate::{GrammarError, Result};

/// The nesting limit of schemas, including references. llguidance recurses as deep.
const MAX_DEPTH: usize = 1000;

/// The limit of schemas and literal values. llguidance has the same limit.
const MAX_SIZE: usize = 50_000;

const COUNT: &str = "a whole number of at least 0";

const DIVISOR: &str = "above 0 and at most 10,000, whole or a binary fraction such as 0.25, and with the others of the schema have a common \
                       multiple of at most 100,000";

/// Rewrites `root` with supported keywords only. Needs a large stack.
pub(super) fn lower(root: &Value) -> Result<Value> {
    let mut lowering = Lowering {
        root,
        numbers: HashMap::new(),
        definitions: Vec::new(),
        size: 0,
        depth: 0,
        comparisons: disjoint::BUDGET,
        divisors: values::Divisors::default(),
    };
    let mut lowered = lowering.schema(root, &SchemaPath::start("#"))?;
    let definitions: Vec<Value> = lowering.definitions.into_iter().flatten().collect();
    productive::check(&lowered, &definitions)?;
    if let (Value::Object(members), false) = (&mut lowered, definitions.is_empty()) {
        let numbered = definitions.into_iter().enumerate();
        let numbered = numbered.map(|(number, schema)| (number.to_string(), schema));
        members.insert("$defs".to_string(), Value::Object(numbered.collect()));
    }
    Ok(lowered)
}

struct Lowering<'a> {
    root: &'a Value,
    /// The definition number of each reference seen so far.
    numbers: HashMap<&'a str, usize>,
    /// `None` while it is being lowered.
    definitions: Vec<Option<Value>>,
    size: usize,
    depth: usize,
    comparisons: usize,
    divisors: values::Divisors,
}

impl<'a> Lowering<'a> {
    fn schema(&mut self, schema: &'a Value, path: &SchemaPath<'_>) -> Result<Value> {
        self.count(1)?;
        match schema {
            Value::Bool(_) => Ok(schema.clone()),
            Value::Object(members) => self
                .nested(|lowering| lowering.members(members, path))
                .map(Value::Object),
            other => Err(GrammarError::NotASchema {
                pointer: path.to_string(),
                found: values::display(other),
            }),
        }
    }

    fn nested<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(too_large("levels", MAX_DEPTH));
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        done
    }

    fn members(
        &mut self,
        members: &'a Map<String, Value>,
        path: &SchemaPath<'_>,
    ) -> Result<Map<String, Value>> {
        let mut out = Map::new();
        for (keyword, value) in members {
            let field = Field {
                keyword,
                value,
                path,
                siblings: members,
            };
            self.member(&field, &mut out)?;
        }
        Ok(out)
    }

    fn member(&mut self, field: &Field<'a, '_>, out: &mut Map<String, Value>) -> Result<()> {
        let value = field.value;
        if field.keyword == "$id" && !field.path.is_root() {
            return Err(field.unsupported("references inside it would point to another document"));
        }
        let lowered = match role(field.keyword) {
            Role::Reference => self.reference(field)?,
            Role::Literal => {
                self.literal(value, field)?;
                value.clone()
            }
            Role::Literals => self.literals(field)?,
            Role::Schema => self.schema(value, &field.path())?,
            Role::Schemas => self.schemas(field)?,
            Role::AllOf => return self.all_of(field, out),
            Role::OneOf => return self.one_of(field, out),
            Role::Items if value.is_array() => return self.item_list(field, out),
            Role::Items => self.schema(value, &field.path())?,
            Role::Properties => self.properties(field)?,
            Role::Format => match field.value.as_str().and_then(dates::pattern) {
                Some(pattern) => {
                    require_all(out, vec![json!({ "pattern": pattern })]);
                    return Ok(());
                }
                None => match field.format()? {
                    Some(value) => value,
                    None => return Ok(()),
                },
            },
            Role::Divisor if self.divisors.add(value) => value.clone(),
            Role::Divisor => return Err(field.bad(DIVISOR)),
            role => match field.assertion(role)? {
                Some(value) => value,
                None => return Ok(()),
            },
        };
        out.insert(field.keyword.to_string(), lowered);
        Ok(())
    }

    fn reference(&mut self, field: &Field<'a, '_>) -> Result<Value> {
        let Some(reference) = field.value.as_str() else {
            return Err(field.bad("a string"));
        };
        let number = match self.numbers.get(reference) {
            Some(number) => *number,
            None => {
                let target = resolve(self.root, reference).ok_or_else(|| {
                    field.bad("a pointer into the same schema, such as `#/$defs/x`")
                })?;
                let number = self.definitions.len();
                self.numbers.insert(reference, number);
                self.definitions.push(None);
                let lowered = self.schema(target, &SchemaPath::start(reference))?;
                self.definitions[number] = Some(lowered);
                number
            }
        };
        Ok(json!(format!("#/$defs/{number}")))
    }

    fn schemas(&mut self, field: &Field<'a, '_>) -> Result<Value> {
        let list = field.value.as_array().filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| field.bad("a list of at least one schema"))?;
        let path = field.path();
        let lowered = list.iter().enumerate();
        let lowered = lowered.map(|(index, schema)| self.schema(schema, &path.index(index)));
        lowered.collect()
    }

    fn properties(&mut self, field: &Field<'a, '_>) -> Result<Value> {
        let properties = field.value.as_object();
        let properties = properties.ok_or_else(|| field.bad("an object of schemas"))?;
        let path = field.path();
        let lowered = properties.iter().map(|(name, schema)| {
            if field.keyword == "patternProperties" {
                field.pattern(name)?;
            }
            let lowered = self.schema(schema, &path.key(name))?;
            Ok((name.clone(), lowered))
        });
        lowered.collect::<Result<Map<_, _>>>().map(Value::Object)
    }

    /// `items` as a list is `prefixItems`, and `additionalItems` next to it is `items`.
    fn item_list(&mut self, field: &Field<'a, '_>, out: &mut Map<String, Value>) -> Result<()> {
        if let Some(rest) = field.siblings.get("additionalItems") {
            let rest = self.schema(rest, &field.path.key("additionalItems"))?;
            out.insert("items".to_string(), rest);
        }
        out.insert("prefixItems".to_string(), self.schemas(field)?);
        Ok(())
    }

    fn all_of(&mut self, field: &Field<'a, '_>, out: &mut Map<String, Value>) -> Result<()> {
        if let Value::Array(schemas) = self.schemas(field)? {
            require_all(out, schemas);
        }
        Ok(())
    }

    /// Alternatives that exclude each other are a plain union.
    fn one_of(&mut self, field: &Field<'a, '_>, out: &mut Map<String, Value>) -> Result<()> {
        let alternatives = self.schemas(field)?;
        let written = field.value.as_array().map_or(&[][..], Vec::as_slice);
        for (index, one) in written.iter().enumerate() {
            for (other_index, other) in written.iter().enumerate().skip(index + 1) {
                if !disjoint::disjoint(self.root, one, other, &mut self.comparisons) {
                    return Err(field.unsupported(&format!(
                        "a value might satisfy both alternatives {index} and {other_index}; write \
                         `anyOf`, or a required property with another `const` in each"
                    )));
                }
            }
        }
        require_all(out, vec![json!({ "anyOf": alternatives })]);
        Ok(())
    }

    fn literals(&mut self, field: &Field<'a, '_>) -> Result<Value> {
        let list = field.value.as_array().filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| field.bad("a list of at least one value"))?;
        for value in list {
            self.literal(value, field)?;
        }
        Ok(field.value.clone())
    }

    /// Checks a value that must be written exactly.
    fn literal(&mut self, value: &Value, field: &Field<'_, '_>) -> Result<()> {
        self.count(1)?;
        match value {
            Value::Null | Value::Bool(_) => Ok(()),
            Value::Number(number) if values::is_exact(number) => Ok(()),
            Value::Number(_) => Err(field.bad("made of numbers between -2^53 and 2^53")),
            Value::String(text) if values::is_writable(text) => Ok(()),
            Value::String(_) => Err(field.bad("made of strings without control characters")),
            Value::Array(items) => self.nested(|lowering| {
                let mut items = items.iter();
                items.try_for_each(|item| lowering.literal(item, field))
            }),
            Value::Object(members) => self.nested(|lowering| {
                let mut values = members.values();
                values.try_for_each(|value| lowering.literal(value, field))
            }),
        }
    }

    fn count(&mut self, more: usize) -> Result<()> {
        self.size += more;
        if self.size > MAX_SIZE {
            Err(too_large("schemas and values", MAX_SIZE))
        } else {
            Ok(())
        }
    }
}

/// A keyword, its value, and the path of its schema.
struct Field<'a, 'p> {
    keyword: &'a str,
    value: &'a Value,
    path: &'p SchemaPath<'p>,
    /// All keywords of that schema.
    siblings: &'a Map<String, Value>,
}

impl Field<'_, '_> {
    fn path(&self) -> SchemaPath<'_> {
        self.path.key(self.keyword)
    }

    fn bad(&self, expected: &'static str) -> GrammarError {
        GrammarError::BadKeyword {
            keyword: self.keyword.to_string(),
            pointer: self.path.to_string(),
            found: values::display(self.value),
            expected,
        }
    }

    fn unsupported(&self, why: &str) -> GrammarError {
        GrammarError::Unsupported {
            keyword: self.keyword.to_string(),
            pointer: self.path.to_string(),
            why: why.to_string(),
        }
    }

    /// A keyword without nested schemas, or `None` if it has no effect.
    fn assertion(&self, role: Role) -> Result<Option<Value>> {
        match role {
            Role::Refused(_) if has_no_effect(self.keyword, self.value, self.siblings) => Ok(None),
            Role::Refused(why) => Err(self.unsupported(why)),
            Role::Types => self.checked(is_type, "a type's name, or a list of them"),
            Role::Names => self.checked(is_names, "a list of strings"),
            Role::Count => self.checked(Value::is_u64, COUNT),
            Role::PropertyCount => self.property_count(),
            Role::Number => self.number().map(Some),
            Role::ExclusiveBound => self.exclusive_bound(),
            Role::Pattern => {
                let pattern = self.value.as_str().ok_or_else(|| self.bad("a string"))?;
                self.pattern(pattern)?;
                Ok(Some(self.value.clone()))
            }
            _ => Ok(None),
        }
    }

    fn checked(&self, good: fn(&Value) -> bool, expected: &'static str) -> Result<Option<Value>> {
        if good(self.value) {
            Ok(Some(self.value.clone()))
        } else {
            Err(self.bad(expected))
        }
    }

    fn number(&self) -> Result<Value> {
        match self.value {
            Value::Number(number) if values::is_exact(number) => Ok(self.value.clone()),
            _ => Err(self.bad("a number between -2^53 and 2^53")),
        }
    }

    /// A pattern as llguidance reads it, so that its errors have a position.
    fn pattern(&self, pattern: &str) -> Result<()> {
        let backslashes = pattern.chars().rev().take_while(|c| *c == '\\').count();
        if backslashes % 2 == 1 {
            return Err(self.unsupported("it ends with a backslash"));
        }
        let rewritten = regex_to_lark(pattern, "dw");
        match RegexBuilder::new().mk_regex_for_serach(&rewritten) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.unsupported(&reason(&error.to_string()))),
        }
    }

    /// `"minimum": 3, "exclusiveMinimum": true` is `"exclusiveMinimum": 3`.
    fn exclusive_bound(&self) -> Result<Option<Value>> {
        let bound = match self.keyword {
            "exclusiveMinimum" => "minimum",
            _ => "maximum",
        };
        match self.value {
            Value::Bool(true) => Ok(self.siblings.get(bound).cloned()),
            Value::Bool(false) => Ok(None),
            _ => self.number().map(Some),
        }
    }

    fn property_count(&self) -> Result<Option<Value>> {
        let limit = self.value.as_u64().ok_or_else(|| self.bad(COUNT))?;
        match counts::count(self.keyword, limit, self.siblings) {
            Count::Kept => Ok(Some(self.value.clone())),
            Count::Certain => Ok(None),
            Count::Unsupported(why) => Err(self.unsupported(&why)),
        }
    }

    fn format(&self) -> Result<Option<Value>> {
        let Some(format) = self.value.as_str() else {
            return Err(self.bad("a string"));
        };
        if HINTS.contains(&format) {
            return Ok(None);
        }
        if FORMATS.contains(&format) {
            return Ok(Some(self.value.clone()));
        }
        let known = FORMATS.join("`, `");
        Err(self.unsupported(&format!("`{format}` is not among `{known}`")))
    }
}

/// Adds schemas that the value must satisfy too.
fn require_all(out: &mut Map<String, Value>, schemas: Vec<Value>) {
    let all = out.entry("allOf").or_insert_with(|| json!([]));
    if let Value::Array(all) = all {
        all.extend(schemas);
    }
}

fn is_type(value: &Value) -> bool {
    let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    match value {
        Value::Array(names) => !names.is_empty() && names.iter().all(known),
        name => known(name),
    }
}

fn is_names(value: &Value) -> bool {
    let names = value.as_array();
    names.is_some_and(|names| names.iter().all(Value::is_string))
}

fn too_large(what: &'static str, limit: usize) -> GrammarError {
    GrammarError::TooLarge {
        notation: Notation::Schema,
        what,
        limit,
    }
}
