//! Values as text: `str`, `repr` and `json.dumps`.

use super::budget::{Budget, PaidText, VALUE_DEPTH, limit};
use super::compare;
use super::dict::Dict;
use super::error::{Result, fail, unsupported};
use super::strings;
use super::value::{Callable, Value};

/// `str(value)`, the output of `{{ value }}`.
pub(super) fn str(value: &Value, budget: &Budget) -> Result<String> {
    match value {
        Value::Str(text) => {
            budget.bytes(text.text.len())?;
            Ok(text.text.to_string())
        }
        Value::Undefined(_) => Ok(String::new()),
        other => repr(other, budget),
    }
}

/// `repr(value)`: how a value shows inside a list or a dict.
pub(super) fn repr(value: &Value, budget: &Budget) -> Result<String> {
    let mut out = PaidText::new(budget);
    push_repr(&mut out, value, budget, 0)?;
    Ok(out.finish())
}

fn push_repr(out: &mut PaidText<'_>, value: &Value, budget: &Budget, depth: u32) -> Result<()> {
    if depth > VALUE_DEPTH {
        return limit("a value nests too deep to be printed");
    }
    budget.steps(1)?;
    match value {
        Value::Undefined(_) => out.push_str("Undefined")?,
        Value::None => out.push_str("None")?,
        Value::Bool(true) => out.push_str("True")?,
        Value::Bool(false) => out.push_str("False")?,
        Value::Int(number) => out.push_str(&number.to_string())?,
        Value::Float(number) => out.push_str(&strings::float(*number))?,
        Value::Str(text) if text.markup => {
            let inner = strings::paid_repr(&text.text, budget)?;
            out.push_str(&format!("Markup({inner})"))?;
        }
        Value::Str(text) => out.push_str(&strings::paid_repr(&text.text, budget)?)?,
        Value::List(seq) => push_items(out, '[', &seq.items, ']', budget, depth)?,
        Value::Tuple(seq) => {
            let close = if seq.items.len() == 1 { ",)" } else { ")" };
            push_items(out, '(', &seq.items, ' ', budget, depth)?;
            out.pop();
            out.push_str(close)?;
        }
        Value::Dict(dict) => push_dict(out, dict, budget, depth)?,
        Value::View(view, dict) => {
            out.push_str(value.type_name())?;
            out.push('(')?;
            push_items(out, '[', &dict.view(*view, budget)?, ']', budget, depth)?;
            out.push(')')?;
        }
        Value::Range(range) if range.step == 1 => {
            out.push_str(&format!("range({}, {})", range.start, range.stop))?;
        }
        Value::Range(range) => {
            let (start, stop, step) = (range.start, range.stop, range.step);
            out.push_str(&format!("range({start}, {stop}, {step})"))?;
        }
        Value::Namespace(attributes) => {
            out.push_str("<Namespace ")?;
            push_dict(out, &attributes.borrow(), budget, depth)?;
            out.push('>')?;
        }
        Value::Loop(state) => {
            let (index, length) = (state.index.get() + 1, state.items.items.len());
            out.push_str(&format!("<LoopContext {index}/{length}>"))?;
        }
        Value::Template => out.push_str("<TemplateReference None>")?,
        Value::Callable(callable) => match &**callable {
            Callable::Macro(definition, _) => match &definition.name {
                Some(name) => {
                    let name = strings::paid_repr(name, budget)?;
                    out.push_str(&format!("<Macro {name}>"))?;
                }
                None => out.push_str("<Macro anonymous>")?,
            },
            _ => return unprintable(value),
        },
        Value::Iterator(_) | Value::Cycler(_) => return unprintable(value),
    }
    Ok(())
}

/// Python would print an address in memory.
fn unprintable(value: &Value) -> Result<()> {
    unsupported(format!("a {} has no text of its own", value.type_name()))
}

fn push_items(
    out: &mut PaidText<'_>,
    open: char,
    items: &[Value],
    close: char,
    budget: &Budget,
    depth: u32,
) -> Result<()> {
    out.push(open)?;
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(", ")?;
        }
        push_repr(out, item, budget, depth + 1)?;
    }
    out.push(close)
}

fn push_dict(out: &mut PaidText<'_>, dict: &Dict, budget: &Budget, depth: u32) -> Result<()> {
    out.push('{')?;
    for (index, (key, value)) in dict.iter().enumerate() {
        if index > 0 {
            out.push_str(", ")?;
        }
        push_repr(out, key, budget, depth + 1)?;
        out.push_str(": ")?;
        push_repr(out, value, budget, depth + 1)?;
    }
    out.push('}')
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
        out: PaidText::new(budget),
        options,
        budget,
    };
    writer.value(value, 0)?;
    Ok(writer.out.finish())
}

struct JsonWriter<'a> {
    out: PaidText<'a>,
    options: &'a JsonOptions,
    budget: &'a Budget,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<()> {
        if depth > VALUE_DEPTH as usize {
            return limit("a value nests too deep to be written as JSON");
        }
        self.budget.steps(1)?;
        match value {
            Value::None => self.out.push_str("null")?,
            Value::Bool(true) => self.out.push_str("true")?,
            Value::Bool(false) => self.out.push_str("false")?,
            Value::Int(number) => self.out.push_str(&number.to_string())?,
            Value::Float(number) => self.out.push_str(&json_float(*number))?,
            Value::Str(text) => self.string(&text.text)?,
            Value::List(seq) | Value::Tuple(seq) => self.array(&seq.items, depth)?,
            Value::Dict(dict) => self.object(dict, depth)?,
            other => {
                let kind = other.type_name();
                return fail(format!("Object of type {kind} is not JSON serializable"));
            }
        }
        Ok(())
    }

    fn array(&mut self, items: &[Value], depth: usize) -> Result<()> {
        self.out.push('[')?;
        for (index, item) in items.iter().enumerate() {
            self.between(index, depth + 1)?;
            self.value(item, depth + 1)?;
        }
        self.close(items.is_empty(), depth, ']')
    }

    fn object(&mut self, dict: &Dict, depth: usize) -> Result<()> {
        let mut entries: Vec<_> = dict.iter().collect();
        if self.options.sort_keys {
            entries = compare::sorted(entries, &|entry| entry.0, self.budget)?;
        }
        self.out.push('{')?;
        for (index, (key, value)) in entries.into_iter().enumerate() {
            self.between(index, depth + 1)?;
            self.key(key)?;
            self.out.push_str(&self.options.separators.1)?;
            self.value(value, depth + 1)?;
        }
        self.close(dict.len() == 0, depth, '}')
    }

    fn key(&mut self, key: &Value) -> Result<()> {
        match key {
            Value::Str(text) => self.string(&text.text)?,
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                self.out.push('"')?;
                self.value(key, 0)?;
                self.out.push('"')?;
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

    fn between(&mut self, index: usize, depth: usize) -> Result<()> {
        if index > 0 {
            self.out.push_str(&self.options.separators.0)?;
        }
        self.line(depth)
    }

    fn close(&mut self, is_empty: bool, depth: usize, bracket: char) -> Result<()> {
        if !is_empty {
            self.line(depth)?;
        }
        self.out.push(bracket)
    }

    fn line(&mut self, depth: usize) -> Result<()> {
        if let Some(indent) = &self.options.indent {
            self.out.push('\n')?;
            self.out.push_repeated(indent, depth)?;
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<()> {
        self.budget.scans(text.len())?;
        self.out.push('"')?;
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\"")?,
                '\\' => self.out.push_str("\\\\")?,
                '\n' => self.out.push_str("\\n")?,
                '\r' => self.out.push_str("\\r")?,
                '\t' => self.out.push_str("\\t")?,
                '\u{8}' => self.out.push_str("\\b")?,
                '\u{c}' => self.out.push_str("\\f")?,
                c if c < ' ' || (self.options.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"))?;
                    }
                }
                c => self.out.push(c)?,
            }
        }
        self.out.push('"')
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
