//! Filters that make text.

use std::rc::Rc;

use crate::template::jinja::budget::{Budget, PaidText};
use crate::template::jinja::call::{self, Args, flag, required};
use crate::template::jinja::dict::{Dict, View};
use crate::template::jinja::error::{Result, fail};
use crate::template::jinja::format::percent;
use crate::template::jinja::interpreter::Interpreter;
use crate::template::jinja::printing;
use crate::template::jinja::str_methods;
use crate::template::jinja::strings::{cased_bytes, escape_html, is_space, lines, push_escaped};
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
    let mut out = PaidText::new(&runtime.budget);
    for (index, item) in items.items(&runtime.budget)?.iter().enumerate() {
        if index > 0 {
            out.push_str(&separator)?;
        }
        match item.as_str() {
            Some(text) => out.push_str(text)?,
            None => out.push_str(&printing::str(item, &runtime.budget)?)?,
        }
    }
    Ok(Value::text(out.finish()))
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
    runtime.budget.scans(text.text.len())?;
    runtime.budget.bytes(cased_bytes(&text.text))?;
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
        Some(Value::Str(indention)) => {
            runtime.budget.bytes(indention.text.len())?;
            indention.text.to_string()
        }
        width => {
            let width = call::count(call::int(width, 4)?);
            runtime.budget.bytes(width)?;
            " ".repeat(width)
        }
    };
    let (first, blank) = (flag(first, false), flag(blank, false));
    runtime.budget.bytes(text.text.len() + 1)?;
    let with_end = format!("{}\n", text.text);
    let mut out = PaidText::new(&runtime.budget);
    let lines = lines(&with_end, false, &runtime.budget)?;
    for (index, line) in lines.into_iter().enumerate() {
        if index > 0 {
            out.push('\n')?;
        }
        let indents = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if indents {
            out.push_str(&indention)?;
        }
        out.push_str(line)?;
    }
    Ok(text.alike(out.finish()))
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
    runtime.budget.scans(text.text.len())?;
    runtime
        .budget
        .bytes(text.text.len().min(length.saturating_mul(4)))?;
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
    runtime.budget.bytes(cut.len().saturating_add(end.len()))?;
    Ok(text.alike(if text.markup {
        format!("{cut}{}", escape_html(&end, &runtime.budget)?)
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
    runtime.budget.scans(text.text.len())?;
    let words = text.text.split(|c: char| c != '_' && !c.is_alphanumeric());
    let count = words.filter(|word| !word.is_empty()).count();
    Ok(Value::Int(count as i128))
}

pub(super) fn urlencode(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("urlencode")?;
    let text = |value: &Value| printing::str(value, &runtime.budget);
    let mut out = PaidText::new(&runtime.budget);
    if matches!(value, Value::Str(_)) || !value.is_iterable() {
        push_quoted(&mut out, &text(&value)?, false)?;
        return Ok(Value::text(out.finish()));
    }
    let pairs = match &value {
        Value::Dict(dict) => dict.view(View::Items, &runtime.budget)?,
        other => other.items(&runtime.budget)?,
    };
    for (index, pair) in pairs.iter().enumerate() {
        let [key, value] = &pair.items(&runtime.budget)?[..] else {
            return fail("urlencode takes pairs of a key and a value");
        };
        if index > 0 {
            out.push('&')?;
        }
        push_quoted(&mut out, &text(key)?, true)?;
        out.push('=')?;
        push_quoted(&mut out, &text(value)?, true)?;
    }
    Ok(Value::text(out.finish()))
}

/// Percent-encodes. In a query a space is `+` and a slash is encoded.
fn push_quoted(out: &mut PaidText<'_>, text: &str, in_query: bool) -> Result<()> {
    for byte in text.bytes() {
        match byte {
            b'/' if !in_query => out.push('/')?,
            b' ' if in_query => out.push('+')?,
            b'_' | b'.' | b'-' | b'~' => out.push(byte as char)?,
            byte if byte.is_ascii_alphanumeric() => out.push(byte as char)?,
            byte => out.push_str(&format!("%{byte:02X}"))?,
        }
    }
    Ok(())
}

pub(super) fn xmlattr(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [autospace] = args.bind("xmlattr", ["autospace"])?;
    let Value::Dict(attributes) = value else {
        return fail("xmlattr takes a mapping");
    };
    let mut out = PaidText::new(&runtime.budget);
    for (key, value) in attributes.iter() {
        if matches!(value, Value::None | Value::Undefined(_)) {
            continue;
        }
        let invalid = |c: char| c.is_ascii_whitespace() || "\u{b}/>=".contains(c);
        if key.as_str().is_none_or(|key| key.contains(invalid)) {
            return fail("xmlattr: invalid character in attribute name");
        }
        out.push(' ')?;
        push_attribute(&mut out, key, &runtime.budget)?;
        out.push_str("=\"")?;
        push_attribute(&mut out, value, &runtime.budget)?;
        out.push('"')?;
    }
    let text = out.finish();
    Ok(Value::text(if flag(autospace, true) {
        &text
    } else {
        text.trim_start()
    }))
}

/// A name or a value, escaped unless it is `Markup`.
fn push_attribute(out: &mut PaidText<'_>, value: &Value, budget: &Budget) -> Result<()> {
    match value {
        Value::Str(Str { text, markup: true }) => out.push_str(text),
        other => push_escaped(out, &printing::str(other, budget)?),
    }
}
