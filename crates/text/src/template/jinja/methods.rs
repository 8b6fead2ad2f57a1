//! Methods of values: `value.method(…)`.

use std::rc::Rc;

use super::budget::SMALL;
use super::call::{Args, int, required};
use super::compare;
use super::dict::{Dict, View};
use super::error::{Result, fail, unsupported};
use super::interpreter::Interpreter;
use super::str_methods;
use super::value::{Cycler, Loop, Value};

/// Methods of a type: those that work, those the sandbox hides because they change the value, and
/// those Python has and we do not.
struct Methods {
    known: &'static [&'static str],
    forbidden: &'static [&'static str],
    missing: &'static [&'static str],
}

const DICT: Methods = Methods {
    known: &["copy", "get", "items", "keys", "values"],
    forbidden: &["clear", "pop", "popitem", "setdefault", "update"],
    missing: &["fromkeys"],
};
const LIST: Methods = Methods {
    known: &["copy", "count", "index"],
    forbidden: &[
        "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
    ],
    missing: &[],
};
const TUPLE: Methods = Methods {
    known: &["count", "index"],
    forbidden: &[],
    missing: &[],
};
const NUMBER: Methods = Methods {
    known: &[],
    forbidden: &[],
    missing: &[
        "as_integer_ratio",
        "bit_count",
        "bit_length",
        "conjugate",
        "denominator",
        "from_bytes",
        "fromhex",
        "hex",
        "imag",
        "is_integer",
        "numerator",
        "real",
        "to_bytes",
    ],
};
const LOOP: Methods = Methods {
    known: &["changed", "cycle"],
    forbidden: &[],
    missing: &[],
};
const CYCLER: Methods = Methods {
    known: &["next", "reset"],
    forbidden: &[],
    missing: &["items", "pos"],
};
const RANGE: Methods = Methods {
    known: &[],
    forbidden: &[],
    missing: &["count", "index", "start", "step", "stop"],
};
/// Of the function `dict`.
const DICT_TYPE: Methods = Methods {
    known: &["fromkeys"],
    forbidden: &[],
    missing: &[],
};

/// The value's method with this name.
pub(super) fn find(value: &Value, name: &str) -> Option<Value> {
    let methods = match value {
        Value::Str(_) => return str_methods::name(name).map(|name| Value::method(value, name)),
        Value::Dict(_) => DICT,
        Value::List(_) => LIST,
        Value::Tuple(_) => TUPLE,
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => NUMBER,
        Value::Loop(_) => LOOP,
        Value::Cycler(_) => CYCLER,
        Value::Range(_) => RANGE,
        Value::Callable(_) => DICT_TYPE,
        _ => return None,
    };
    if methods.forbidden.contains(&name) {
        return Some(unsafe_attribute(value, name));
    }
    let mut names = methods.known.iter().chain(methods.missing);
    let name = names.find(|known| **known == name)?;
    Some(Value::method(value, name))
}

/// Replaces an attribute that the sandbox hides.
pub(super) fn unsafe_attribute(value: &Value, name: &str) -> Value {
    let kind = value.type_name();
    Value::undefined(format!(
        "access to attribute '{name}' of '{kind}' object is unsafe."
    ))
}

pub(super) fn call(
    runtime: &Interpreter<'_>,
    receiver: &Value,
    name: &'static str,
    args: Args,
) -> Result<Value> {
    match receiver {
        Value::Str(text) => str_methods::call(runtime, text, name, args),
        Value::Dict(dict) => dict_method(runtime, dict, name, args),
        Value::List(seq) | Value::Tuple(seq) => sequence_method(runtime, &seq.items, name, args),
        Value::Loop(state) => loop_method(runtime, state, name, args),
        Value::Cycler(cycler) => cycler_method(cycler, name),
        Value::Callable(_) if name == "fromkeys" => from_keys(runtime, args),
        other => not_ours(other.type_name(), name),
    }
}

pub(super) fn not_ours<T>(kind: &str, name: &str) -> Result<T> {
    unsupported(format!("the method `{name}` of {kind} is not supported"))
}

fn dict_method(
    runtime: &Interpreter<'_>,
    dict: &Rc<Dict>,
    name: &str,
    args: Args,
) -> Result<Value> {
    if name == "get" {
        let [key, default] = args.places(name)?;
        let found = dict.get(&required(key, name, "key")?, &runtime.budget)?;
        return Ok(found.cloned().or(default).unwrap_or(Value::None));
    }
    let [] = args.places(name)?;
    match name {
        "copy" => Ok(Value::Dict(Rc::new(dict.copy(&runtime.budget)?))),
        "items" => Ok(Value::View(View::Items, dict.clone())),
        "keys" => Ok(Value::View(View::Keys, dict.clone())),
        "values" => Ok(Value::View(View::Values, dict.clone())),
        _ => not_ours("dict", name),
    }
}

fn sequence_method(
    runtime: &Interpreter<'_>,
    items: &[Value],
    name: &str,
    args: Args,
) -> Result<Value> {
    match name {
        "copy" => {
            let [] = args.places(name)?;
            runtime.budget.bytes(size_of_val(items) + SMALL)?;
            Value::list(items.to_vec())
        }
        "count" => {
            let [wanted] = args.places(name)?;
            let wanted = required(wanted, name, "value")?;
            let mut count = 0;
            for item in items {
                count += i128::from(compare::equal(item, &wanted, &runtime.budget)?);
            }
            Ok(Value::Int(count))
        }
        "index" => {
            let [wanted, start, stop] = args.places(name)?;
            let wanted = required(wanted, name, "value")?;
            let length = items.len() as i128;
            let within = |at: i128| {
                let from_start = if at < 0 {
                    at.saturating_add(length)
                } else {
                    at
                };
                from_start.clamp(0, length)
            };
            let start = within(int(start, 0)?) as usize;
            let stop = within(int(stop, length)?) as usize;
            for (at, item) in items.iter().enumerate().take(stop).skip(start) {
                if compare::equal(item, &wanted, &runtime.budget)? {
                    return Ok(Value::Int(at as i128));
                }
            }
            fail("the value is not in the list")
        }
        _ => not_ours("list", name),
    }
}

fn loop_method(
    runtime: &Interpreter<'_>,
    state: &Rc<Loop>,
    name: &str,
    args: Args,
) -> Result<Value> {
    if !args.keyword.is_empty() {
        return fail(format!("loop.{name}() takes no keyword arguments"));
    }
    match name {
        "cycle" if args.positional.is_empty() => fail("no items for cycling given"),
        "cycle" => {
            let at = state.index.get() % args.positional.len();
            Ok(args.positional[at].clone())
        }
        _ => {
            runtime.budget.items::<Value>(args.positional.len(), 0)?;
            let now = Value::tuple(args.positional.clone())?;
            let is_same = match runtime.remember(state, args.positional)? {
                Some(last) => compare::equal(&Value::tuple(last)?, &now, &runtime.budget)?,
                None => false,
            };
            Ok(Value::Bool(!is_same))
        }
    }
}

fn cycler_method(cycler: &Cycler, name: &str) -> Result<Value> {
    let at = cycler.at.get();
    match name {
        "next" => {
            cycler.at.set((at + 1) % cycler.items.items.len());
            Ok(cycler.items.items[at].clone())
        }
        "reset" => {
            cycler.at.set(0);
            Ok(Value::None)
        }
        _ => not_ours("cycler", name),
    }
}

fn from_keys(runtime: &Interpreter<'_>, args: Args) -> Result<Value> {
    let [keys, value] = args.places("fromkeys")?;
    let keys = required(keys, "fromkeys", "iterable")?;
    let value = value.unwrap_or(Value::None);
    let mut dict = Dict::default();
    for key in keys.items(&runtime.budget)? {
        dict.insert(key, value.clone(), &runtime.budget)?;
    }
    Ok(Value::Dict(Rc::new(dict)))
}
