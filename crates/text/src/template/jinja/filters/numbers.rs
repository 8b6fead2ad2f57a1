//! Filters that make or change numbers.

use crate::template::jinja::call::{self, Args};
use crate::template::jinja::error::{Result, fail, unsupported};
use crate::template::jinja::interpreter::Interpreter;
use crate::template::jinja::ops::{Number, whole};
use crate::template::jinja::strings::is_space;
use crate::template::jinja::value::Value;

pub(super) fn abs(_: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("abs")?;
    match Number::from_value(&value) {
        Some(Number::Int(number)) => whole(number.checked_abs()),
        Some(Number::Float(number)) => Ok(Value::Float(number.abs())),
        None => fail(format!(
            "bad operand type for abs(): '{}'",
            value.type_name()
        )),
    }
}

/// `int(value)`, then `int(float(value))`, then the default.
pub(super) fn int(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    runtime.budget.bytes(value.as_str().map_or(0, str::len))?;
    let [default, base] = args.bind("int", ["default", "base"])?;
    let base = call::int(base, 10)?;
    let number = match &value {
        Value::Undefined(missing) => return missing.used(),
        Value::Str(text) => match parse_int(&text.text, base)? {
            Some(number) => Some(number),
            None => parse_float(&text.text).and_then(truncated),
        },
        Value::Float(number) if number.is_infinite() => {
            return fail("cannot convert float infinity to integer");
        }
        Value::Float(number) => truncated(*number),
        other => other.as_int(),
    };
    Ok(match number {
        Some(number) => Value::Int(number),
        None => default.unwrap_or(Value::Int(0)),
    })
}

fn truncated(number: f64) -> Option<i128> {
    number.is_finite().then(|| number.trunc() as i128)
}

fn parse_int(text: &str, base: i128) -> Result<Option<i128>> {
    let Some(base) = u32::try_from(base).ok().filter(|b| (2..=36).contains(b)) else {
        return unsupported("int: `base` must lie between 2 and 36");
    };
    let text = text.trim_matches(is_space);
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let prefix = match base {
        2 => ["0b", "0B"],
        8 => ["0o", "0O"],
        16 => ["0x", "0X"],
        _ => ["", ""],
    };
    let bare = prefix.iter().find_map(|p| digits.strip_prefix(*p));
    let bare = bare.unwrap_or(digits);
    let well_spaced = !bare.starts_with('_') && !bare.ends_with('_') && !bare.contains("__");
    if !well_spaced || bare.starts_with(['+', '-']) {
        return Ok(None);
    }
    let size = i128::from_str_radix(&bare.replace('_', ""), base).ok();
    Ok(size.map(|size| if text.starts_with('-') { -size } else { size }))
}

fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let misplaced = text.starts_with('_') || text.ends_with('_') || text.contains("__");
    if misplaced {
        None
    } else {
        text.replace('_', "").parse().ok()
    }
}

pub(super) fn float(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    runtime.budget.bytes(value.as_str().map_or(0, str::len))?;
    let [default] = args.bind("float", ["default"])?;
    let number = match &value {
        Value::Undefined(missing) => return missing.used(),
        Value::Str(text) => parse_float(&text.text),
        other => Number::from_value(other).map(Number::as_float),
    };
    Ok(match number {
        Some(number) => Value::Float(number),
        None => default.unwrap_or(Value::Float(0.0)),
    })
}

pub(super) fn round(_: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    let precision = call::int(precision, 0)?.clamp(-400, 400) as i32;
    let Some(number) = Number::from_value(&value) else {
        return fail(format!("'{}' cannot be rounded", value.type_name()));
    };
    let round: fn(f64) -> f64 = match method.as_ref().map(Value::as_str) {
        None | Some(Some("common")) => return Ok(rounded(number, precision)),
        Some(Some("ceil")) => f64::ceil,
        Some(Some("floor")) => f64::floor,
        _ => return fail("method must be common, ceil or floor"),
    };
    let scale = 10_f64.powi(precision);
    Ok(Value::Float(round(number.as_float() * scale) / scale))
}

/// Python's `round`: half to even.
fn rounded(number: Number, precision: i32) -> Value {
    match number {
        Number::Int(number) if precision >= 0 => Value::Int(number),
        Number::Int(number) => {
            let Some(scale) = 10_i128.checked_pow(precision.unsigned_abs()) else {
                return Value::Int(0);
            };
            let below = number.div_euclid(scale);
            let twice = number.rem_euclid(scale) * 2;
            let up = twice > scale || (twice == scale && below % 2 != 0);
            Value::Int((below + i128::from(up)) * scale)
        }
        Number::Float(number) if precision >= 0 => {
            let decimals = precision as usize;
            let text = format!("{number:.decimals$}");
            Value::Float(text.parse().unwrap_or(number))
        }
        Number::Float(number) => {
            let scale = 10_f64.powi(-precision);
            if scale.is_finite() {
                Value::Float((number / scale).round_ties_even() * scale)
            } else {
                Value::Float(0.0)
            }
        }
    }
}
