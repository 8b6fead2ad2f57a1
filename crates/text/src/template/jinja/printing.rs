//! Values as text: `str`, `repr` and `json.dumps`.

use std::fmt::Write as _;

use super::budget::{Budget, VALUE_DEPTH, limit};
use super::compare;
use super::dict::Dict;
use super::error::{Result, fail, unsupported};
use super::strings;
use super::value::{Callable, Value};

/// `str(value)`, the output of `{{ value }}`.
pub(super) fn str(value: &Value, budget: &Budget) -> Result<String> {
    let text = match value {
        Value::Str(text) => text.text.to_string(),
        Value::Undefined(_) => String::new(),
        other => return repr(other, budget),
    };
    budget.bytes(text.len())?;
    Ok(text)
}

/// `repr(value)`: how a value shows inside a list or a dict.
pub(super) fn repr(value: &Value, budget: &Budget) -> Result<String> {
    let mut out = String::new();
    push_repr(&mut out, value, budget, 0)?;
    Ok(out)
}

fn push_repr(out: &mut String, value: &Value, budget: &Budget, depth: u32) -> Result<()> {
    if depth > VALUE_DEPTH {
        return limit("a value nests too deep to be printed");
    }
    let before = out.len();
    match value {
        Value::Undefined(_) => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Int(number) => push(out, format_args!("{number}")),
        Value::Float(number) => out.push_str(&strings::float(*number)),
        Value::Str(text) if text.markup => {
            push(out, format_args!("Markup({})", strings::repr(&text.text)));
        }
        Value::Str(text) => out.push_str(&strings::repr(&text.text)),
        Value::List(seq) => push_items(out, '[', &seq.items, ']', budget, depth)?,
        Value::Tuple(seq) => {
            let close = if seq.items.len() == 1 { ",)" } else { ")" };
            push_items(out, '(', &seq.items, ' ', budget, depth)?;
            out.pop();
            out.push_str(close);
        }
        Value::Dict(dict) => push_dict(out, dict, budget, depth)?,
        Value::View(view, dict) => {
            push(out, format_args!("{}(", value.type_name()));
            push_items(out, '[', &dict.view(*view)?, ']', budget, depth)?;
            out.push(')');
        }
        Value::Range(range) if range.step == 1 => {
            push(out, format_args!("range({}, {})", range.start, range.stop));
        }
        Value::Range(range) => {
            let (start, stop, step) = (range.start, range.stop, range.step);
            push(out, format_args!("range({start}, {stop}, {step})"));
        }
        Value::Namespace(attributes) => {
            out.push_str("<Namespace ");
            push_dict(out, &attributes.borrow(), budget, depth)?;
            out.push('>');
        }
        Value::Loop(state) => {
            let (index, length) = (state.index.get() + 1, state.items.items.len());
            push(out, format_args!("<LoopContext {index}/{length}>"));
        }
        Value::Template => out.push_str("<TemplateReference None>"),
        Value::Callable(callable) => match &**callable {
            Callable::Macro(definition, _) => match &definition.name {
                Some(name) => push(out, format_args!("<Macro {}>", strings::repr(name))),
                None => out.push_str("<Macro anonymous>"),
            },
            _ => return unprintable(value),
        },
        Value::Iterator(_) | Value::Cycler(_) => return unprintable(value),
    }
    budget.bytes(out.len().saturating_sub(before))
}

/// Python would print an address in memory.
fn unprintable(value: &Value) -> Result<()> {
    unsupported(format!("a {} has no text of its own", value.type_name()))
}

fn push(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(arguments);
}

fn push_items(
    out: &mut String,
    open: char,
    items: &[Value],
    close: char,
    budget: &Budget,
    depth: u32,
) -> Result<()> {
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        push_repr(out, item, budget, depth + 1)?;
    }
    out.push(close);
    Ok(())
}

fn push_dict(out: &mut String, dict: &Dict, budget: &Budget, depth: u32) -> Result<()> {
    out.push('{');
    for (index, (key, value)) in dict.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        push_repr(out, key, budget, depth + 1)?;
        out.push_str(": ");
        push_repr(out, value, budget, depth + 1)?;
    }
    out.push('}');
    Ok(())
}

/// Arguments of `json.dumps` that `tojson` passes on.
#[derive(Debug)]
pub(super) struct JsonOptions {
    /// The indentation of one level.
    pub indent: Option<String>,
    pub ensure_ascii: bool,
    pub sort_keys: bool,
    /// Between items, and between key and value.
    pub separators: (String, String),
}

/// `json.dumps(value, …)`
pub(super) fn json(value: &Value, options: &JsonOptions, budget: &Budget) -> Result<String> {
    let mut writer = JsonWriter {
        out: String::new(),
        options,
        budget,
    };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct JsonWriter<'a> {
    out: String,
    options: &'a JsonOptions,
    budget: &'a Budget,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<()> {
        if depth > VALUE_DEPTH as usize {
            return limit("a value nests too deep to be written as JSON");
        }
        let before = self.out.len();
        match value {
            Value::None => self.out.push_str("null"),
            Value::Bool(true) => self.out.push_str("true"),
            Value::Bool(false) => self.out.push_str("false"),
            Value::Int(number) => push(&mut self.out, format_args!("{number}")),
            Value::Float(number) => self.out.push_str(&json_float(*number)),
            Value::Str(text) => self.string(&text.text),
            Value::List(seq) | Value::Tuple(seq) => self.array(&seq.items, depth)?,
            Value::Dict(dict) => self.object(dict, depth)?,
            other => {
                let kind = other.type_name();
                return fail(format!("Object of type {kind} is not JSON serializable"));
            }
        }
        self.budget.bytes(self.out.len().saturating_sub(before))
    }

    fn array(&mut self, items: &[Value], depth: usize) -> Result<()> {
        self.out.push('[');
        for (index, item) in items.iter().enumerate() {
            self.between(index, depth + 1);
            self.value(item, depth + 1)?;
        }
        self.close(items.is_empty(), depth, ']');
        Ok(())
    }

    fn object(&mut self, dict: &Dict, depth: usize) -> Result<()> {
        let mut entries: Vec<_> = dict.iter().collect();
        if self.options.sort_keys {
            entries = compare::sorted(entries, &|entry| entry.0, self.budget)?;
        }
        self.out.push('{');
        for (index, (key, value)) in entries.into_iter().enumerate() {
            self.between(index, depth + 1);
            self.key(key)?;
            self.out.push_str(&self.options.separators.1);
            self.value(value, depth + 1)?;
        }
        self.close(dict.len() == 0, depth, '}');
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<()> {
        match key {
            Value::Str(text) => self.string(&text.text),
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            other => {
                let kind = other.type_name();
                return fail(format!(
                    "keys must be str, int, float, bool or None, not {kind}"
                ));
            }
        }
        Ok(())
    }

    fn between(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push_str(&self.options.separators.0);
        }
        self.line(depth);
    }

    fn close(&mut self, is_empty: bool, depth: usize, bracket: char) {
        if !is_empty {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.options.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.options.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        push(&mut self.out, format_args!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn json_float(number: f64) -> String {
    match number {
        number if number.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        number => strings::float(number),
    }
}
