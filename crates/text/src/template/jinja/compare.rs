//! Python's comparisons: equality, order and membership.

use std::cmp::Ordering;
use std::rc::Rc;

use super::ast::Comparison;
use super::budget::{Budget, VALUE_DEPTH, limit};
use super::error::{Result, fail};
use super::ops::Number;
use super::value::{Range, Value};

pub(super) fn compare(
    comparison: Comparison,
    left: &Value,
    right: &Value,
    budget: &Budget,
) -> Result<bool> {
    Ok(match comparison {
        Comparison::Equal => equal(left, right, budget)?,
        Comparison::NotEqual => !equal(left, right, budget)?,
        Comparison::In => contains(right, left, budget)?,
        Comparison::NotIn => !contains(right, left, budget)?,
        Comparison::Less => order(left, right, "<", budget)? == Some(Ordering::Less),
        Comparison::LessEqual => order(left, right, "<=", budget)?.is_some_and(Ordering::is_le),
        Comparison::Greater => order(left, right, ">", budget)? == Some(Ordering::Greater),
        Comparison::GreaterEqual => order(left, right, ">=", budget)?.is_some_and(Ordering::is_ge),
    })
}

pub(super) fn equal(left: &Value, right: &Value, budget: &Budget) -> Result<bool> {
    equal_at(left, right, budget, 0)
}

fn equal_at(left: &Value, right: &Value, budget: &Budget, depth: u32) -> Result<bool> {
    budget.steps(1)?;
    if depth > VALUE_DEPTH {
        return limit("values nest too deep to be compared");
    }
    let all = |a: &[Value], b: &[Value]| -> Result<bool> {
        if a.len() != b.len() {
            return Ok(false);
        }
        for (a, b) in a.iter().zip(b) {
            if !equal_at(a, b, budget, depth + 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    if let (Some(a), Some(b)) = (Number::from_value(left), Number::from_value(right)) {
        return Ok(number_order(a, b) == Some(Ordering::Equal));
    }
    match (left, right) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => Ok(true),
        (Value::Str(a), Value::Str(b)) if a.text.len() == b.text.len() => {
            budget.reads(a.text.len())?;
            Ok(a.text == b.text)
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            all(&a.items, &b.items)
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (key, value) in a.iter() {
                match b.get(key, budget)? {
                    Some(other) if equal_at(value, other, budget, depth + 1)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (Value::Range(a), Value::Range(b)) => {
            let same_start = a.len() == 0 || a.start == b.start;
            let same_step = a.len() < 2 || a.step == b.step;
            Ok(a.len() == b.len() && same_start && same_step)
        }
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

/// Orders two values. `None` if one is NaN; an error if they are not comparable.
pub(super) fn order(
    left: &Value,
    right: &Value,
    sign: &str,
    budget: &Budget,
) -> Result<Option<Ordering>> {
    budget.steps(1)?;
    for side in [left, right] {
        if let Value::Undefined(missing) = side {
            return missing.used();
        }
    }
    if let (Some(a), Some(b)) = (Number::from_value(left), Number::from_value(right)) {
        return Ok(number_order(a, b));
    }
    match (left, right) {
        (Value::Str(a), Value::Str(b)) => {
            budget.reads(a.text.len().min(b.text.len()))?;
            Ok(Some(a.text.cmp(&b.text)))
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(a, b, budget)? {
                    return order(a, b, sign, budget);
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

/// Items in the order of their keys, which may not compare. Equal ones keep their order.
///
/// The standard library's sort requires a total order and may panic without one, which a single
/// `nan` causes.
pub(super) fn sorted<T>(
    mut items: Vec<T>,
    key: &impl Fn(&T) -> &Value,
    budget: &Budget,
) -> Result<Vec<T>> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = items.split_off(items.len() / 2);
    let mut left = sorted(items, key, budget)?.into_iter().peekable();
    let mut right = sorted(right, key, budget)?.into_iter().peekable();
    let mut merged = Vec::with_capacity(left.len() + right.len());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let right_first = order(key(b), key(a), "<", budget)? == Some(Ordering::Less);
        merged.extend(if right_first {
            right.next()
        } else {
            left.next()
        });
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}

/// `item in container`
pub(super) fn contains(container: &Value, item: &Value, budget: &Budget) -> Result<bool> {
    match (container, item) {
        (Value::Str(text), Value::Str(part)) => {
            budget.reads(text.text.len())?;
            Ok(text.text.contains(&*part.text))
        }
        (Value::Str(_), other) => {
            let kind = other.type_name();
            fail(format!(
                "'in <string>' requires string as left operand, not {kind}"
            ))
        }
        (Value::Dict(dict), key) => Ok(dict.get(key, budget)?.is_some()),
        (Value::Range(range), item) => Ok(in_range(*range, item)),
        (container, item) if container.is_iterable() => {
            for candidate in container.items(budget)? {
                if equal(&candidate, item, budget)? {
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
    match Number::from_value(item) {
        Some(Number::Int(number)) => range.contains(number),
        Some(Number::Float(number)) => number.fract() == 0.0 && range.contains(number as i128),
        None => false,
    }
}
