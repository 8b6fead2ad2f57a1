//! Jinja2's filters: `value | name(…)`.

mod numbers;
mod select;
mod sequences;
mod texts;

use super::call::{self, Args, flag};
use super::error::{Result, fail, unsupported};
use super::interpreter::Interpreter;
use super::printing::{self, JsonOptions};
use super::strings::{escape_html, repr};
use super::value::{Str, Value};

/// The deepest JSON may be indented by one level.
const MAX_INDENT: i128 = 100;

#[derive(Debug)]
pub(super) struct FilterEntry {
    pub name: &'static str,
    pub apply: fn(&Interpreter<'_>, Value, Args) -> Result<Value>,
}

pub(super) type Filter = &'static FilterEntry;

macro_rules! filters {
    ($($name:literal => $apply:expr,)*) => {
        &[$(FilterEntry { name: $name, apply: $apply },)*]
    };
}

const FILTERS: &[FilterEntry] = filters! {
    "abs" => numbers::abs,
    "attr" => attr,
    "batch" => sequences::batch,
    "capitalize" => |runtime, value, args| texts::method(runtime, value, "capitalize", args),
    "center" => texts::center,
    "count" => length,
    "d" => default,
    "default" => default,
    "dictsort" => sequences::dictsort,
    "e" => escape,
    "escape" => escape,
    "filesizeformat" => |_, _, _| absent("filesizeformat"),
    "first" => sequences::first,
    "float" => numbers::float,
    "forceescape" => force_escape,
    "format" => texts::format,
    "groupby" => select::groupby,
    "indent" => texts::indent,
    "int" => numbers::int,
    "items" => sequences::items,
    "join" => texts::join,
    "last" => sequences::last,
    "length" => length,
    "list" => sequences::list,
    "lower" => |runtime, value, args| texts::method(runtime, value, "lower", args),
    "map" => select::map,
    "max" => select::max,
    "min" => select::min,
    "pprint" => |_, _, _| absent("pprint"),
    "random" => |_, _, _| absent("random"),
    "reject" => select::reject,
    "rejectattr" => select::rejectattr,
    "replace" => texts::replace,
    "reverse" => sequences::reverse,
    "round" => numbers::round,
    "safe" => safe,
    "select" => select::select,
    "selectattr" => select::selectattr,
    "slice" => sequences::slice,
    "sort" => select::sort,
    "string" => string,
    "striptags" => |_, _, _| absent("striptags"),
    "sum" => select::sum,
    "title" => texts::title,
    "tojson" => to_json,
    "trim" => |runtime, value, args| {
        let [chars] = args.bind("trim", ["chars"])?;
        texts::method(runtime, value, "strip", Args::from_positional(chars.into_iter().collect()))
    },
    "truncate" => texts::truncate,
    "unique" => select::unique,
    "upper" => |runtime, value, args| texts::method(runtime, value, "upper", args),
    "urlencode" => texts::urlencode,
    "urlize" => |_, _, _| absent("urlize"),
    "wordcount" => texts::wordcount,
    "wordwrap" => |_, _, _| absent("wordwrap"),
    "xmlattr" => texts::xmlattr,
};

pub(super) fn find(name: &str) -> Option<Filter> {
    FILTERS.iter().find(|filter| filter.name == name)
}

/// Applies a filter by its name, as `map` does.
fn apply(runtime: &Interpreter<'_>, name: &Value, value: Value, args: Args) -> Result<Value> {
    match name.as_str().and_then(find) {
        Some(filter) => {
            runtime.budget.steps(1)?;
            (filter.apply)(runtime, value, args)
        }
        None => {
            let name = printing::repr(name, &runtime.budget)?;
            unsupported(format!("No filter named {name}."))
        }
    }
}

/// A filter of Jinja2 that no chat template needs.
fn absent(name: &str) -> Result<Value> {
    unsupported(format!("the filter {} is not supported", repr(name)))
}

/// `soft_str(value)`: keeps strings unchanged.
fn soft_str(runtime: &Interpreter<'_>, value: Value) -> Result<Str> {
    match value {
        Value::Str(text) => {
            runtime.budget.bytes(text.text.len())?;
            Ok(text)
        }
        other => Ok(Str::plain(printing::str(&other, &runtime.budget)?)),
    }
}

fn length(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("length")?;
    Ok(Value::Int(value.length(&runtime.budget)? as i128))
}

fn default(_: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [fallback, boolean] = args.bind("default", ["default_value", "boolean"])?;
    let replaced = value.is_undefined() || (flag(boolean, false) && !value.is_true());
    Ok(if replaced {
        fallback.unwrap_or_else(|| Value::text(""))
    } else {
        value
    })
}

fn attr(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [name] = args.bind("attr", ["name"])?;
    let Some(Value::Str(name)) = name else {
        return fail("attr() takes the name of an attribute");
    };
    if let Value::Undefined(missing) = &value {
        return missing.used();
    }
    runtime.pay_for_attribute(&value, &name.text)?;
    Ok(runtime
        .own_attribute(&value, &name.text)
        .unwrap_or_else(|| {
            let kind = value.type_name();
            Value::undefined(format!(
                "'{kind} object' has no attribute {}",
                repr(&name.text)
            ))
        }))
}

fn string(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("string")?;
    soft_str(runtime, value).map(Value::Str)
}

fn safe(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("safe")?;
    let text = soft_str(runtime, value)?;
    Ok(Value::Str(Str::markup(text.text)))
}

fn escape(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("escape")?;
    match soft_str(runtime, value)? {
        text if text.markup => Ok(Value::Str(text)),
        text => Ok(Value::Str(Str::markup(escape_html(
            &text.text,
            &runtime.budget,
        )?))),
    }
}

fn force_escape(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("forceescape")?;
    let text = soft_str(runtime, value)?;
    let escaped = escape_html(&text.text, &runtime.budget)?;
    Ok(Value::Str(Str::markup(escaped)))
}

/// `json.dumps` with the arguments `transformers` passes on.
fn to_json(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let parameters = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ensure_ascii, indent, separators, sort_keys] = args.bind("tojson", parameters)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(indent)) => Some(indent.text.to_string()),
        Some(width) => match width.as_int() {
            Some(width) if width <= MAX_INDENT => Some(" ".repeat(call::count(width))),
            _ => {
                return fail(format!(
                    "tojson: `indent` must be none, a string or an integer up to {MAX_INDENT}"
                ));
            }
        },
    };
    let separators = match separators {
        None | Some(Value::None) => {
            let between = if indent.is_some() { "," } else { ", " };
            (between.to_owned(), ": ".to_owned())
        }
        Some(pair) => {
            let pair = pair.items(&runtime.budget)?;
            match &pair[..] {
                [Value::Str(item), Value::Str(key)] => {
                    (item.text.to_string(), key.text.to_string())
                }
                _ => return fail("tojson: `separators` must be two strings"),
            }
        }
    };
    let options = JsonOptions {
        indent,
        ensure_ascii: flag(ensure_ascii, false),
        sort_keys: flag(sort_keys, false),
        separators,
    };
    printing::json(&value, &options, &runtime.budget).map(Value::text)
}
