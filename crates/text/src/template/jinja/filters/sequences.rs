//! Filters that split and join sequences.

use crate::template::jinja::budget::SMALL;
use crate::template::jinja::call::{self, Args, flag, required};
use crate::template::jinja::compare;
use crate::template::jinja::dict::View;
use crate::template::jinja::error::{Result, fail};
use crate::template::jinja::interpreter::Interpreter;
use crate::template::jinja::str_methods;
use crate::template::jinja::value::Value;

use super::select::ignore_case;

pub(super) fn list(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("list")?;
    Value::list(value.items(&runtime.budget)?)
}

pub(super) fn first(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("first")?;
    let first = value.first(&runtime.budget)?;
    Ok(first.unwrap_or_else(|| Value::undefined("No first item, sequence was empty.")))
}

pub(super) fn last(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("last")?;
    if let Value::Iterator(_) = value {
        return fail("'generator' object is not reversible");
    }
    let last = value.items(&runtime.budget)?.pop();
    Ok(last.unwrap_or_else(|| Value::undefined("No last item, sequence was empty.")))
}

pub(super) fn reverse(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("reverse")?;
    if let Value::Str(text) = &value {
        return str_methods::reversed(runtime, text);
    }
    let mut items = value.items(&runtime.budget)?;
    items.reverse();
    match value {
        Value::Iterator(_) => Value::list(items),
        _ => Value::iterator(items),
    }
}

pub(super) fn items(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [] = args.places("items")?;
    match value {
        Value::Undefined(_) => Value::iterator(Vec::new()),
        Value::Dict(dict) => {
            let items = Value::View(View::Items, dict).items(&runtime.budget)?;
            Value::iterator(items)
        }
        _ => fail("Can only get item pairs from a mapping."),
    }
}

pub(super) fn dictsort(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let parameters = ["case_sensitive", "by", "reverse"];
    let [case_sensitive, by, reverse] = args.bind("dictsort", parameters)?;
    let by_value = match by.as_ref().map(Value::as_str) {
        None | Some(Some("key")) => false,
        Some(Some("value")) => true,
        _ => return fail("You can only sort by either \"key\" or \"value\""),
    };
    let dict = match value {
        Value::Dict(dict) => dict,
        Value::Undefined(missing) => return missing.used(),
        other => return fail(format!("'{}' has no items to sort", other.type_name())),
    };
    let case_sensitive = flag(case_sensitive, false);
    let pairs = Value::View(View::Items, dict.clone()).items(&runtime.budget)?;
    runtime.budget.items::<(Value, Value)>(dict.len(), 0)?;
    let keys = dict.iter().map(|(key, value)| {
        let sorted_by = if by_value { value } else { key };
        ignore_case(runtime, sorted_by, case_sensitive)
    });
    let keys = keys.collect::<Result<Vec<_>>>()?;
    let pairs = keys.into_iter().zip(pairs).collect();
    sorted(runtime, pairs, flag(reverse, false))
}

/// The values of `(key, value)` pairs in the order of their keys.
pub(super) fn sorted(
    runtime: &Interpreter<'_>,
    mut pairs: Vec<(Value, Value)>,
    reverse: bool,
) -> Result<Value> {
    // A reversed sort keeps the order of equal items, as in Python.
    if reverse {
        pairs.reverse();
    }
    let mut pairs = compare::sorted(pairs, &|pair| &pair.0, &runtime.budget)?;
    if reverse {
        pairs.reverse();
    }
    Value::list(pairs.into_iter().map(|(_, value)| value).collect())
}

pub(super) fn batch(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [count, fill] = args.bind("batch", ["linecount", "fill_with"])?;
    let count = call::int(Some(required(count, "batch", "linecount")?), 0)?;
    let Some(count) = usize::try_from(count).ok().filter(|count| *count > 0) else {
        return fail("batch: `linecount` must be above zero");
    };
    let items = value.items(&runtime.budget)?;
    runtime.budget.items::<Value>(items.len(), 0)?;
    let batch_count = items.len().div_ceil(count);
    runtime.budget.items::<Value>(batch_count, SMALL)?;
    let mut batches = Vec::new();
    for chunk in items.chunks(count) {
        let mut batch = chunk.to_vec();
        if let Some(fill) = fill.as_ref().filter(|fill| !matches!(fill, Value::None)) {
            runtime
                .budget
                .bytes(count.saturating_mul(size_of::<Value>()))?;
            batch.resize(count, fill.clone());
        }
        batches.push(Value::list(batch)?);
    }
    Value::iterator(batches)
}

pub(super) fn slice(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [count, fill] = args.bind("slice", ["slices", "fill_with"])?;
    let count = call::int(Some(required(count, "slice", "slices")?), 0)?;
    let Some(count) = usize::try_from(count).ok().filter(|count| *count > 0) else {
        return fail("slice: `slices` must be above zero");
    };
    let items = value.items(&runtime.budget)?;
    runtime.budget.items::<Value>(items.len(), 0)?;
    // Each slice may end with a fill.
    runtime
        .budget
        .items::<Value>(count, size_of::<Value>() + SMALL)?;
    let (each, longer) = (items.len() / count, items.len() % count);
    let mut slices = Vec::with_capacity(count);
    let mut rest = &items[..];
    for index in 0..count {
        let (taken, left) = rest.split_at(each + usize::from(index < longer));
        let mut slice = taken.to_vec();
        match &fill {
            Some(fill) if index >= longer && !matches!(fill, Value::None) => {
                slice.push(fill.clone());
            }
            _ => {}
        }
        slices.push(Value::list(slice)?);
        rest = left;
    }
    Value::iterator(slices)
}
