//! `'%s' % value`

use super::{Spec, digits, float, integer, pad_number, pad_text, pay_for_field};
use crate::template::jinja::budget::{Budget, PaidText};
use crate::template::jinja::dict::Dict;
use crate::template::jinja::error::{Result, fail, unsupported};
use crate::template::jinja::ops::Number;
use crate::template::jinja::printing;
use crate::template::jinja::strings::escape_html;
use crate::template::jinja::value::{Str, Value};

/// `text % arguments`
pub(in crate::template::jinja) fn percent(
    text: &Str,
    arguments: &Value,
    budget: &Budget,
) -> Result<Value> {
    let mut source = PercentArguments {
        positional: match arguments {
            Value::Tuple(seq) => {
                budget.items::<Value>(seq.items.len(), 0)?;
                seq.items.clone()
            }
            other => vec![other.clone()],
        },
        named: match arguments {
            Value::Dict(dict) => Some(dict),
            _ => None,
        },
        next: 0,
    };
    let mut out = PaidText::new(budget);
    let mut rest = text.text.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c)?;
            continue;
        }
        let piece = percent_field(&mut rest, &mut source, text.markup, budget)?;
        out.push_str(&piece)?;
    }
    let all_used = source.next >= source.positional.len();
    // A value with items may be a mapping, whose entries need not all be used.
    let is_mapping = matches!(
        arguments,
        Value::Dict(_) | Value::List(_) | Value::Undefined(_)
    );
    if !(all_used || is_mapping && source.next == 0) {
        return fail("not all arguments converted during string formatting");
    }
    Ok(text.alike(out.finish()))
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
    spec.width = if rest.as_str().starts_with('*') {
        return unsupported("`*` as a width in `%` formats is not supported");
    } else {
        digits(rest)?.unwrap_or(0)
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
    let escaped = |text: String| {
        if markup {
            escape_html(&text, budget)
        } else {
            Ok(text)
        }
    };
    pay_for_field("", &spec, budget)?;
    match kind {
        's' => {
            let text = printing::str(value, budget)?;
            let keeps = matches!(value, Value::Str(text) if text.markup);
            let text = if keeps { text } else { escaped(text)? };
            pay_for_field(&text, &spec, budget)?;
            Ok(pad_text(&text, &spec))
        }
        'r' => {
            let text = escaped(printing::repr(value, budget)?)?;
            pay_for_field(&text, &spec, budget)?;
            Ok(pad_text(&text, &spec))
        }
        'd' | 'i' | 'u' => {
            spec.kind = Some('d');
            let number = match Number::from_value(value) {
                Some(Number::Int(number)) => number,
                Some(Number::Float(number)) if number.is_finite() => number.trunc() as i128,
                _ => {
                    let name = value.type_name();
                    return fail(format!(
                        "%{kind} format: a real number is required, not {name}"
                    ));
                }
            };
            // Here the precision is a number of digits.
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
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => match Number::from_value(value) {
            Some(number) => {
                spec.kind = Some(kind);
                Ok(pad_number(&float(number.as_float(), &spec)?, &spec))
            }
            None => fail(format!("must be real number, not {}", value.type_name())),
        },
        other => unsupported(format!("the format `%{other}` is not supported")),
    }
}
