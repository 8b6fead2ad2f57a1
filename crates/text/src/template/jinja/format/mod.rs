//! Python's two kinds of formatting: `'%s' % value` and `'{}'.format(value)`.

mod braces;
mod percent;

pub(super) use self::braces::braces;
pub(super) use self::percent::percent;
use super::budget::Budget;
use super::error::{Result, fail};
use super::strings;

/// The maximum width of a field.
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
            None => strings::float(size),
            Some(precision) => {
                let text = general(size, precision.max(1));
                if text.contains(['.', 'e']) {
                    text
                } else {
                    text + ".0"
                }
            }
        },
        _ => return fail(format!("Unknown format code '{kind}' for type 'float'")),
    };
    let text = if kind.is_ascii_uppercase() {
        text.to_uppercase()
    } else {
        text
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
    let trimmed = |text: &str| {
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text.to_owned()
        }
    };
    if power < -4 || power >= precision as i32 {
        return format!("{}e{exponent}", trimmed(mantissa));
    }
    let decimals = (precision as i32 - 1 - power).max(0) as usize;
    trimmed(&format!("{size:.decimals$}"))
}

/// Pays for a field before it is built; `text` is what it shows.
fn pay_for_field(text: &str, spec: &Spec, budget: &Budget) -> Result<()> {
    let fill = spec.fill.map_or(1, char::len_utf8);
    let precision = spec.precision.unwrap_or(0);
    budget.steps(1)?;
    budget.scans(text.len())?;
    budget.bytes(
        text.len()
            .saturating_add(spec.width.saturating_mul(fill))
            .saturating_add(precision),
    )
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
