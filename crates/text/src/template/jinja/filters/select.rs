//! Filters that look at the items of a sequence one by one.

use std::cmp::Ordering;
use std::rc::Rc;

use crate::template::jinja::ast::Operator;
use crate::template::jinja::budget::{Budget, SMALL};
use crate::template::jinja::call::{Args, flag, required};
use crate::template::jinja::compare;
use crate::template::jinja::dict::Dict;
use crate::template::jinja::error::{Result, fail};
use crate::template::jinja::interpreter::Interpreter;
use crate::template::jinja::ops;
use crate::template::jinja::predicates;
use crate::template::jinja::strings::cased_bytes;
use crate::template::jinja::value::{Seq, Value};

use super::sequences::sorted;

/// The path from an item to the value a filter uses: `attribute='a.b.0'`.
struct Path(Vec<Value>);

impl Path {
    fn new(attribute: Option<&Value>, budget: &Budget) -> Result<Self> {
        Ok(Self(match attribute {
            None | Some(Value::None) => Vec::new(),
            Some(Value::Str(path)) => {
                budget.bytes(path.text.len())?;
                budget.items::<Value>(path.text.matches('.').count() + 1, SMALL)?;
                path.text.split('.').map(path_part).collect()
            }
            Some(other) => vec![other.clone()],
        }))
    }

    /// `default` replaces undefined values on the path.
    fn follow(
        &self,
        runtime: &Interpreter<'_>,
        item: &Value,
        default: Option<&Value>,
    ) -> Result<Value> {
        let mut value = item.clone();
        for part in &self.0 {
            runtime.budget.steps(1)?;
            value = runtime.item(&value, part)?;
            if let (Value::Undefined(_), Some(default)) = (&value, default) {
                value = default.clone();
            }
        }
        Ok(value)
    }
}

fn path_part(part: &str) -> Value {
    match part.parse() {
        Ok(index) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(index),
        _ => Value::text(part),
    }
}

/// The sort and group key: strings in lower case unless case matters.
pub(super) fn ignore_case(
    runtime: &Interpreter<'_>,
    value: &Value,
    case_sensitive: bool,
) -> Result<Value> {
    match value {
        Value::Str(text) if !case_sensitive => {
            runtime.budget.scans(text.text.len())?;
            runtime.budget.bytes(cased_bytes(&text.text))?;
            Ok(text.alike(text.text.to_lowercase()))
        }
        other => Ok(other.clone()),
    }
}

/// An empty value need not be iterable.
fn items_if_true(runtime: &Interpreter<'_>, value: &Value) -> Result<Vec<Value>> {
    if value.is_true() {
        value.items(&runtime.budget)
    } else {
        Ok(Vec::new())
    }
}

pub(super) fn map(runtime: &Interpreter<'_>, value: Value, mut args: Args) -> Result<Value> {
    let items = items_if_true(runtime, &value)?;
    let by_attribute = args.keyword.iter().any(|(name, _)| &**name == "attribute");
    let mut mapped = Vec::with_capacity(items.len());
    if args.positional.is_empty() && by_attribute {
        let [attribute, default] = args.bind("map", ["attribute", "default"])?;
        let path = Path::new(attribute.as_ref(), &runtime.budget)?;
        let default = default.filter(|default| !matches!(default, Value::None));
        for item in &items {
            mapped.push(path.follow(runtime, item, default.as_ref())?);
        }
    } else if !items.is_empty() {
        if args.positional.is_empty() {
            return fail("map requires a filter argument");
        }
        let name = args.positional.remove(0);
        for item in items {
            let args = args.duplicate(&runtime.budget)?;
            mapped.push(super::apply(runtime, &name, item, args)?);
        }
    }
    Value::iterator(mapped)
}

pub(super) fn select(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    chosen(runtime, &value, args, false, true)
}

pub(super) fn reject(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    chosen(runtime, &value, args, false, false)
}

pub(super) fn selectattr(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    chosen(runtime, &value, args, true, true)
}

pub(super) fn rejectattr(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    chosen(runtime, &value, args, true, false)
}

/// The items for which a test, of the item or of an attribute, has the expected result.
fn chosen(
    runtime: &Interpreter<'_>,
    value: &Value,
    mut args: Args,
    by_attribute: bool,
    wanted: bool,
) -> Result<Value> {
    let items = items_if_true(runtime, value)?;
    if items.is_empty() {
        return Value::iterator(items);
    }
    let next = |args: &mut Args| {
        if args.positional.is_empty() {
            None
        } else {
            Some(args.positional.remove(0))
        }
    };
    let path = if by_attribute {
        match next(&mut args) {
            None => return fail("Missing parameter for attribute name"),
            attribute => Path::new(attribute.as_ref(), &runtime.budget)?,
        }
    } else {
        Path(Vec::new())
    };
    let test = next(&mut args);
    let mut chosen = Vec::new();
    for item in items {
        let looked_at = path.follow(runtime, &item, None)?;
        let answer = match &test {
            Some(name) => {
                let args = args.duplicate(&runtime.budget)?;
                predicates::holds(runtime, name, &looked_at, args)?
            }
            None => looked_at.is_true(),
        };
        if answer == wanted {
            chosen.push(item);
        }
    }
    Value::iterator(chosen)
}

pub(super) fn sort(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let parameters = ["reverse", "case_sensitive", "attribute"];
    let [reverse, case_sensitive, attribute] = args.bind("sort", parameters)?;
    let case_sensitive = flag(case_sensitive, false);
    let paths: Vec<Path> = match &attribute {
        Some(Value::Str(names)) => {
            runtime.budget.bytes(names.text.len())?;
            let count = names.text.matches(',').count() + 1;
            runtime.budget.items::<Path>(count, SMALL)?;
            let path = |name| Path::new(Some(&Value::text(name)), &runtime.budget);
            let names = names.text.split(',');
            names.map(path).collect::<Result<_>>()?
        }
        other => vec![Path::new(other.as_ref(), &runtime.budget)?],
    };
    let mut pairs = Vec::new();
    for item in value.items(&runtime.budget)? {
        runtime.budget.items::<Value>(paths.len() + 2, SMALL)?;
        let key = paths.iter().map(|path| {
            let value = path.follow(runtime, &item, None)?;
            ignore_case(runtime, &value, case_sensitive)
        });
        pairs.push((Value::list(key.collect::<Result<_>>()?)?, item));
    }
    sorted(runtime, pairs, flag(reverse, false))
}

pub(super) fn unique(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [case_sensitive, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
    let case_sensitive = flag(case_sensitive, false);
    let path = Path::new(attribute.as_ref(), &runtime.budget)?;
    let mut seen = Dict::default();
    let mut kept = Vec::new();
    for item in value.items(&runtime.budget)? {
        let key = path.follow(runtime, &item, None)?;
        let key = ignore_case(runtime, &key, case_sensitive)?;
        if seen.get(&key, &runtime.budget)?.is_none() {
            seen.insert(key, Value::None, &runtime.budget)?;
            kept.push(item);
        }
    }
    Value::iterator(kept)
}

pub(super) fn min(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    extreme(runtime, &value, args, Ordering::Less)
}

pub(super) fn max(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    extreme(runtime, &value, args, Ordering::Greater)
}

/// The first minimum or maximum.
fn extreme(
    runtime: &Interpreter<'_>,
    value: &Value,
    args: Args,
    direction: Ordering,
) -> Result<Value> {
    let [case_sensitive, attribute] = args.bind("min", ["case_sensitive", "attribute"])?;
    let case_sensitive = flag(case_sensitive, false);
    let path = Path::new(attribute.as_ref(), &runtime.budget)?;
    let mut best: Option<(Value, Value)> = None;
    for item in value.items(&runtime.budget)? {
        let key = path.follow(runtime, &item, None)?;
        let key = ignore_case(runtime, &key, case_sensitive)?;
        let better = match &best {
            Some((best, _)) => compare::order(&key, best, "<", &runtime.budget)? == Some(direction),
            None => true,
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(match best {
        Some((_, item)) => item,
        None => Value::undefined("No aggregated item, sequence was empty."),
    })
}

pub(super) fn sum(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
    let path = Path::new(attribute.as_ref(), &runtime.budget)?;
    let mut total = start.unwrap_or(Value::Int(0));
    if let Value::Str(_) = total {
        return fail("sum() can't sum strings");
    }
    for item in value.items(&runtime.budget)? {
        let item = path.follow(runtime, &item, None)?;
        total = ops::arithmetic(Operator::Add, &total, &item, &runtime.budget)?;
    }
    Ok(total)
}

pub(super) fn groupby(runtime: &Interpreter<'_>, value: Value, args: Args) -> Result<Value> {
    let parameters = ["attribute", "default", "case_sensitive"];
    let [attribute, default, case_sensitive] = args.bind("groupby", parameters)?;
    let attribute = required(attribute, "groupby", "attribute")?;
    let path = Path::new(Some(&attribute), &runtime.budget)?;
    let default = default.filter(|default| !matches!(default, Value::None));
    let case_sensitive = flag(case_sensitive, false);
    let mut pairs = Vec::new();
    for item in value.items(&runtime.budget)? {
        let key = path.follow(runtime, &item, default.as_ref())?;
        let compared = ignore_case(runtime, &key, case_sensitive)?;
        // Four values here, two more and a list in a group.
        runtime.budget.items::<Value>(6, SMALL)?;
        pairs.push((compared, (key, item)));
    }
    let pairs = compare::sorted(pairs, &|pair| &pair.0, &runtime.budget)?;
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for (compared, (key, item)) in pairs {
        match groups.last_mut() {
            Some((last, _, items)) if compare::equal(last, &compared, &runtime.budget)? => {
                items.push(item)
            }
            _ => groups.push((compared, key, vec![item])),
        }
    }
    let group = |(_, key, items)| {
        let group = Seq::group(key, Value::list(items)?)?;
        Ok(Value::Tuple(Rc::new(group)))
    };
    Value::list(groups.into_iter().map(group).collect::<Result<_>>()?)
}
