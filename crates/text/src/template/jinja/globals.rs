//! Functions every template can call.

use std::cell::Cell;
use std::rc::Rc;

use super::budget::SMALL;
use super::call::{Args, int, required};
use super::dict::Dict;
use super::error::{FaultKind, Result, TemplateFault, fail};
use super::interpreter::Interpreter;
use super::value::{Cycler, Range, Seq, Value};

pub(super) struct Function {
    pub name: &'static str,
    pub call: fn(&Interpreter<'_>, Args) -> Result<Value>,
}

/// The sandbox refuses longer ranges.
const MAX_RANGE: usize = 100_000;

/// Longer than any date; fields may have a width.
const MAX_DATE_FORMAT: usize = 1024;

const FUNCTIONS: &[Function] = &[
    Function {
        name: "range",
        call: range,
    },
    Function {
        name: "dict",
        call: dict,
    },
    Function {
        name: "namespace",
        call: namespace,
    },
    Function {
        name: "cycler",
        call: cycler,
    },
    Function {
        name: "joiner",
        call: joiner,
    },
    Function {
        name: "raise_exception",
        call: raise_exception,
    },
    Function {
        name: "strftime_now",
        call: strftime_now,
    },
];

pub(super) fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.name == name)
}

fn range(_: &Interpreter<'_>, args: Args) -> Result<Value> {
    let [first, second, step] = args.places("range")?;
    let first = int(Some(required(first, "range", "stop")?), 0)?;
    let (start, stop) = match second {
        None => (0, first),
        Some(stop) => (first, int(Some(stop), 0)?),
    };
    let step = int(step, 1)?;
    if step == 0 {
        return fail("range() arg 3 must not be zero");
    }
    // Beyond these bounds no range is short enough; within them its arithmetic cannot overflow.
    const FAR: i128 = 1 << 100;
    let near = [start, stop, step].iter().all(|n| n.abs() < FAR);
    let range = Range { start, stop, step };
    if !near || range.len() > MAX_RANGE {
        return fail(format!(
            "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({MAX_RANGE})."
        ));
    }
    Ok(Value::Range(range))
}

fn dict(runtime: &Interpreter<'_>, args: Args) -> Result<Value> {
    Ok(Value::Dict(Rc::new(dict_of(runtime, args)?)))
}

/// `dict(mapping or pairs, **entries)`
fn dict_of(runtime: &Interpreter<'_>, args: Args) -> Result<Dict> {
    runtime.budget.bytes(size_of::<Dict>() + SMALL)?;
    let mut positional = args.positional.into_iter();
    let mut dict = match positional.next() {
        None => Dict::default(),
        Some(Value::Dict(dict)) => dict.copy(&runtime.budget)?,
        Some(pairs) => {
            let mut dict = Dict::default();
            for pair in pairs.items(&runtime.budget)? {
                match <[Value; 2]>::try_from(pair.items(&runtime.budget)?) {
                    Ok([key, value]) => dict.insert(key, value, &runtime.budget)?,
                    Err(_) => return fail("dict() takes pairs of a key and a value"),
                }
            }
            dict
        }
    };
    if positional.next().is_some() {
        return fail("dict expected at most 1 argument");
    }
    for (name, value) in args.keyword {
        dict.insert(Value::text(name), value, &runtime.budget)?;
    }
    Ok(dict)
}

fn namespace(runtime: &Interpreter<'_>, args: Args) -> Result<Value> {
    let attributes = dict_of(runtime, args)?;
    for (name, _) in attributes.iter() {
        check_attribute_name(name.as_str().unwrap_or_default())?;
    }
    runtime.new_namespace(attributes)
}

/// Names that `transformers` forbids in namespaces.
pub(super) fn check_attribute_name(name: &str) -> Result<()> {
    if name.starts_with('_') {
        fail(format!(
            "Chat templates cannot store underscore-prefixed attributes on a namespace, but got \
             '{name}'. Please rename the attribute."
        ))
    } else {
        Ok(())
    }
}

fn cycler(runtime: &Interpreter<'_>, args: Args) -> Result<Value> {
    runtime.budget.bytes(SMALL)?;
    if !args.keyword.is_empty() || args.positional.is_empty() {
        return fail("cycler() takes at least one item to cycle through");
    }
    Ok(Value::Cycler(Rc::new(Cycler {
        items: Seq::new(args.positional)?,
        at: Cell::new(0),
    })))
}

fn joiner(runtime: &Interpreter<'_>, args: Args) -> Result<Value> {
    runtime.budget.bytes(SMALL)?;
    let [separator] = args.bind("joiner", ["sep"])?;
    Value::joiner(separator.unwrap_or_else(|| Value::text(", ")))
}

fn raise_exception(runtime: &Interpreter<'_>, args: Args) -> Result<Value> {
    let [message] = args.bind("raise_exception", ["message"])?;
    let message = required(message, "raise_exception", "message")?;
    let message = super::printing::str(&message, &runtime.budget)?;
    Err(TemplateFault::new(FaultKind::Raised, message))
}

fn strftime_now(runtime: &Interpreter<'_>, args: Args) -> Result<Value> {
    let [format] = args.bind("strftime_now", ["format"])?;
    let format = required(format, "strftime_now", "format")?;
    match format.as_str() {
        Some(format) if format.len() > MAX_DATE_FORMAT => fail(format!(
            "strftime_now() takes a format of at most {MAX_DATE_FORMAT} characters"
        )),
        Some(format) => {
            let date = runtime.clock.strftime(format);
            runtime.budget.bytes(date.len())?;
            Ok(Value::text(date))
        }
        None => fail("strftime_now() takes a str"),
    }
}
