//! Runs a template's statements.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Block, Body, For, Macro, Statement, StatementKind, Target};
use super::budget::Budget;
use super::call::Args;
use super::dict::Dict;
use super::error::{Result, fail};
use super::globals::check_attribute_name;
use super::printing;
use super::scope::Scope;
use super::strings::repr;
use super::value::{Callable, Loop, Seq, Value};
use crate::template::clock::Clock;

/// A macro call and an iteration of a loop make a scope, which costs more than an expression.
const CALL_STEPS: usize = 4;

/// The cost of keeping a scope or a namespace until the end.
const KEPT_BYTES: usize = 256;

/// One rendering of a template.
pub(super) struct Interpreter<'t> {
    pub budget: Budget,
    pub clock: Clock,
    blocks: &'t [Arc<Block>],
    root: Rc<Scope>,
    /// Scopes that values refer to. A scope may contain a macro that refers to the scope; such
    /// cycles are cleared at the end.
    captured: RefCell<Vec<Rc<Scope>>>,
    namespaces: RefCell<Vec<Rc<RefCell<Dict>>>>,
    loops: RefCell<Vec<Rc<Loop>>>,
}

/// How a body ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Through,
    Break,
    Continue,
}

impl Drop for Interpreter<'_> {
    fn drop(&mut self) {
        for scope in self.captured.take() {
            scope.clear();
        }
        for namespace in self.namespaces.take() {
            namespace.take();
        }
        for state in self.loops.take() {
            state.changed.take();
        }
    }
}

impl<'t> Interpreter<'t> {
    pub fn new(blocks: &'t [Arc<Block>], clock: Clock, input_bytes: usize) -> Self {
        Self {
            budget: Budget::for_input(input_bytes),
            clock,
            blocks,
            root: Rc::new(Scope::default()),
            captured: RefCell::default(),
            namespaces: RefCell::default(),
            loops: RefCell::default(),
        }
    }

    /// Sets a variable.
    pub fn define(&self, name: &str, value: Value) {
        self.root.set(&Arc::from(name), value);
    }

    pub fn render(&self, body: &Body) -> Result<String> {
        let mut out = String::new();
        self.run(body, &self.root, &mut out)?;
        Ok(out)
    }

    pub fn new_namespace(&self, attributes: Dict) -> Result<Value> {
        self.budget.bytes(KEPT_BYTES)?;
        let namespace = Rc::new(RefCell::new(attributes));
        self.namespaces.borrow_mut().push(namespace.clone());
        Ok(Value::Namespace(namespace))
    }

    /// A scope that a value refers to.
    fn capture(&self, scope: &Rc<Scope>) -> Result<Rc<Scope>> {
        self.budget.bytes(KEPT_BYTES)?;
        self.captured.borrow_mut().push(scope.clone());
        Ok(scope.clone())
    }

    /// Stores the arguments of `loop.changed` and returns the previous ones.
    pub fn remember(&self, state: &Rc<Loop>, values: Vec<Value>) -> Result<Option<Vec<Value>>> {
        let last = state.changed.replace(Some(values));
        if last.is_none() {
            self.budget.bytes(KEPT_BYTES)?;
            self.loops.borrow_mut().push(state.clone());
        }
        Ok(last)
    }

    pub fn run(&self, body: &Body, scope: &Rc<Scope>, out: &mut String) -> Result<Flow> {
        for statement in body {
            let flow = self.budget.nested(|| {
                self.statement(statement, scope, out)
                    .map_err(|fault| fault.at(statement.line))
            })?;
            if flow != Flow::Through {
                return Ok(flow);
            }
        }
        Ok(Flow::Through)
    }

    /// A body's output as text.
    fn captured_output(&self, body: &Body, scope: &Rc<Scope>) -> Result<String> {
        let mut out = String::new();
        self.run(body, scope, &mut out)?;
        Ok(out)
    }

    fn write(&self, text: &str, out: &mut String) -> Result<()> {
        self.budget.bytes(text.len())?;
        out.push_str(text);
        Ok(())
    }

    fn print(&self, value: &Value, out: &mut String) -> Result<()> {
        match value.as_str() {
            Some(text) => self.write(text, out),
            None => self.write(&printing::str(value, &self.budget)?, out),
        }
    }

    fn statement(
        &self,
        statement: &Statement,
        scope: &Rc<Scope>,
        out: &mut String,
    ) -> Result<Flow> {
        self.budget.steps(1)?;
        match &statement.kind {
            StatementKind::Text(text) => self.write(text, out)?,
            StatementKind::Print(expr) => self.print(&self.evaluate(expr, scope)?, out)?,
            StatementKind::Set(target, expr) => {
                self.assign(target, self.evaluate(expr, scope)?, scope)?;
            }
            StatementKind::SetBlock(target, filters, body) => {
                let text = Value::text(self.captured_output(body, &scope.inner())?);
                self.assign(target, self.filtered(text, filters, scope)?, scope)?;
            }
            StatementKind::If(branches, otherwise) => {
                return self.branch(branches, otherwise, scope, out);
            }
            StatementKind::For(definition) => self.for_loop(definition, scope, out)?,
            StatementKind::Macro(definition) => {
                if let Some(name) = &definition.name {
                    scope.set(name, self.macro_value(definition, scope)?);
                }
            }
            StatementKind::Call(call, body) => {
                let caller = self.macro_value(body, scope)?;
                let callee = self.evaluate(&call.callee, scope)?;
                let mut args = self.arguments(&call.arguments, scope)?;
                args.keyword.push((Arc::from("caller"), caller));
                self.print(&self.call(&callee, args)?, out)?;
            }
            StatementKind::FilterBlock(filters, body) => {
                let text = Value::text(self.captured_output(body, &scope.inner())?);
                self.print(&self.filtered(text, filters, scope)?, out)?;
            }
            StatementKind::With(variables, body) => {
                let inner = scope.inner();
                for (target, expr) in variables {
                    self.assign(target, self.evaluate(expr, scope)?, &inner)?;
                }
                return self.run(body, &inner, out);
            }
            StatementKind::Generation(body) => {
                self.print(&self.call_macro(body, scope, Args::default())?, out)?;
            }
            StatementKind::Block(block) => {
                let around = if block.scoped { scope } else { &self.root };
                self.run(&block.body, &around.inner(), out)?;
            }
            StatementKind::Break => return Ok(Flow::Break),
            StatementKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Through)
    }

    fn branch(
        &self,
        branches: &[(super::ast::Expr, Body)],
        otherwise: &Body,
        scope: &Rc<Scope>,
        out: &mut String,
    ) -> Result<Flow> {
        for (condition, body) in branches {
            if self.evaluate(condition, scope)?.is_true() {
                return self.run(body, scope, out);
            }
        }
        self.run(otherwise, scope, out)
    }

    fn assign(&self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<()> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Tuple(targets) => {
                let items = value.items(&self.budget)?;
                let (wanted, found) = (targets.len(), items.len());
                if found > wanted {
                    return fail(format!("too many values to unpack (expected {wanted})"));
                }
                if found < wanted {
                    return fail(format!(
                        "not enough values to unpack (expected {wanted}, got {found})"
                    ));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item, scope)?;
                }
            }
            Target::Attribute(name, attribute) => match scope.get(name, &self.budget)? {
                Some(Value::Namespace(attributes)) => {
                    check_attribute_name(attribute)?;
                    let key = Value::text(attribute.clone());
                    attributes.borrow_mut().insert(key, value, &self.budget)?;
                }
                _ => return fail("cannot assign attribute on non-namespace object"),
            },
        }
        Ok(())
    }

    fn for_loop(&self, definition: &Arc<For>, scope: &Rc<Scope>, out: &mut String) -> Result<()> {
        let iterable = self.evaluate(&definition.iterable, scope)?;
        self.loop_over(definition, &iterable, 0, scope, out)
    }

    /// Runs a loop over a value, `level` recursive loops deep.
    fn loop_over(
        &self,
        definition: &Arc<For>,
        iterable: &Value,
        level: usize,
        scope: &Rc<Scope>,
        out: &mut String,
    ) -> Result<()> {
        let mut items = iterable.items(&self.budget)?;
        if let Some(condition) = &definition.condition {
            let mut kept = Vec::with_capacity(items.len());
            for item in items {
                self.budget.steps(CALL_STEPS)?;
                let inner = scope.inner();
                self.assign(&definition.target, item.clone(), &inner)?;
                if self.evaluate(condition, &inner)?.is_true() {
                    kept.push(item);
                }
            }
            items = kept;
        }
        let recursion = if definition.recursive {
            Some((definition.clone(), self.capture(scope)?))
        } else {
            None
        };
        let state = Rc::new(Loop {
            items: Seq::new(items)?,
            index: Cell::new(0),
            level,
            changed: RefCell::default(),
            recursion,
        });
        let name = Arc::from("loop");
        // Jinja2 counts an iteration only when it reached the end of the body.
        let mut done_one = false;
        for (index, item) in state.items.items.iter().enumerate() {
            self.budget.steps(CALL_STEPS)?;
            state.index.set(index);
            let inner = scope.inner();
            inner.set(&name, Value::Loop(state.clone()));
            self.assign(&definition.target, item.clone(), &inner)?;
            match self.run(&definition.body, &inner, out)? {
                Flow::Break => break,
                Flow::Continue => {}
                Flow::Through => done_one = true,
            }
        }
        if !done_one {
            self.run(&definition.otherwise, &scope.inner(), out)?;
        }
        Ok(())
    }

    /// `loop(iterable)` inside a recursive loop.
    pub fn recurse(&self, state: &Loop, iterable: &Value) -> Result<Value> {
        let Some((definition, scope)) = &state.recursion else {
            return fail("The loop must have the 'recursive' marker to be called recursively.");
        };
        let mut out = String::new();
        self.loop_over(definition, iterable, state.level + 1, scope, &mut out)?;
        Ok(Value::text(out))
    }

    /// Calls a block again, as `self.name()` does.
    pub fn block(&self, name: &str) -> Result<Value> {
        match self.blocks.iter().find(|block| &*block.name == name) {
            Some(block) => {
                let text = self.captured_output(&block.body, &self.root.inner())?;
                Ok(Value::text(text))
            }
            None => fail(format!("there is no block '{name}'")),
        }
    }

    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    pub fn has_block(&self, name: &str) -> bool {
        self.blocks.iter().any(|block| &*block.name == name)
    }

    fn macro_value(&self, definition: &Arc<Macro>, scope: &Rc<Scope>) -> Result<Value> {
        let scope = self.capture(scope)?;
        let callable = Callable::Macro(definition.clone(), scope);
        Ok(Value::Callable(Rc::new(callable)))
    }

    /// Calls a macro as Jinja2 does: parameters by position, then by name, then by default.
    pub fn call_macro(&self, definition: &Macro, scope: &Rc<Scope>, args: Args) -> Result<Value> {
        let inner = scope.inner();
        let name = definition.name.as_deref().unwrap_or("caller");
        let Args {
            positional,
            mut keyword,
        } = args;
        self.budget.steps(CALL_STEPS)?;
        self.budget
            .scans(definition.parameters.len().saturating_mul(keyword.len()))?;
        let mut take = |name: &str| {
            let at = keyword.iter().position(|(key, _)| &**key == name)?;
            Some(keyword.remove(at).1)
        };
        let mut positional = positional.into_iter();
        let mut given = Vec::with_capacity(definition.parameters.len());
        for (parameter, _) in &definition.parameters {
            given.push(positional.next().or_else(|| take(parameter)));
        }
        let explicit_caller = definition.parameters.iter().any(|(p, _)| &**p == "caller");
        if definition.uses.caller && !explicit_caller {
            let caller = take("caller").unwrap_or_else(|| Value::undefined("No caller defined"));
            inner.set(&Arc::from("caller"), caller);
        }
        if definition.uses.kwargs {
            let mut rest = Dict::default();
            for (key, value) in keyword {
                rest.insert(Value::text(key), value, &self.budget)?;
            }
            inner.set(&Arc::from("kwargs"), Value::Dict(Rc::new(rest)));
        } else if let Some((key, _)) = keyword.first() {
            return fail(format!(
                "macro {} takes no keyword argument {}",
                repr(name),
                repr(key)
            ));
        }
        if definition.uses.varargs {
            let rest = Value::tuple(positional.collect())?;
            inner.set(&Arc::from("varargs"), rest);
        } else if positional.next().is_some() {
            let count = definition.parameters.len();
            return fail(format!(
                "macro {} takes not more than {count} argument(s)",
                repr(name)
            ));
        }
        for ((parameter, default), value) in definition.parameters.iter().zip(given) {
            let value = match (value, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.evaluate(default, &inner)?,
                (None, None) => {
                    Value::undefined(format!("parameter {} was not provided", repr(parameter)))
                }
            };
            inner.set(parameter, value);
        }
        Ok(Value::text(self.captured_output(&definition.body, &inner)?))
    }
}
