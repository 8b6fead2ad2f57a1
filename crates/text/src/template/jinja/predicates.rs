//! Jinja2's tests: `value is name`.

use super::ast::Comparison;
use super::call::{Args, required};
use super::compare;
use super::error::{Result, fail, unsupported};
use super::filters;
use super::interpreter::Interpreter;
use super::ops;
use super::printing;
use super::str_methods::is_cased;
use super::value::Value;

#[derive(Debug)]
pub(super) struct TestEntry {
    pub name: &'static str,
    pub holds: fn(&Interpreter<'_>, &Value, Args) -> Result<bool>,
}

pub(super) type Test = &'static TestEntry;

macro_rules! tests {
    ($($name:literal => $holds:expr,)*) => {
        &[$(TestEntry { name: $name, holds: $holds },)*]
    };
}

const TESTS: &[TestEntry] = tests! {
    "odd" => |runtime, value, args| remainder(runtime, value, args, 1),
    "even" => |runtime, value, args| remainder(runtime, value, args, 0),
    "divisibleby" => |runtime, value, args| {
        let [number] = args.bind("divisibleby", ["num"])?;
        let number = required(number, "divisibleby", "num")?;
        has_remainder(runtime, value, &number, 0)
    },
    "defined" => |_, value, args| alone(args, !value.is_undefined()),
    "undefined" => |_, value, args| alone(args, value.is_undefined()),
    "filter" => |_, value, args| {
        refuse_unhashable(value)?;
        alone(args, value.as_str().and_then(filters::find).is_some())
    },
    "test" => |_, value, args| {
        refuse_unhashable(value)?;
        alone(args, value.as_str().and_then(find).is_some())
    },
    "none" => |_, value, args| alone(args, matches!(value, Value::None)),
    "boolean" => |_, value, args| alone(args, matches!(value, Value::Bool(_))),
    "false" => |_, value, args| alone(args, matches!(value, Value::Bool(false))),
    "true" => |_, value, args| alone(args, matches!(value, Value::Bool(true))),
    "integer" => |_, value, args| alone(args, matches!(value, Value::Int(_))),
    "float" => |_, value, args| alone(args, matches!(value, Value::Float(_))),
    "lower" => |runtime, value, args| {
        let text = printing::str(value, &runtime.budget)?;
        alone(args, is_cased(&text, char::is_lowercase, char::is_uppercase))
    },
    "upper" => |runtime, value, args| {
        let text = printing::str(value, &runtime.budget)?;
        alone(args, is_cased(&text, char::is_uppercase, char::is_lowercase))
    },
    "string" => |_, value, args| alone(args, matches!(value, Value::Str(_))),
    "mapping" => |_, value, args| alone(args, matches!(value, Value::Dict(_))),
    "number" => |_, value, args| alone(args, ops::Number::from_value(value).is_some()),
    "sequence" => |_, value, args| alone(args, is_sequence(value)),
    "iterable" => |_, value, args| alone(args, value.is_iterable()),
    "callable" => |_, value, args| alone(args, is_callable(value)),
    "sameas" => |runtime, value, args| {
        let [other] = args.bind("sameas", ["other"])?;
        let other = required(other, "sameas", "other")?;
        runtime.budget.reads(other.as_str().map_or(0, str::len))?;
        Ok(compare::same(value, &other))
    },
    "escaped" => |_, value, args| alone(args, matches!(value, Value::Str(text) if text.markup)),
    "in" => |runtime, value, args| compared(runtime, Comparison::In, value, args),
    "==" => |runtime, value, args| compared(runtime, Comparison::Equal, value, args),
    "eq" => |runtime, value, args| compared(runtime, Comparison::Equal, value, args),
    "equalto" => |runtime, value, args| compared(runtime, Comparison::Equal, value, args),
    "!=" => |runtime, value, args| compared(runtime, Comparison::NotEqual, value, args),
    "ne" => |runtime, value, args| compared(runtime, Comparison::NotEqual, value, args),
    ">" => |runtime, value, args| compared(runtime, Comparison::Greater, value, args),
    "gt" => |runtime, value, args| compared(runtime, Comparison::Greater, value, args),
    "greaterthan" => |runtime, value, args| compared(runtime, Comparison::Greater, value, args),
    ">=" => |runtime, value, args| compared(runtime, Comparison::GreaterEqual, value, args),
    "ge" => |runtime, value, args| compared(runtime, Comparison::GreaterEqual, value, args),
    "<" => |runtime, value, args| compared(runtime, Comparison::Less, value, args),
    "lt" => |runtime, value, args| compared(runtime, Comparison::Less, value, args),
    "lessthan" => |runtime, value, args| compared(runtime, Comparison::Less, value, args),
    "<=" => |runtime, value, args| compared(runtime, Comparison::LessEqual, value, args),
    "le" => |runtime, value, args| compared(runtime, Comparison::LessEqual, value, args),
};

pub(super) fn find(name: &str) -> Option<Test> {
    TESTS.iter().find(|test| test.name == name)
}

/// Applies a test by its name, as `select` does.
pub(super) fn holds(
    runtime: &Interpreter<'_>,
    name: &Value,
    value: &Value,
    args: Args,
) -> Result<bool> {
    match name.as_str().and_then(find) {
        Some(test) => (test.holds)(runtime, value, args),
        None => {
            let name = printing::repr(name, &runtime.budget)?;
            unsupported(format!("No test named {name}."))
        }
    }
}

/// Python looks names up in a dict, which lists and dicts cannot be keys of.
fn refuse_unhashable(value: &Value) -> Result<()> {
    match value {
        Value::List(_) | Value::Dict(_) => {
            fail(format!("unhashable type: '{}'", value.type_name()))
        }
        _ => Ok(()),
    }
}

/// The result of a test without arguments.
fn alone(args: Args, answer: bool) -> Result<bool> {
    if args.positional.is_empty() && args.keyword.is_empty() {
        Ok(answer)
    } else {
        fail("this test takes no arguments")
    }
}

fn remainder(runtime: &Interpreter<'_>, value: &Value, args: Args, wanted: i128) -> Result<bool> {
    alone(args, true)?;
    has_remainder(runtime, value, &Value::Int(2), wanted)
}

fn has_remainder(
    runtime: &Interpreter<'_>,
    value: &Value,
    divisor: &Value,
    wanted: i128,
) -> Result<bool> {
    let modulo = super::ast::Operator::Modulo;
    let remainder = ops::arithmetic(modulo, value, divisor, &runtime.budget)?;
    compare::equal(&remainder, &Value::Int(wanted), &runtime.budget)
}

fn compared(
    runtime: &Interpreter<'_>,
    comparison: Comparison,
    value: &Value,
    args: Args,
) -> Result<bool> {
    let [other] = args.places("a comparison")?;
    let other = required(other, "a comparison", "other")?;
    compare::compare(comparison, value, &other, &runtime.budget)
}

/// Has a length and items; an undefined value pretends to.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value,
        Value::Undefined(_)
            | Value::Str(_)
            | Value::List(_)
            | Value::Tuple(_)
            | Value::Dict(_)
            | Value::Range(_)
    )
}

fn is_callable(value: &Value) -> bool {
    matches!(
        value,
        Value::Undefined(_) | Value::Callable(_) | Value::Loop(_)
    )
}
