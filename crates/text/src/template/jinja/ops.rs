//! Python's operators.

use std::cmp::Ordering;
use std::rc::Rc;

use super::ast::{Comparison, Operator};
use super::budget::{Budget, VALUE_DEPTH, limit};
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
    pub fn of(value: &Value) -> Option<Self> {
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
    if let (Some(a), Some(b)) = (Number::of(left), Number::of(right)) {
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

/// Python's integers have no end; ours do, and say so.
fn whole(number: Option<i128>) -> Result<Value> {
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
    match remainder != 0.0 && (remainder < 0.0) != (b < 0.0) {
        true => remainder + b,
        false if remainder == 0.0 => 0.0_f64.copysign(b),
        false => remainder,
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
    budget.bytes(a.text.len() + b.text.len())?;
    Ok(match (a.markup, b.markup) {
        (false, false) => Value::text(format!("{}{}", a.text, b.text)),
        (true, true) => Value::Str(Str::markup(format!("{}{}", a.text, b.text))),
        (true, false) => Value::Str(Str::markup(format!("{}{}", a.text, escape_html(&b.text)))),
        (false, true) => Value::Str(Str::markup(format!("{}{}", escape_html(&a.text), b.text))),
    })
}

fn chain(a: &[Value], b: &[Value], budget: &Budget) -> Result<Vec<Value>> {
    budget.bytes((a.len() + b.len()) * size_of::<Value>())?;
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
    budget.bytes((items.len() * size_of::<Value>()).saturating_mul(count))?;
    let length = items.len() * if items.is_empty() { 0 } else { count };
    Ok(items.iter().cycle().take(length).cloned().collect())
}

pub(super) fn negative(value: &Value) -> Result<Value> {
    match (value, Number::of(value)) {
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
    match (value, Number::of(value)) {
        (_, Some(Number::Int(number))) => Ok(Value::Int(number)),
        (_, Some(Number::Float(number))) => Ok(Value::Float(number)),
        (Value::Undefined(missing), None) => missing.used(),
        (other, None) => {
            let kind = other.type_name();
            fail(format!("bad operand type for unary +: '{kind}'"))
        }
    }
}

pub(super) fn compare(
    comparison: Comparison,
    left: &Value,
    right: &Value,
    budget: &Budget,
) -> Result<bool> {
    budget.steps(1)?;
    Ok(match comparison {
        Comparison::Equal => equal(left, right)?,
        Comparison::NotEqual => !equal(left, right)?,
        Comparison::In => contains(right, left, budget)?,
        Comparison::NotIn => !contains(right, left, budget)?,
        Comparison::Less => order(left, right, "<")? == Some(Ordering::Less),
        Comparison::LessEqual => order(left, right, "<=")?.is_some_and(Ordering::is_le),
        Comparison::Greater => order(left, right, ">")? == Some(Ordering::Greater),
        Comparison::GreaterEqual => order(left, right, ">=")?.is_some_and(Ordering::is_ge),
    })
}

pub(super) fn equal(left: &Value, right: &Value) -> Result<bool> {
    equal_at(left, right, 0)
}

fn equal_at(left: &Value, right: &Value, depth: u32) -> Result<bool> {
    if depth > VALUE_DEPTH {
        return limit("values nest too deep to be compared");
    }
    let all = |a: &[Value], b: &[Value]| -> Result<bool> {
        if a.len() != b.len() {
            return Ok(false);
        }
        for (a, b) in a.iter().zip(b) {
            if !equal_at(a, b, depth + 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    if let (Some(a), Some(b)) = (Number::of(left), Number::of(right)) {
        return Ok(number_order(a, b) == Some(Ordering::Equal));
    }
    match (left, right) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => Ok(true),
        (Value::Str(a), Value::Str(b)) => Ok(a.text == b.text),
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            all(&a.items, &b.items)
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (key, value) in a.iter() {
                match b.get(key)? {
                    Some(other) if equal_at(value, other, depth + 1)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (Value::Range(a), Value::Range(b)) => Ok(a.iter().eq(b.iter())),
        _ => Ok(same(left, right)),
    }
}

/// `left is right`, as far as a template can know.
pub(super) fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Str(a), Value::Str(b)) => a.text == b.text && a.markup == b.markup,
        (Value::Undefined(a), Value::Undefined(b)) => Rc::ptr_eq(a, b),
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => Rc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
        (Value::Callable(a), Value::Callable(b)) => Rc::ptr_eq(a, b),
        (Value::Iterator(a), Value::Iterator(b)) => Rc::ptr_eq(a, b),
        _ => false,
    }
}

fn number_order(a: Number, b: Number) -> Option<Ordering> {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
        (a, b) => a.as_float().partial_cmp(&b.as_float()),
    }
}

/// How two values compare; `None` where one is not a number, and an error where they do not.
pub(super) fn order(left: &Value, right: &Value, sign: &str) -> Result<Option<Ordering>> {
    for side in [left, right] {
        if let Value::Undefined(missing) = side {
            return missing.used();
        }
    }
    if let (Some(a), Some(b)) = (Number::of(left), Number::of(right)) {
        return Ok(number_order(a, b));
    }
    match (left, right) {
        (Value::Str(a), Value::Str(b)) => Ok(Some(a.text.cmp(&b.text))),
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(a, b)? {
                    return order(a, b, sign);
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => {
            let (left, right) = (left.type_name(), right.type_name());
            fail(format!(
                "'{sign}' not supported between instances of '{left}' and '{right}'"
            ))
        }
    }
}

/// A stable sort by keys that may not compare.
pub(super) fn sort_by<T>(items: &mut [T], key: impl Fn(&T) -> &Value) -> Result<()> {
    let mut fault = None;
    items.sort_by(|a, b| match order(key(a), key(b), "<") {
        Ok(ordering) => ordering.unwrap_or(Ordering::Equal),
        Err(error) => {
            fault.get_or_insert(error);
            Ordering::Equal
        }
    });
    fault.map_or(Ok(()), Err)
}

/// `item in container`
pub(super) fn contains(container: &Value, item: &Value, budget: &Budget) -> Result<bool> {
    match (container, item) {
        (Value::Str(text), Value::Str(part)) => {
            budget.bytes(text.text.len())?;
            Ok(text.text.contains(&*part.text))
        }
        (Value::Str(_), other) => {
            let kind = other.type_name();
            fail(format!(
                "'in <string>' requires string as left operand, not {kind}"
            ))
        }
        (Value::Dict(dict), key) => Ok(dict.get(key)?.is_some()),
        (Value::Range(range), item) => Ok(in_range(*range, item)),
        (container, item) if container.is_iterable() => {
            for candidate in container.items(budget)? {
                if equal(&candidate, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (other, _) => {
            let kind = other.type_name();
            fail(format!("argument of type '{kind}' is not iterable"))
        }
    }
}

fn in_range(range: Range, item: &Value) -> bool {
    match Number::of(item) {
        Some(Number::Int(number)) => range.iter().any(|member| member == number),
        Some(Number::Float(number)) => range.iter().any(|member| member as f64 == number),
        None => false,
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
        budget.bytes(size_of_val(items))?;
        let places = places(start, stop, step, items.len());
        Ok(places.map(|at| items[at].clone()).collect())
    };
    match value {
        Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Range(_) if step == 0 => {
            fail("slice step cannot be zero")
        }
        Value::Str(text) => {
            budget.bytes(text.text.len())?;
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

/// A bound, held within what lengths can reach; `None` where it is not one.
fn bound(value: Option<Value>) -> Option<Option<i128>> {
    const FAR: i128 = 1 << 60;
    match value {
        None | Some(Value::None) => Some(None),
        Some(value) => value.as_int().map(|at| Some(at.clamp(-FAR, FAR))),
    }
}

/// Where a slice begins and ends, as Python's `slice.indices` gives them.
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
