//! Python's two ways to format: `'%s' % value` and `'{}'.format(value)`.

use super::budget::Budget;
use super::call::Args;
use super::error::{Result, fail, unsupported};
use super::interpreter::Interpreter;
use super::ops::Number;
use super::printing;
use super::strings::escape_html;
use super::value::{Dict, Str, Value};

/// The widest field a template may ask for.
const MAX_WIDTH: usize = 1 << 16;

/// A field's format: `[[fill]align][sign][#][0][width][,][.precision][type]`.
#[derive(Debug, Clone, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// `text % arguments`
pub(super) fn percent(text: &Str, arguments: &Value, budget: &Budget) -> Result<Value> {
    let mut source = PercentArguments {
        positional: match arguments {
            Value::Tuple(seq) => seq.items.clone(),
            other => vec![other.clone()],
        },
        named: match arguments {
            Value::Dict(dict) => Some(dict),
            _ => None,
        },
        next: 0,
    };
    let mut out = String::new();
    let mut rest = text.text.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let piece = percent_field(&mut rest, &mut source, text.markup, budget)?;
        budget.bytes(piece.len())?;
        out.push_str(&piece);
    }
    let all_used = source.next >= source.positional.len();
    // What has items may be a mapping, whose entries need not all be used.
    let is_mapping = matches!(
        arguments,
        Value::Dict(_) | Value::List(_) | Value::Undefined(_)
    );
    if !all_used && !(is_mapping && source.next == 0) {
        return fail("not all arguments converted during string formatting");
    }
    budget.bytes(out.len())?;
    Ok(text.alike(out))
}

struct PercentArguments<'a> {
    positional: Vec<Value>,
    named: Option<&'a Dict>,
    next: usize,
}

impl PercentArguments<'_> {
    fn next(&mut self) -> Result<Value> {
        let value = self.positional.get(self.next).cloned();
        self.next += 1;
        match value {
            Some(value) => Ok(value),
            None => fail("not enough arguments for format string"),
        }
    }

    fn named(&self, key: &str) -> Result<Value> {
        match self.named {
            None => fail("format requires a mapping"),
            Some(dict) => match dict.get_str(key) {
                Some(value) => Ok(value.clone()),
                None => fail(format!("KeyError: '{key}'")),
            },
        }
    }
}

/// One field after its `%`.
fn percent_field(
    rest: &mut std::str::Chars<'_>,
    source: &mut PercentArguments<'_>,
    markup: bool,
    budget: &Budget,
) -> Result<String> {
    let mut spec = Spec::default();
    let mut key = None;
    if rest.as_str().starts_with('(') {
        rest.next();
        key = Some(rest.by_ref().take_while(|c| *c != ')').collect::<String>());
    }
    let (mut left, mut zero) = (false, false);
    while let Some(flag @ ('-' | '+' | ' ' | '#' | '0')) = rest.as_str().chars().next() {
        rest.next();
        match flag {
            '-' => left = true,
            '0' => zero = true,
            '#' => spec.alternate = true,
            sign => spec.sign = Some(sign),
        }
    }
    spec.width = match rest.as_str().starts_with('*') {
        true => return unsupported("`*` as a width in `%` formats is not supported"),
        false => digits(rest)?.unwrap_or(0),
    };
    if rest.as_str().starts_with('.') {
        rest.next();
        spec.precision = Some(digits(rest)?.unwrap_or(0));
    }
    let Some(kind) = rest.next() else {
        return fail("incomplete format");
    };
    if kind == '%' {
        return Ok("%".to_owned());
    }
    let value = match key {
        Some(key) => source.named(&key)?,
        None => source.next()?,
    };
    let numeric = !matches!(kind, 's' | 'r' | 'a' | 'c');
    spec.align = Some(if left { '<' } else { '>' });
    if zero && numeric && !left {
        spec.fill = Some('0');
        spec.align = Some('=');
    }
    percent_value(&value, kind, spec, markup, budget)
}

fn percent_value(
    value: &Value,
    kind: char,
    mut spec: Spec,
    markup: bool,
    budget: &Budget,
) -> Result<String> {
    let escaped = |text: String| match markup {
        true => escape_html(&text),
        false => text,
    };
    match kind {
        's' => {
            let text = printing::str(value, budget)?;
            let keeps = matches!(value, Value::Str(text) if text.markup);
            let text = if keeps { text } else { escaped(text) };
            Ok(pad_text(&text, &spec))
        }
        'r' => Ok(pad_text(&escaped(printing::repr(value, budget)?), &spec)),
        'd' | 'i' | 'u' => {
            spec.kind = Some('d');
            let number = match Number::of(value) {
                Some(Number::Int(number)) => number,
                Some(Number::Float(number)) if number.is_finite() => number.trunc() as i128,
                _ => {
                    let name = value.type_name();
                    return fail(format!(
                        "%{kind} format: a real number is required, not {name}"
                    ));
                }
            };
            // A precision means digits here.
            let digits = spec.precision.take();
            let text = integer(number, &spec)?;
            let padded = match (digits, text.strip_prefix('-')) {
                (Some(digits), Some(text)) => format!("-{text:0>digits$}"),
                (Some(digits), None) => format!("{text:0>digits$}"),
                (None, _) => text,
            };
            Ok(pad_number(&padded, &spec))
        }
        'x' | 'X' | 'o' => match value.as_int() {
            Some(number) => {
                spec.kind = Some(kind);
                Ok(pad_number(&integer(number, &spec)?, &spec))
            }
            None => {
                let name = value.type_name();
                fail(format!(
                    "%{kind} format: an integer is required, not {name}"
                ))
            }
        },
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => match Number::of(value) {
            Some(number) => {
                spec.kind = Some(kind);
                Ok(pad_number(&float(number.as_float(), &spec)?, &spec))
            }
            None => fail(format!("must be real number, not {}", value.type_name())),
        },
        other => unsupported(format!("the format `%{other}` is not supported")),
    }
}

fn digits(rest: &mut std::str::Chars<'_>) -> Result<Option<usize>> {
    let text = rest.as_str();
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    if length == 0 {
        return Ok(None);
    }
    *rest = text[length..].chars();
    match text[..length].parse() {
        Ok(number) if number <= MAX_WIDTH => Ok(Some(number)),
        _ => fail(format!("a format's width is above {MAX_WIDTH}")),
    }
}

/// `text.format(…)`
pub(super) fn braces(runtime: &Interpreter<'_>, text: &Str, args: Args) -> Result<Value> {
    let mut out = String::new();
    let mut automatic = 0;
    let mut rest = &*text.text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
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
        runtime.budget.bytes(piece.len())?;
        out.push_str(&piece);
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    runtime.budget.bytes(out.len())?;
    Ok(text.alike(out))
}

/// Where the field ends that began before `text`; fields may stand in its format.
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
    Ok(if keeps {
        formatted
    } else {
        escape_html(&formatted)
    })
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
    let index = match first.is_empty() {
        true => {
            *automatic += 1;
            Some(*automatic - 1)
        }
        false => first.parse::<usize>().ok(),
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
        None => match args.keyword.iter().find(|(name, _)| &**name == first) {
            Some((_, value)) => value.clone(),
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

/// `format(value, spec)`
fn format_value(value: &Value, spec: &str, budget: &Budget) -> Result<String> {
    if spec.is_empty() {
        return printing::str(value, budget);
    }
    let spec = parse_spec(spec)?;
    match (value, Number::of(value)) {
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

/// An integer's digits with sign, prefix and grouping.
fn integer(number: i128, spec: &Spec) -> Result<String> {
    let size = number.unsigned_abs();
    let (prefix, digits) = match spec.kind {
        None | Some('d' | 'n') => ("", size.to_string()),
        Some('x') => ("0x", format!("{size:x}")),
        Some('X') => ("0X", format!("{size:X}")),
        Some('o') => ("0o", format!("{size:o}")),
        Some('b') => ("0b", format!("{size:b}")),
        Some(other) => return fail(format!("Unknown format code '{other}' for type 'int'")),
    };
    if spec.precision.is_some() {
        return fail("Precision not allowed in integer format specifier");
    }
    let prefix = if spec.alternate { prefix } else { "" };
    let digits = grouped(&digits, spec);
    Ok(format!("{}{prefix}{digits}", sign(number < 0, spec)))
}

fn sign(is_negative: bool, spec: &Spec) -> &'static str {
    match (is_negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        (false, _) => "",
    }
}

fn grouped(digits: &str, spec: &Spec) -> String {
    let Some(separator) = spec.grouping else {
        return digits.to_owned();
    };
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(separator);
        }
        out.push(digit);
    }
    out
}

/// A float's digits with sign and grouping.
fn float(number: f64, spec: &Spec) -> Result<String> {
    let size = number.abs();
    let kind = spec.kind.unwrap_or(' ');
    let precision = spec.precision.unwrap_or(6);
    let text = match kind.to_ascii_lowercase() {
        _ if size.is_nan() => "nan".to_owned(),
        _ if size.is_infinite() => "inf".to_owned(),
        'f' => format!("{size:.precision$}"),
        '%' => format!("{:.precision$}%", size * 100.0),
        'e' => exponential(size, precision),
        'g' => general(size, precision.max(1)),
        ' ' => match spec.precision {
            None => super::strings::float(size),
            Some(precision) => {
                let text = general(size, precision.max(1));
                match text.contains(['.', 'e']) {
                    true => text,
                    false => text + ".0",
                }
            }
        },
        _ => return fail(format!("Unknown format code '{kind}' for type 'float'")),
    };
    let text = match kind.is_ascii_uppercase() {
        true => text.to_uppercase(),
        false => text,
    };
    let whole = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (whole, rest) = text.split_at(whole);
    let is_negative = number.is_sign_negative() && !number.is_nan();
    Ok(format!(
        "{}{}{rest}",
        sign(is_negative, spec),
        grouped(whole, spec)
    ))
}

/// `1.5e+02`
fn exponential(size: f64, precision: usize) -> String {
    let text = format!("{size:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// The shorter of the two notations, without trailing zeros.
fn general(size: f64, precision: usize) -> String {
    let text = exponential(size, precision - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
    let power: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if power < -4 || power >= precision as i32 {
        return format!("{}e{exponent}", trimmed(mantissa));
    }
    let decimals = (precision as i32 - 1 - power).max(0) as usize;
    trimmed(&format!("{size:.decimals$}"))
}

fn pad_text(text: &str, spec: &Spec) -> String {
    let text: String = match spec.precision {
        Some(length) => text.chars().take(length).collect(),
        None => text.to_owned(),
    };
    padded(&text, spec, '<')
}

/// A number is padded at its left, or between sign and digits.
fn pad_number(text: &str, spec: &Spec) -> String {
    if spec.align != Some('=') {
        return padded(text, spec, '>');
    }
    let digits = text.trim_start_matches(['+', '-', ' ']);
    let sign = &text[..text.len() - digits.len()];
    let width = spec.width.saturating_sub(sign.len());
    let inner = Spec {
        align: Some('>'),
        width,
        ..spec.clone()
    };
    format!("{sign}{}", padded(digits, &inner, '>'))
}

fn padded(text: &str, spec: &Spec, default: char) -> String {
    let missing = spec.width.saturating_sub(text.chars().count());
    let before = match spec.align.unwrap_or(default) {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    let fill = spec.fill.unwrap_or(' ').to_string();
    format!(
        "{}{text}{}",
        fill.repeat(before),
        fill.repeat(missing - before)
    )
}
