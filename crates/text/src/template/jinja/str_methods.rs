//! The methods of Python's `str`. On `Markup` they return `Markup` and escape what they insert.

use std::collections::HashSet;
use std::sync::Arc;

use super::budget::{Budget, PaidText, SMALL};
use super::call::{self, Args, flag, int, required, text};
use super::error::{Result, fail};
use super::format;
use super::interpreter::Interpreter;
use super::methods::not_ours;
use super::ops;
use super::strings::{cased_bytes, escape_html, is_printable, is_space, lines, push_escaped};
use super::unicode;
use super::value::{Str, Value};

/// The name of a method: several share a function, which tells them apart by it.
type Name = &'static str;
type Method = fn(&Interpreter<'_>, &Str, Name, Args) -> Result<Value>;

const METHODS: &[(Name, Method)] = &[
    ("capitalize", transform),
    ("casefold", transform),
    ("center", justify),
    ("count", count),
    ("encode", absent),
    ("endswith", ends),
    ("expandtabs", expand_tabs),
    ("find", find),
    ("format", |runtime, string, _, args| {
        format::braces(runtime, string, args)
    }),
    ("format_map", format_map),
    ("index", find),
    ("isalnum", quality),
    ("isalpha", quality),
    ("isascii", quality),
    ("isdecimal", quality),
    ("isdigit", quality),
    ("isidentifier", quality),
    ("islower", quality),
    ("isnumeric", quality),
    ("isprintable", quality),
    ("isspace", quality),
    ("istitle", quality),
    ("isupper", quality),
    ("join", join),
    ("ljust", justify),
    ("lower", transform),
    ("lstrip", strip),
    ("maketrans", absent),
    ("partition", partition),
    ("removeprefix", remove),
    ("removesuffix", remove),
    ("replace", replace),
    ("rfind", find),
    ("rindex", find),
    ("rjust", justify),
    ("rpartition", partition),
    ("rsplit", split),
    ("rstrip", strip),
    ("split", split),
    ("splitlines", split_lines),
    ("startswith", ends),
    ("strip", strip),
    ("swapcase", transform),
    ("title", transform),
    ("translate", absent),
    ("upper", transform),
    ("zfill", zfill),
];

/// The name as a constant, if `str` has such a method.
pub(super) fn name(name: &str) -> Option<Name> {
    let method = METHODS.iter().find(|(known, _)| *known == name)?;
    Some(method.0)
}

pub(super) fn call(
    runtime: &Interpreter<'_>,
    string: &Str,
    name: Name,
    args: Args,
) -> Result<Value> {
    runtime
        .budget
        .bytes(string.text.len().saturating_add(SMALL))?;
    match METHODS.iter().find(|(known, _)| *known == name) {
        Some((_, method)) => method(runtime, string, name, args),
        None => absent(runtime, string, name, args),
    }
}

fn absent(_: &Interpreter<'_>, _: &Str, name: Name, _: Args) -> Result<Value> {
    not_ours("str", name)
}

fn transform(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [] = args.places(name)?;
    let text = &*string.text;
    runtime.budget.scans(text.len())?;
    runtime.budget.bytes(cased_bytes(text))?;
    Ok(string.alike(match name {
        "lower" => text.to_lowercase(),
        "upper" => text.to_uppercase(),
        "capitalize" => unicode::capitalized(text),
        "casefold" => unicode::casefolded(text),
        "swapcase" => unicode::case_swapped(text),
        _ => unicode::titled(text),
    }))
}

fn quality(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [] = args.places(name)?;
    let text = &*string.text;
    runtime.budget.steps(text.len())?;
    let all = |holds: fn(char) -> bool| !text.is_empty() && text.chars().all(holds);
    Ok(Value::Bool(match name {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdecimal" => all(unicode::is_decimal),
        "isdigit" => all(unicode::is_digit),
        "isnumeric" => all(unicode::is_numeric),
        "isspace" => all(is_space),
        "isprintable" => text.chars().all(is_printable),
        "islower" => is_cased(text, char::is_lowercase, char::is_uppercase),
        "isupper" => is_cased(text, char::is_uppercase, char::is_lowercase),
        "istitle" => unicode::is_titled(text),
        _ => {
            let part = |c: char| c == '_' || c.is_alphanumeric();
            all(part) && !text.starts_with(char::is_numeric)
        }
    }))
}

/// Whether there are letters of this case and none of the other.
pub(super) fn is_cased(text: &str, wanted: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    text.contains(wanted) && !text.contains(other)
}

fn strip(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [chars] = args.places(name)?;
    let set: Option<HashSet<char>> = match chars {
        None | Some(Value::None) => None,
        Some(chars) => {
            let chars = text(chars, name)?;
            runtime.budget.scans(chars.len())?;
            runtime
                .budget
                .items::<char>(chars.len(), size_of::<char>())?;
            runtime.budget.scans(string.text.len())?;
            Some(chars.chars().collect())
        }
    };
    let strips = |c: char| match &set {
        Some(set) => set.contains(&c),
        None => is_space(c),
    };
    let text = &*string.text;
    Ok(string.alike(match name {
        "lstrip" => text.trim_start_matches(strips),
        "rstrip" => text.trim_end_matches(strips),
        _ => text.trim_matches(strips),
    }))
}

fn split(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [separator, limit] = args.bind(name, ["sep", "maxsplit"])?;
    let limit = usize::try_from(int(limit, -1)?).unwrap_or(usize::MAX);
    let from_right = name == "rsplit";
    let whole = &*string.text;
    let pieces = limit.saturating_add(1);
    let parts: Vec<&str> = match separator {
        None | Some(Value::None) => {
            runtime.budget.scans(whole.len())?;
            let words_found = whole.split(is_space).filter(|word| !word.is_empty());
            pay_for_parts(words_found.take(pieces).count(), &runtime.budget)?;
            if from_right {
                words_from_right(whole, limit)
            } else {
                words(whole, limit)
            }
        }
        Some(separator) => {
            let separator = text(separator, name)?;
            if separator.is_empty() {
                return fail("empty separator");
            }
            let found = whole.matches(&*separator).take(limit).count();
            pay_for_parts(found + 1, &runtime.budget)?;
            if from_right {
                let mut parts: Vec<_> = whole.rsplitn(pieces, &*separator).collect();
                parts.reverse();
                parts
            } else {
                whole.splitn(pieces, &*separator).collect()
            }
        }
    };
    list(string, parts)
}

/// Pays for the parts of a text, each of which becomes a text of its own.
fn pay_for_parts(count: usize, budget: &Budget) -> Result<()> {
    budget.steps(count)?;
    budget.items::<Value>(count, SMALL)
}

fn list(string: &Str, parts: Vec<&str>) -> Result<Value> {
    Value::list(parts.into_iter().map(|part| string.alike(part)).collect())
}

/// Splits at white space, at most `limit` times. The rest keeps its trailing space.
fn words(text: &str, limit: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = if words.len() < limit {
            rest.find(is_space).unwrap_or(rest.len())
        } else {
            rest.len()
        };
        words.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    words
}

fn words_from_right(text: &str, limit: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        let start = if words.len() < limit {
            rest.trim_end_matches(|c| !is_space(c)).len()
        } else {
            0
        };
        words.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    words.reverse();
    words
}

fn split_lines(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [keep_ends] = args.bind(name, ["keepends"])?;
    runtime.budget.scans(string.text.len())?;
    let lines = lines(&string.text, flag(keep_ends, false), &runtime.budget)?;
    pay_for_parts(lines.len(), &runtime.budget)?;
    list(string, lines)
}

fn partition(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [separator] = args.places(name)?;
    let separator = text(required(separator, name, "sep")?, name)?;
    pay_for_parts(3, &runtime.budget)?;
    runtime.budget.bytes(separator.len())?;
    if separator.is_empty() {
        return fail("empty separator");
    }
    let whole = &*string.text;
    let from_right = name == "rpartition";
    let found = if from_right {
        whole.rsplit_once(&*separator)
    } else {
        whole.split_once(&*separator)
    };
    let parts = match found {
        Some((before, after)) => [before, &separator, after],
        None if from_right => ["", "", whole],
        None => [whole, "", ""],
    };
    Value::tuple(parts.into_iter().map(|part| string.alike(part)).collect())
}

fn join(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [items] = args.places(name)?;
    let mut out = PaidText::new(&runtime.budget);
    let items = required(items, name, "iterable")?.items(&runtime.budget)?;
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&string.text)?;
        }
        match item {
            Value::Str(item) if string.markup && !item.markup => {
                push_escaped(&mut out, &item.text)?;
            }
            Value::Str(item) => out.push_str(&item.text)?,
            other => {
                let kind = other.type_name();
                return fail(format!(
                    "sequence item {index}: expected str instance, {kind} found"
                ));
            }
        }
    }
    Ok(string.alike(out.finish()))
}

fn replace(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [old, new, limit] = args.places(name)?;
    let old = text(required(old, name, "old")?, name)?;
    let new = required(new, name, "new")?;
    let new = inserted(string, new, name, &runtime.budget)?;
    let limit = usize::try_from(int(limit, -1)?).unwrap_or(usize::MAX);
    replaced(runtime, &string.text, &old, &new, limit).map(|text| string.alike(text))
}

/// `text.replace(old, new, limit)`, paid for before it is allocated.
pub(super) fn replaced(
    runtime: &Interpreter<'_>,
    text: &str,
    old: &str,
    new: &str,
    limit: usize,
) -> Result<String> {
    runtime.budget.reads(text.len().saturating_add(old.len()))?;
    let found = text.matches(old).take(limit).count();
    runtime
        .budget
        .bytes(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, limit))
}

/// Text that a method puts in, escaped for `Markup`.
fn inserted(string: &Str, value: Value, name: &str, budget: &Budget) -> Result<Arc<str>> {
    match value {
        Value::Str(new) if string.markup && !new.markup => {
            Ok(escape_html(&new.text, budget)?.into())
        }
        value => text(value, name),
    }
}

fn remove(_: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [part] = args.places(name)?;
    let part = text(required(part, name, "prefix or suffix")?, name)?;
    let whole = &*string.text;
    let left = match name {
        "removeprefix" => whole.strip_prefix(&*part),
        _ => whole.strip_suffix(&*part),
    };
    Ok(string.alike(left.unwrap_or(whole)))
}

/// The part of a text between two character positions, and its start.
fn window(text: &str, start: Option<Value>, stop: Option<Value>) -> Result<Option<(&str, usize)>> {
    if start.is_none() && stop.is_none() {
        return Ok(Some((text, 0)));
    }
    let length = text.chars().count() as i128;
    let bound = |value: Option<Value>, default: i128| -> Result<i128> {
        let at = match value {
            None | Some(Value::None) => default,
            Some(value) => int(Some(value), 0)?,
        };
        Ok(if at < 0 {
            at.saturating_add(length).max(0)
        } else {
            at
        })
    };
    let (start, stop) = (bound(start, 0)?, bound(stop, length)?.min(length));
    if start > stop {
        return Ok(None);
    }
    let place = |at: i128| {
        let mut places = text.char_indices().map(|(place, _)| place);
        places.nth(at as usize).unwrap_or(text.len())
    };
    Ok(Some((&text[place(start)..place(stop)], start as usize)))
}

fn find(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [part, start, stop] = args.places(name)?;
    let part = text(required(part, name, "sub")?, name)?;
    runtime.budget.reads(part.len())?;
    let found = window(&string.text, start, stop)?.and_then(|(window, offset)| {
        let at = match name {
            "rfind" | "rindex" => window.rfind(&*part),
            _ => window.find(&*part),
        };
        Some(offset + window[..at?].chars().count())
    });
    match found {
        Some(at) => Ok(Value::Int(at as i128)),
        None if name.ends_with("index") => fail("substring not found"),
        None => Ok(Value::Int(-1)),
    }
}

fn count(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [part, start, stop] = args.places(name)?;
    let part = text(required(part, name, "sub")?, name)?;
    runtime.budget.reads(part.len())?;
    let window = window(&string.text, start, stop)?;
    let count = window.map_or(0, |(window, _)| window.matches(&*part).count());
    Ok(Value::Int(count as i128))
}

fn ends(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [part, start, stop] = args.places(name)?;
    let parts = match required(part, name, "prefix or suffix")? {
        Value::Tuple(seq) => {
            runtime.budget.items::<Value>(seq.items.len(), 0)?;
            seq.items.clone()
        }
        part @ Value::Str(_) => vec![part],
        other => {
            let kind = other.type_name();
            return fail(format!(
                "{name} first arg must be str or a tuple of str, not {kind}"
            ));
        }
    };
    let window = window(&string.text, start, stop)?;
    for part in parts {
        let part = text(part, name)?;
        runtime.budget.steps(1)?;
        runtime.budget.reads(part.len())?;
        let holds = window.is_some_and(|(window, _)| match name {
            "startswith" => window.starts_with(&*part),
            _ => window.ends_with(&*part),
        });
        if holds {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn justify(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [width, fill] = args.places(name)?;
    let width = int(Some(required(width, name, "width")?), 0)?;
    let fill = match fill {
        Some(fill) => inserted(string, fill, name, &runtime.budget)?,
        None => Arc::from(" "),
    };
    if fill.chars().count() != 1 {
        return fail("The fill character must be exactly one character long");
    }
    let length = string.text.chars().count();
    let missing = call::count(width).saturating_sub(length);
    // The padding is built, and then copied beside the text.
    let padding = missing.saturating_mul(fill.len()).saturating_mul(2);
    runtime.budget.bytes(padding)?;
    let before = match name {
        "ljust" => 0,
        "rjust" => missing,
        // The extra space goes left if the width is odd too.
        _ => missing / 2 + (missing & (width as usize) & 1),
    };
    let (left, right) = (fill.repeat(before), fill.repeat(missing - before));
    Ok(string.alike(format!("{left}{}{right}", string.text)))
}

fn zfill(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [width] = args.places(name)?;
    let width = int(Some(required(width, name, "width")?), 0)?;
    let length = string.text.chars().count();
    let missing = call::count(width).saturating_sub(length);
    runtime.budget.bytes(missing.saturating_mul(2))?;
    let digits = string.text.strip_prefix(['+', '-']).unwrap_or(&string.text);
    let sign = &string.text[..string.text.len() - digits.len()];
    Ok(string.alike(format!("{sign}{}{digits}", "0".repeat(missing))))
}

fn expand_tabs(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [size] = args.bind(name, ["tabsize"])?;
    let size = usize::try_from(int(size, 8)?).unwrap_or(0);
    let mut out = PaidText::new(&runtime.budget);
    let mut column = 0;
    for c in string.text.chars() {
        match c {
            '\t' if size == 0 => {}
            '\t' => {
                let spaces = size - column % size;
                out.push_repeated(" ", spaces)?;
                column += spaces;
            }
            c => {
                out.push(c)?;
                column = if matches!(c, '\n' | '\r') {
                    0
                } else {
                    column + 1
                };
            }
        }
    }
    Ok(string.alike(out.finish()))
}

fn format_map(runtime: &Interpreter<'_>, string: &Str, name: Name, args: Args) -> Result<Value> {
    let [Some(Value::Dict(mapping))] = args.places(name)? else {
        return fail("format_map() takes a mapping");
    };
    runtime.budget.items::<(Value, Value)>(mapping.len(), 0)?;
    let mut args = Args::default();
    for (key, value) in mapping.iter() {
        if let Value::Str(key) = key {
            args.keyword.push((key.text.clone(), value.clone()));
        }
    }
    format::braces(runtime, string, args)
}

/// `value[::-1]` of a string.
pub(super) fn reversed(runtime: &Interpreter<'_>, string: &Str) -> Result<Value> {
    let backwards = [None, None, Some(Value::Int(-1))];
    ops::slice(&Value::Str(string.clone()), backwards, &runtime.budget)
}
