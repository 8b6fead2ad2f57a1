//! `'{}'.format(value)`

use super::{Spec, digits, float, integer, pad_number, pad_text, pay_for_field};
use crate::template::jinja::budget::{Budget, PaidText};
use crate::template::jinja::call::Args;
use crate::template::jinja::error::{Result, fail, unsupported};
use crate::template::jinja::interpreter::Interpreter;
use crate::template::jinja::ops::Number;
use crate::template::jinja::printing;
use crate::template::jinja::strings::escape_html;
use crate::template::jinja::value::{Str, Value};

/// `text.format(…)`
pub(in crate::template::jinja) fn braces(
    runtime: &Interpreter<'_>,
    text: &Str,
    args: Args,
) -> Result<Value> {
    let mut out = PaidText::new(&runtime.budget);
    let mut automatic = 0;
    let mut rest = &*text.text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at])?;
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace)?;
            rest = after;
            continue;
        }
        if brace == "}" {
            return fail("Single '}' encountered in format string");
        }
        let Some(end) = field_end(rest) else {
            return fail("expected '}' before end of string");
        };
        let piece = brace_field(runtime, &rest[..end], &args, &mut automatic, text.markup)?;
        out.push_str(&piece)?;
        rest = &rest[end + 1..];
    }
    out.push_str(rest)?;
    Ok(text.alike(out.finish()))
}

/// The end of the field that starts before `text`. Its format may contain fields.
fn field_end(text: &str) -> Option<usize> {
    let mut open = 0;
    text.char_indices().find_map(|(at, c)| match c {
        '{' => {
            open += 1;
            None
        }
        '}' if open == 0 => Some(at),
        '}' => {
            open -= 1;
            None
        }
        _ => None,
    })
}

fn brace_field(
    runtime: &Interpreter<'_>,
    field: &str,
    args: &Args,
    automatic: &mut usize,
    markup: bool,
) -> Result<String> {
    let (reference, spec) = field.split_once(':').unwrap_or((field, ""));
    let (path, conversion) = match reference.split_once('!') {
        Some((path, conversion)) => (path, Some(conversion)),
        None => (reference, None),
    };
    if spec.contains(['{', '}']) {
        return unsupported("fields inside a field's format are not supported");
    }
    let value = brace_value(runtime, path, args, automatic)?;
    let value = match conversion {
        None => value,
        Some("s") => Value::text(printing::str(&value, &runtime.budget)?),
        Some("r") => Value::text(printing::repr(&value, &runtime.budget)?),
        Some(other) => return unsupported(format!("the conversion `!{other}` is not supported")),
    };
    let formatted = format_value(&value, spec, &runtime.budget)?;
    let keeps = !markup || matches!(&value, Value::Str(text) if text.markup);
    if keeps {
        Ok(formatted)
    } else {
        escape_html(&formatted, &runtime.budget)
    }
}

/// The value a field names: `0`, `name`, `name.attribute`, `name[item]`.
fn brace_value(
    runtime: &Interpreter<'_>,
    path: &str,
    args: &Args,
    automatic: &mut usize,
) -> Result<Value> {
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (first, mut rest) = path.split_at(end);
    let index = if first.is_empty() {
        *automatic += 1;
        Some(*automatic - 1)
    } else {
        first.parse::<usize>().ok()
    };
    let mut value = match index {
        Some(index) => match args.positional.get(index) {
            Some(value) => value.clone(),
            None => {
                return fail(format!(
                    "Replacement index {index} out of range for positional args tuple"
                ));
            }
        },
        None => match named(args, first, &runtime.budget)? {
            Some(value) => value,
            None => return fail(format!("KeyError: '{first}'")),
        },
    };
    while !rest.is_empty() {
        if let Some(attribute) = rest.strip_prefix('.') {
            let end = attribute.find(['.', '[']).unwrap_or(attribute.len());
            value = runtime.attribute(&value, &attribute[..end])?;
            rest = &attribute[end..];
        } else {
            let Some((item, after)) = rest[1..].split_once(']') else {
                return fail("Missing ']' in format string");
            };
            let key = match item.parse() {
                Ok(index) => Value::Int(index),
                Err(_) => Value::text(item),
            };
            value = runtime.item(&value, &key)?;
            rest = after;
        }
    }
    Ok(value)
}

/// A named argument.
fn named(args: &Args, name: &str, budget: &Budget) -> Result<Option<Value>> {
    budget.scans(args.keyword.len())?;
    let found = args.keyword.iter().find(|(known, _)| &**known == name);
    Ok(found.map(|(_, value)| value.clone()))
}

/// `format(value, spec)`
fn format_value(value: &Value, spec: &str, budget: &Budget) -> Result<String> {
    if spec.is_empty() {
        return printing::str(value, budget);
    }
    let spec = parse_spec(spec)?;
    pay_for_field(value.as_str().unwrap_or_default(), &spec, budget)?;
    match (value, Number::from_value(value)) {
        (Value::Str(text), _) => match spec.kind {
            None | Some('s') if spec.align != Some('=') => Ok(pad_text(&text.text, &spec)),
            _ => fail("this format is not one of strings"),
        },
        (_, Some(number)) => {
            let as_float = matches!(spec.kind, Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%'));
            let text = match number {
                Number::Int(number) if !as_float => integer(number, &spec)?,
                number => float(number.as_float(), &spec)?,
            };
            Ok(pad_number(&text, &spec))
        }
        (other, None) => {
            let kind = other.type_name();
            fail(format!(
                "unsupported format string passed to {kind}.__format__"
            ))
        }
    }
}

fn parse_spec(text: &str) -> Result<Spec> {
    let mut spec = Spec::default();
    let mut rest = text.chars();
    let align = |c: Option<char>| c.filter(|c| "<>^=".contains(*c));
    let mut ahead = text.chars();
    let (first, second) = (ahead.next(), ahead.next());
    if align(second).is_some() {
        spec.fill = first;
        spec.align = second;
        rest = ahead;
    } else if align(first).is_some() {
        spec.align = first;
        rest.next();
    }
    let mut accept = |wanted: &str| {
        let next = rest.as_str().chars().next();
        let found = next.filter(|c| wanted.contains(*c));
        if found.is_some() {
            rest.next();
        }
        found
    };
    spec.sign = accept("+- ");
    spec.alternate = accept("#").is_some();
    if accept("0").is_some() && spec.align.is_none() {
        spec.fill = Some('0');
        spec.align = Some('=');
    }
    spec.width = digits(&mut rest)?.unwrap_or(0);
    if let Some(grouping @ (',' | '_')) = rest.as_str().chars().next() {
        rest.next();
        spec.grouping = Some(grouping);
    }
    if rest.as_str().starts_with('.') {
        rest.next();
        match digits(&mut rest)? {
            Some(precision) => spec.precision = Some(precision),
            None => return fail("Format specifier missing precision"),
        }
    }
    spec.kind = rest.next();
    match rest.next() {
        None => Ok(spec),
        Some(_) => fail(format!("Invalid format specifier '{text}'")),
    }
}
