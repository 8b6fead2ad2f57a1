//! Evaluates a template's expressions.

use std::rc::Rc;

use super::ast::{Arguments, CallExpr, Comparison, Conditional, Expr, FilterCall, TestExpr};
use super::budget::{PaidText, SMALL};
use super::call::Args;
use super::compare;
use super::dict::Dict;
use super::error::{FaultKind, Result, fail, unsupported};
use super::globals;
use super::interpreter::Interpreter;
use super::methods;
use super::ops;
use super::printing;
use super::scope::Scope;
use super::strings::{REPR_GROWTH, paid_repr, repr};
use super::value::{Callable, Loop, Value};

impl Interpreter<'_> {
    pub fn evaluate(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        self.budget.steps(1)?;
        match expr {
            Expr::Literal(literal) => Ok(Value::from(literal)),
            Expr::Name(name) => self.variable(name, scope),
            nested => self.budget.nested(|| self.compound(nested, scope)),
        }
    }

    fn compound(&self, expr: &Expr, scope: &Rc<Scope>) -> Result<Value> {
        match expr {
            Expr::Literal(literal) => Ok(Value::from(literal)),
            Expr::Name(name) => self.variable(name, scope),
            Expr::List(items) => Value::list(self.all(items, scope)?),
            Expr::Tuple(items) => Value::tuple(self.all(items, scope)?),
            Expr::Dict(entries) => self.dict(entries, scope),
            Expr::Attribute(base, name) => self.attribute(&self.evaluate(base, scope)?, name),
            Expr::Item(parts) => {
                let base = self.evaluate(&parts.0, scope)?;
                self.item(&base, &self.evaluate(&parts.1, scope)?)
            }
            Expr::Slice(slice) => {
                let base = self.evaluate(&slice.base, scope)?;
                let bound = |expr: &Option<Expr>| {
                    expr.as_ref().map(|e| self.evaluate(e, scope)).transpose()
                };
                let bounds = [
                    bound(&slice.start)?,
                    bound(&slice.stop)?,
                    bound(&slice.step)?,
                ];
                ops::slice(&base, bounds, &self.budget)
            }
            Expr::Call(call) => self.call_expr(call, scope),
            Expr::Filter(filter) => {
                let value = self.evaluate(&filter.0, scope)?;
                self.filter(value, &filter.1, scope)
            }
            Expr::Test(test) => Ok(Value::Bool(self.test(test, scope)?)),
            Expr::Not(inner) => Ok(Value::Bool(!self.evaluate(inner, scope)?.is_true())),
            Expr::Negative(inner) => ops::negative(&self.evaluate(inner, scope)?),
            Expr::Positive(inner) => ops::positive(&self.evaluate(inner, scope)?),
            Expr::And(parts) => self.first_where(parts, scope, |value| !value.is_true()),
            Expr::Or(parts) => self.first_where(parts, scope, Value::is_true),
            Expr::Arithmetic(first, steps) => {
                let mut value = self.evaluate(first, scope)?;
                for (operator, expr) in steps {
                    let right = self.evaluate(expr, scope)?;
                    value = ops::arithmetic(*operator, &value, &right, &self.budget)?;
                }
                Ok(value)
            }
            Expr::Concat(parts) => self.concat(parts, scope),
            Expr::Compare(first, steps) => self.compare(first, steps, scope),
            Expr::Conditional(choice) => self.conditional(choice, scope),
        }
    }

    fn variable(&self, name: &str, scope: &Scope) -> Result<Value> {
        if let Some(value) = scope.get(name, &self.budget)? {
            return Ok(value);
        }
        self.budget.bytes(SMALL)?;
        Ok(match globals::find(name) {
            Some(function) => Value::Callable(Rc::new(Callable::Function(function))),
            None if name == "self" => Value::Template,
            None => Value::undefined(format!("{} is undefined", paid_repr(name, &self.budget)?)),
        })
    }

    fn all(&self, exprs: &[Expr], scope: &Rc<Scope>) -> Result<Vec<Value>> {
        self.budget.items::<Value>(exprs.len(), 0)?;
        self.budget.bytes(SMALL)?;
        exprs
            .iter()
            .map(|expr| self.evaluate(expr, scope))
            .collect()
    }

    fn dict(&self, entries: &[(Expr, Expr)], scope: &Rc<Scope>) -> Result<Value> {
        self.budget.bytes(size_of::<Dict>() + SMALL)?;
        let mut dict = Dict::default();
        for (key, value) in entries {
            let key = self.evaluate(key, scope)?;
            dict.insert(key, self.evaluate(value, scope)?, &self.budget)?;
        }
        Ok(Value::Dict(Rc::new(dict)))
    }

    /// The first part that decides, or the last.
    fn first_where(
        &self,
        parts: &[Expr],
        scope: &Rc<Scope>,
        decides: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let mut value = Value::None;
        for part in parts {
            value = self.evaluate(part, scope)?;
            if decides(&value) {
                break;
            }
        }
        Ok(value)
    }

    fn concat(&self, parts: &[Expr], scope: &Rc<Scope>) -> Result<Value> {
        let mut out = PaidText::new(&self.budget);
        for part in parts {
            let value = self.evaluate(part, scope)?;
            match value.as_str() {
                Some(text) => out.push_str(text)?,
                None => out.push_str(&printing::str(&value, &self.budget)?)?,
            }
        }
        Ok(Value::text(out.finish()))
    }

    fn compare(
        &self,
        first: &Expr,
        steps: &[(Comparison, Expr)],
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        let mut left = self.evaluate(first, scope)?;
        for (comparison, expr) in steps {
            let right = self.evaluate(expr, scope)?;
            if !compare::compare(*comparison, &left, &right, &self.budget)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn conditional(&self, choice: &Conditional, scope: &Rc<Scope>) -> Result<Value> {
        match (
            self.evaluate(&choice.condition, scope)?.is_true(),
            &choice.otherwise,
        ) {
            (true, _) => self.evaluate(&choice.then, scope),
            (false, Some(otherwise)) => self.evaluate(otherwise, scope),
            (false, None) => Ok(Value::undefined(
                "the inline if-expression evaluated to false and no else section was defined",
            )),
        }
    }

    fn call_expr(&self, call: &CallExpr, scope: &Rc<Scope>) -> Result<Value> {
        let callee = self.evaluate(&call.callee, scope)?;
        let args = self.arguments(&call.arguments, scope)?;
        self.call(&callee, args)
    }

    pub fn arguments(&self, arguments: &Arguments, scope: &Rc<Scope>) -> Result<Args> {
        let mut args = Args::from_positional(self.all(&arguments.positional, scope)?);
        for (name, expr) in &arguments.keyword {
            args.keyword
                .push((name.clone(), self.evaluate(expr, scope)?));
        }
        if let Some(rest) = &arguments.rest {
            let rest = self.evaluate(rest, scope)?;
            args.positional.extend(rest.items(&self.budget)?);
        }
        if let Some(rest) = &arguments.keyword_rest {
            let Value::Dict(entries) = self.evaluate(rest, scope)? else {
                return fail("the argument after ** must be a mapping");
            };
            self.budget.items::<(Value, Value)>(entries.len(), 0)?;
            for (key, value) in entries.iter() {
                match key {
                    Value::Str(key) => args.keyword.push((key.text.clone(), value.clone())),
                    _ => return fail("keywords must be strings"),
                }
            }
        }
        Ok(args)
    }

    pub fn call(&self, callee: &Value, args: Args) -> Result<Value> {
        match callee {
            Value::Undefined(missing) => missing.used(),
            Value::Loop(state) => match args.places("loop")? {
                [Some(iterable)] => self.recurse(state, &iterable),
                [None] => fail("loop() needs something to loop over"),
            },
            Value::Callable(callable) => match &**callable {
                Callable::Function(function) => (function.call)(self, args),
                Callable::Macro(definition, scope) => self.call_macro(definition, scope, args),
                Callable::Method(receiver, name) => methods::call(self, receiver, name, args),
                Callable::Joiner(separator, used) => Ok(if used.replace(true) {
                    separator.clone()
                } else {
                    Value::text("")
                }),
                Callable::Block(name) => self.block(name),
            },
            other => fail(format!("'{}' object is not callable", other.type_name())),
        }
    }

    pub fn filtered(
        &self,
        value: Value,
        filters: &[FilterCall],
        scope: &Rc<Scope>,
    ) -> Result<Value> {
        filters
            .iter()
            .try_fold(value, |value, filter| self.filter(value, filter, scope))
    }

    fn filter(&self, value: Value, call: &FilterCall, scope: &Rc<Scope>) -> Result<Value> {
        let args = self.arguments(&call.arguments, scope)?;
        match call.filter {
            Some(filter) => (filter.apply)(self, value, args),
            None => unsupported(format!("No filter named {}.", repr(&call.name))),
        }
    }

    fn test(&self, test: &TestExpr, scope: &Rc<Scope>) -> Result<bool> {
        let value = self.evaluate(&test.value, scope)?;
        let args = self.arguments(&test.arguments, scope)?;
        match test.test {
            Some(test) => (test.holds)(self, &value, args),
            None => unsupported(format!("No test named {}.", repr(&test.name))),
        }
    }

    /// `value.name`: an attribute or, if there is none, an item.
    pub fn attribute(&self, value: &Value, name: &str) -> Result<Value> {
        if let Value::Undefined(missing) = value {
            return missing.used();
        }
        self.pay_for_attribute(value, name)?;
        if let Some(attribute) = self.own_attribute(value, name) {
            return Ok(attribute);
        }
        match value {
            Value::Dict(dict) => Ok(match dict.get_str(name) {
                Some(item) => item.clone(),
                None => no_attribute(value, name),
            }),
            _ => Ok(no_attribute(value, name)),
        }
    }

    /// `value[key]`: an item or, if there is none, an attribute.
    pub fn item(&self, value: &Value, key: &Value) -> Result<Value> {
        let found = match value {
            Value::Undefined(missing) => return missing.used(),
            Value::Dict(dict) => match dict.get(key, &self.budget) {
                Ok(found) => found.cloned(),
                Err(fault) if fault.kind == FaultKind::Failed => None,
                Err(fault) => return Err(fault),
            },
            Value::List(seq) | Value::Tuple(seq) => {
                place(key, seq.items.len()).map(|at| seq.items[at].clone())
            }
            Value::Range(range) => place(key, range.len()).map(|at| Value::Int(range.at(at))),
            Value::Str(text) => match key.as_int() {
                Some(index) => self.character(&text.text, index)?.map(|c| text.alike(c)),
                None => None,
            },
            _ => None,
        };
        if let Some(found) = found {
            return Ok(found);
        }
        self.pay_for_attribute(value, key.as_str().unwrap_or_default())?;
        match key.as_str() {
            Some(name) => Ok(self
                .own_attribute(value, name)
                .unwrap_or_else(|| no_attribute(value, name))),
            None => Ok(Value::undefined(format!(
                "{} has no element {}",
                described(value),
                printing::repr(key, &self.budget)?
            ))),
        }
    }

    /// The character at an index; negative indexes count from the end.
    fn character(&self, text: &str, index: i128) -> Result<Option<String>> {
        let far = usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX);
        self.budget.bytes(SMALL)?;
        self.budget.scans(far.min(text.len()))?;
        let found = if index < 0 {
            text.chars().rev().nth(far - 1)
        } else {
            text.chars().nth(far)
        };
        Ok(found.map(String::from))
    }

    /// Pays for looking an attribute up, and for the method or the error that is found.
    pub fn pay_for_attribute(&self, value: &Value, name: &str) -> Result<()> {
        if let Value::Template = value {
            self.budget.reads(self.block_count() * size_of::<Value>())?;
        }
        self.budget
            .bytes(name.len().saturating_mul(REPR_GROWTH) + SMALL)
    }

    /// Python's `getattr`: methods and properties, not items.
    pub fn own_attribute(&self, value: &Value, name: &str) -> Option<Value> {
        if name.starts_with("__") && name.ends_with("__") && !matches!(value, Value::Namespace(_)) {
            return Some(methods::unsafe_attribute(value, name));
        }
        match value {
            Value::Namespace(attributes) => attributes.borrow().get_str(name).cloned(),
            Value::Loop(state) => loop_attribute(value, state, name),
            Value::Tuple(seq) if seq.is_group && name == "grouper" => Some(seq.items[0].clone()),
            Value::Tuple(seq) if seq.is_group && name == "list" => Some(seq.items[1].clone()),
            Value::Cycler(cycler) if name == "current" => {
                Some(cycler.items.items[cycler.at.get()].clone())
            }
            Value::Template if self.has_block(name) => {
                Some(Value::Callable(Rc::new(Callable::Block(name.into()))))
            }
            Value::Callable(callable) => match &**callable {
                Callable::Macro(definition, _) => macro_attribute(definition, name),
                Callable::Function(function) if function.name == "dict" => {
                    methods::find(value, name)
                }
                _ => None,
            },
            _ => methods::find(value, name),
        }
    }
}

/// The position that a key names in a sequence; negative ones count from the end.
fn place(key: &Value, length: usize) -> Option<usize> {
    let index = key.as_int()?;
    let from_start = if index < 0 {
        index.checked_add(length as i128)?
    } else {
        index
    };
    usize::try_from(from_start).ok().filter(|at| *at < length)
}

fn described(value: &Value) -> String {
    match value {
        Value::None => "None".to_owned(),
        other => format!("{} object", other.type_name()),
    }
}

fn no_attribute(value: &Value, name: &str) -> Value {
    Value::undefined(format!(
        "'{}' has no attribute {}",
        described(value),
        repr(name)
    ))
}

fn loop_attribute(value: &Value, state: &Loop, name: &str) -> Option<Value> {
    let (index, items) = (state.index.get(), &state.items.items);
    let number = |number: usize| Some(Value::Int(number as i128));
    match name {
        "index" => number(index + 1),
        "index0" => number(index),
        "revindex" => number(items.len() - index),
        "revindex0" => number(items.len() - index - 1),
        "first" => Some(Value::Bool(index == 0)),
        "last" => Some(Value::Bool(index + 1 == items.len())),
        "length" => number(items.len()),
        "depth" => number(state.level + 1),
        "depth0" => number(state.level),
        "previtem" => Some(match index.checked_sub(1) {
            Some(previous) => items[previous].clone(),
            None => Value::undefined("there is no previous item"),
        }),
        "nextitem" => Some(match items.get(index + 1) {
            Some(next) => next.clone(),
            None => Value::undefined("there is no next item"),
        }),
        _ => methods::find(value, name),
    }
}

fn macro_attribute(definition: &super::ast::Macro, name: &str) -> Option<Value> {
    match name {
        "name" => Some(match &definition.name {
            Some(name) => Value::text(name.clone()),
            None => Value::None,
        }),
        "arguments" => {
            let names = definition.parameters.iter();
            Value::tuple(names.map(|(name, _)| Value::text(name.clone())).collect()).ok()
        }
        "catch_kwargs" => Some(Value::Bool(definition.uses.kwargs)),
        "catch_varargs" => Some(Value::Bool(definition.uses.varargs)),
        "caller" => Some(Value::Bool(definition.uses.caller)),
        _ => None,
    }
}
