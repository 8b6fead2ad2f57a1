//! Python's arithmetic, on numbers and sequences.

use super::ast::Operator;
use super::budget::{Budget, SMALL};
use super::error::{Result, fail, unsupported};
use super::format;
use super::strings::escape_html;
use super::value::{Range, Str, Value};

/// A number as arithmetic sees it.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Float(number) => Some(Self::Float(*number)),
            other => other.as_int().map(Self::Int),
        }
    }

    pub fn as_float(self) -> f64 {
        match self {
            Self::Int(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}

pub(super) fn arithmetic(
    operator: Operator,
    left: &Value,
    right: &Value,
    budget: &Budget,
) -> Result<Value> {
    if let (Operator::Modulo, Value::Str(text)) = (operator, left) {
        return format::percent(text, right, budget);
    }
    for side in [left, right] {
        if let Value::Undefined(missing) = side {
            return missing.used();
        }
    }
    if let (Some(a), Some(b)) = (Number::from_value(left), Number::from_value(right)) {
        return number_arithmetic(operator, a, b);
    }
    match operator {
        Operator::Add => add(left, right, budget),
        Operator::Multiply => repeat(left, right, budget),
        _ => unsuitable(operator, left, right),
    }
}

fn unsuitable<T>(operator: Operator, left: &Value, right: &Value) -> Result<T> {
    let sign = match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Modulo => "%",
        Operator::Power => "**",
    };
    let (left, right) = (left.type_name(), right.type_name());
    fail(format!(
        "unsupported operand type(s) for {sign}: '{left}' and '{right}'"
    ))
}

fn number_arithmetic(operator: Operator, left: Number, right: Number) -> Result<Value> {
    use Number::Int;
    let value = match (operator, left, right) {
        (Operator::Add, Int(a), Int(b)) => whole(a.checked_add(b))?,
        (Operator::Subtract, Int(a), Int(b)) => whole(a.checked_sub(b))?,
        (Operator::Multiply, Int(a), Int(b)) => whole(a.checked_mul(b))?,
        (Operator::FloorDivide, Int(a), Int(b)) if b != 0 => {
            let inexact = a.checked_rem(b).is_some_and(|r| r != 0);
            let down = i128::from(inexact && (a < 0) != (b < 0));
            whole(a.checked_div(b).map(|quotient| quotient - down))?
        }
        (Operator::Modulo, Int(a), Int(b)) if b != 0 => {
            let remainder = a.checked_rem(b).unwrap_or(0);
            let up = remainder != 0 && (remainder < 0) != (b < 0);
            Value::Int(if up { remainder + b } else { remainder })
        }
        (Operator::Power, Int(a), Int(b)) if b >= 0 => {
            whole(u32::try_from(b).ok().and_then(|b| a.checked_pow(b)))?
        }
        _ => Value::Float(float_arithmetic(
            operator,
            left.as_float(),
            right.as_float(),
        )?),
    };
    Ok(value)
}

/// Python's integers are unbounded; ours are checked.
pub(super) fn whole(number: Option<i128>) -> Result<Value> {
    match number {
        Some(number) => Ok(Value::Int(number)),
        None => unsupported("integers of more than 127 bits are not supported"),
    }
}

fn float_arithmetic(operator: Operator, a: f64, b: f64) -> Result<f64> {
    Ok(match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide | Operator::FloorDivide | Operator::Modulo if b == 0.0 => {
            return fail("division by zero");
        }
        Operator::Divide => a / b,
        Operator::FloorDivide => ((a - floor_remainder(a, b)) / b).round(),
        Operator::Modulo => floor_remainder(a, b),
        Operator::Power if a == 0.0 && b < 0.0 => {
            return fail("0.0 cannot be raised to a negative power");
        }
        Operator::Power if a < 0.0 && b.fract() != 0.0 => {
            return unsupported("complex numbers are not supported");
        }
        Operator::Power => a.powf(b),
    })
}

/// The remainder with the sign of the divisor.
fn floor_remainder(a: f64, b: f64) -> f64 {
    let remainder = a % b;
    if remainder == 0.0 {
        0.0_f64.copysign(b)
    } else if (remainder < 0.0) != (b < 0.0) {
        remainder + b
    } else {
        remainder
    }
}

fn add(left: &Value, right: &Value, budget: &Budget) -> Result<Value> {
    match (left, right) {
        (Value::Str(a), Value::Str(b)) => concat(a, b, budget),
        (Value::List(a), Value::List(b)) => Value::list(chain(&a.items, &b.items, budget)?),
        (Value::Tuple(a), Value::Tuple(b)) => Value::tuple(chain(&a.items, &b.items, budget)?),
        (Value::Str(_) | Value::List(_) | Value::Tuple(_), other) => {
            let (left, right) = (left.type_name(), other.type_name());
            fail(format!(
                "can only concatenate {left} (not \"{right}\") to {left}"
            ))
        }
        _ => unsuitable(Operator::Add, left, right),
    }
}

/// Strings put together; one that is `Markup` escapes the other.
fn concat(a: &Str, b: &Str, budget: &Budget) -> Result<Value> {
    budget.bytes(
        a.text
            .len()
            .saturating_add(b.text.len())
            .saturating_add(SMALL),
    )?;
    Ok(match (a.markup, b.markup) {
        (false, false) => Value::text(format!("{}{}", a.text, b.text)),
        (true, true) => Value::Str(Str::markup(format!("{}{}", a.text, b.text))),
        (true, false) => {
            let escaped = escape_html(&b.text, budget)?;
            budget.bytes(escaped.len())?;
            Value::Str(Str::markup(format!("{}{escaped}", a.text)))
        }
        (false, true) => {
            let escaped = escape_html(&a.text, budget)?;
            budget.bytes(escaped.len())?;
            Value::Str(Str::markup(format!("{escaped}{}", b.text)))
        }
    })
}

fn chain(a: &[Value], b: &[Value], budget: &Budget) -> Result<Vec<Value>> {
    budget.items::<Value>(a.len() + b.len(), 0)?;
    budget.bytes(SMALL)?;
    Ok(a.iter().chain(b).cloned().collect())
}

/// `sequence * count`, in either order.
fn repeat(left: &Value, right: &Value, budget: &Budget) -> Result<Value> {
    let (sequence, count) = match (left.as_int(), right.as_int()) {
        (None, Some(count)) => (left, count),
        (Some(count), None) => (right, count),
        _ => return unsuitable(Operator::Multiply, left, right),
    };
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    match sequence {
        Value::Str(text) => {
            budget.bytes(text.text.len().saturating_mul(count))?;
            Ok(text.alike(text.text.repeat(count)))
        }
        Value::List(seq) => Value::list(repeated(&seq.items, count, budget)?),
        Value::Tuple(seq) => Value::tuple(repeated(&seq.items, count, budget)?),
        _ => unsuitable(Operator::Multiply, left, right),
    }
}

fn repeated(items: &[Value], count: usize, budget: &Budget) -> Result<Vec<Value>> {
    budget.bytes(size_of_val(items).saturating_mul(count))?;
    let length = items.len() * if items.is_empty() { 0 } else { count };
    Ok(items.iter().cycle().take(length).cloned().collect())
}

pub(super) fn negative(value: &Value) -> Result<Value> {
    match (value, Number::from_value(value)) {
        (_, Some(Number::Int(number))) => whole(number.checked_neg()),
        (_, Some(Number::Float(number))) => Ok(Value::Float(-number)),
        (Value::Undefined(missing), None) => missing.used(),
        (other, None) => {
            let kind = other.type_name();
            fail(format!("bad operand type for unary -: '{kind}'"))
        }
    }
}

pub(super) fn positive(value: &Value) -> Result<Value> {
    match (value, Number::from_value(value)) {
        (_, Some(Number::Int(number))) => Ok(Value::Int(number)),
        (_, Some(Number::Float(number))) => Ok(Value::Float(number)),
        (Value::Undefined(missing), None) => missing.used(),
        (other, None) => {
            let kind = other.type_name();
            fail(format!("bad operand type for unary +: '{kind}'"))
        }
    }
}

/// `value[start:stop:step]`
pub(super) fn slice(value: &Value, bounds: [Option<Value>; 3], budget: &Budget) -> Result<Value> {
    if let Value::Undefined(missing) = value {
        return missing.used();
    }
    let [Some(start), Some(stop), Some(step)] = bounds.map(bound) else {
        return fail("slice indices must be integers or None");
    };
    let step = step.unwrap_or(1);
    let pick = |items: &[Value]| -> Result<Vec<Value>> {
        budget.bytes(size_of_val(items) + SMALL)?;
        let places = places(start, stop, step, items.len());
        Ok(places.map(|at| items[at].clone()).collect())
    };
    match value {
        Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Range(_) if step == 0 => {
            fail("slice step cannot be zero")
        }
        Value::Str(text) => {
            // The characters, and the text of those that are kept.
            budget.bytes(text.text.len().saturating_mul(size_of::<char>() + 1) + SMALL)?;
            let characters: Vec<char> = text.text.chars().collect();
            let places = places(start, stop, step, characters.len());
            let sliced: String = places.map(|at| characters[at]).collect();
            Ok(text.alike(sliced))
        }
        Value::List(seq) => Value::list(pick(&seq.items)?),
        Value::Tuple(seq) => Value::tuple(pick(&seq.items)?),
        Value::Range(range) => {
            let (from, to) = ends(start, stop, step, range.len());
            Ok(Value::Range(Range {
                start: range.start + range.step * from,
                stop: range.start + range.step * to,
                step: range.step * step,
            }))
        }
        other => fail(format!("'{}' object cannot be sliced", other.type_name())),
    }
}

/// A slice bound, clamped to possible lengths; `None` if it is not one.
fn bound(value: Option<Value>) -> Option<Option<i128>> {
    const FAR: i128 = 1 << 60;
    match value {
        None | Some(Value::None) => Some(None),
        Some(value) => value.as_int().map(|at| Some(at.clamp(-FAR, FAR))),
    }
}

/// The start and end of a slice, as Python's `slice.indices`.
fn ends(start: Option<i128>, stop: Option<i128>, step: i128, length: usize) -> (i128, i128) {
    let length = length as i128;
    let (low, high) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let within = |bound: i128| {
        let from_start = if bound < 0 { bound + length } else { bound };
        from_start.clamp(low, high)
    };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    (start.map_or(first, within), stop.map_or(last, within))
}

fn places(
    start: Option<i128>,
    stop: Option<i128>,
    step: i128,
    length: usize,
) -> impl Iterator<Item = usize> {
    let (start, stop) = ends(start, stop, step, length);
    let range = Range { start, stop, step };
    range.iter().map(|at| at as usize)
}
