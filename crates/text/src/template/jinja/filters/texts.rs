//! Filters that make text.

use std::fmt::Write as _;
use std::rc::Rc;

use crate::template::jinja::call::{self, Args, flag, required};
use crate::template::jinja::dict::Dict;
use crate::template::jinja::error::{Result, fail};
use crate::template::jinja::format::percent;
use crate::template::jinja::interpreter::Interpreter;
use crate::template::jinja::printing;
use crate::template::jinja::str_methods;
use crate::template::jinja::strings::{escape_html, is_space, lines};
use crate::template::jinja::value::{Str, Value};

use super::soft_str;

/// A filter that is a method of `str`.
pub(super) fn method(
    runtime: &Interpreter<'_>,
    value: Value,
    name: &'static str,
    args: Args,
) -> Result<Value> {
    str_methods::call(runtime, &soft_str(runtime, value)?, name, args)
}

pub(super) fn center(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [width] = args.bind("center", ["width"])?;
    let width = width.unwrap_or(Value::Int(80));
    method(runtime, value, "center", Args::from_positional(vec![width]))
}

pub(super) fn join(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
    let items = match attribute {
        Some(attribute) if !matches!(attribute, Value::None) => {
            let by = Args {
                positional: Vec::new(),
                keyword: vec![("attribute".into(), attribute)],
            };
            // Unlike `map`, joining requires an iterable even if it is empty.
            let items = Value::list(value.items(&runtime.budget)?)?;
            super::select::map(runtime, items, by)?
        }
        _ => value,
    };
    let separator = match separator {
        Some(separator) => printing::str(&separator, &runtime.budget)?,
        None => String::new(),
    };
    let mut out = String::new();
    for (index, item) in items.items(&runtime.budget)?.iter().enumerate() {
        if index > 0 {
            runtime.budget.bytes(separator.len())?;
            out.push_str(&separator);
        }
        out.push_str(&printing::str(item, &runtime.budget)?);
    }
    Ok(Value::text(out))
}

pub(super) fn replace(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [old, new, count] = args.bind("replace", ["old", "new", "count"])?;
    let text = |value: Value| printing::str(&value, &runtime.budget);
    let old = text(required(old, "replace", "old")?)?;
    let new = text(required(new, "replace", "new")?)?;
    let count = match count {
        None | Some(Value::None) => usize::MAX,
        count => usize::try_from(call::int(count, -1)?).unwrap_or(usize::MAX),
    };
    let replaced = str_methods::replaced(runtime, &text(value)?, &old, &new, count)?;
    Ok(Value::text(replaced))
}

/// Capitalizes every word. Words start after spaces, `-`, `(`, `{`, `[` and `<`.
pub(super) fn title(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("title")?;
    let text = soft_str(runtime, value)?;
    let mut out = String::with_capacity(text.text.len());
    let mut starts = true;
    for c in text.text.chars() {
        if starts {
            out.extend(c.to_uppercase())
        } else {
            out.extend(c.to_lowercase())
        }
        starts = is_space(c) || "-({[<".contains(c);
    }
    runtime.budget.bytes(out.len())?;
    Ok(Value::text(out))
}

pub(super) fn indent(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let text = match value {
        Value::Str(text) => text,
        Value::Undefined(missing) => return missing.used(),
        other => return fail(format!("'{}' cannot be indented", other.type_name())),
    };
    let indention = match width {
        Some(Value::Str(indention)) => indention.text.to_string(),
        width => {
            let width = call::count(call::int(width, 4)?);
            runtime.budget.bytes(width)?;
            " ".repeat(width)
        }
    };
    let (first, blank) = (flag(first, false), flag(blank, false));
    let with_end = format!("{}\n", text.text);
    let mut out = String::new();
    for (index, line) in lines(&with_end, false).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let indents = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if indents {
            runtime.budget.bytes(indention.len())?;
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    runtime.budget.bytes(out.len())?;
    Ok(text.alike(out))
}

pub(super) fn truncate(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let parameters = ["length", "killwords", "end", "leeway"];
    let [length, kill_words, end, leeway] = args.bind("truncate", parameters)?;
    let Value::Str(text) = value else {
        return fail(format!("'{}' cannot be truncated", value.type_name()));
    };
    let end = match end {
        Some(end) => call::text(end, "truncate")?,
        None => "...".into(),
    };
    let limit = |value, default| Ok(usize::try_from(call::int(value, default)?).unwrap_or(0));
    let (length, leeway) = (limit(length, 255)?, limit(leeway, 5)?);
    let Some(kept) = length.checked_sub(end.chars().count()) else {
        return fail("truncate: `length` must not be below the length of `end`");
    };
    if text.text.chars().count() <= length.saturating_add(leeway) {
        return Ok(Value::Str(text));
    }
    let cut: String = text.text.chars().take(kept).collect();
    let cut = match (flag(kill_words, false), cut.rsplit_once(' ')) {
        (false, Some((words, _))) => words,
        _ => &cut,
    };
    runtime.budget.bytes(cut.len())?;
    Ok(text.alike(if text.markup {
        format!("{cut}{}", escape_html(&end))
    } else {
        format!("{cut}{end}")
    }))
}

pub(super) fn format(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let text = soft_str(runtime, value)?;
    match (args.positional.is_empty(), args.keyword.is_empty()) {
        (false, false) => fail("can't handle positional and keyword arguments at the same time"),
        (_, true) => percent(&text, &Value::tuple(args.positional)?, &runtime.budget),
        (true, false) => {
            let mut named = Dict::default();
            for (name, value) in args.keyword {
                named.insert(Value::text(name), value, &runtime.budget)?;
            }
            percent(&text, &Value::Dict(Rc::new(named)), &runtime.budget)
        }
    }
}

pub(super) fn wordcount(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("wordcount")?;
    let text = soft_str(runtime, value)?;
    let words = text.text.split(|c: char| c != '_' && !c.is_alphanumeric());
    let count = words.filter(|word| !word.is_empty()).count();
    Ok(Value::Int(count as i128))
}

pub(super) fn urlencode(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("urlencode")?;
    let text = |value: &Value| printing::str(value, &runtime.budget);
    if matches!(value, Value::Str(_)) || !value.is_iterable() {
        return Ok(Value::text(quoted(&text(&value)?, false)));
    }
    let pairs = match &value {
        Value::Dict(dict) => dict.view(crate::template::jinja::dict::View::Items)?,
        other => other.items(&runtime.budget)?,
    };
    let mut fields = Vec::with_capacity(pairs.len());
    for pair in pairs {
        match &pair.items(&runtime.budget)?[..] {
            [key, value] => {
                let (key, value) = (text(key)?, text(value)?);
                fields.push(format!("{}={}", quoted(&key, true), quoted(&value, true)));
            }
            _ => return fail("urlencode takes pairs of a key and a value"),
        }
    }
    Ok(Value::text(fields.join("&")))
}

/// Percent-encodes. In a query a space is `+` and a slash is encoded.
fn quoted(text: &str, in_query: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'/' if !in_query => out.push('/'),
            b' ' if in_query => out.push('+'),
            b'_' | b'.' | b'-' | b'~' => out.push(byte as char),
            byte if byte.is_ascii_alphanumeric() => out.push(byte as char),
            byte => {
                // Writing to a string cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

pub(super) fn xmlattr(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [autospace] = args.bind("xmlattr", ["autospace"])?;
    let Value::Dict(attributes) = value else {
        return fail("xmlattr takes a mapping");
    };
    let escaped = |value: &Value| -> Result<String> {
        match value {
            Value::Str(Str { text, markup: true }) => Ok(text.to_string()),
            other => Ok(escape_html(&printing::str(other, &runtime.budget)?)),
        }
    };
    let mut fields = Vec::new();
    for (key, value) in attributes.iter() {
        if matches!(value, Value::None | Value::Undefined(_)) {
            continue;
        }
        let invalid = |c: char| c.is_ascii_whitespace() || "\u{b}/>=".contains(c);
        if key.as_str().is_none_or(|key| key.contains(invalid)) {
            return fail("xmlattr: invalid character in attribute name");
        }
        fields.push(format!("{}=\"{}\"", escaped(key)?, escaped(value)?));
    }
    let space = if flag(autospace, true) && !fields.is_empty() {
        " "
    } else {
        ""
    };
    Ok(Value::text(format!("{space}{}", fields.join(" "))))
}
