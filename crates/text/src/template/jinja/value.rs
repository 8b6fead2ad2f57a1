//! Values as a template sees them: Python's, because templates are written for Python.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;

use super::ast::{For, Literal, Macro};
use super::budget::{Budget, SMALL, VALUE_DEPTH, limit};
use super::dict::{Dict, View};
use super::error::{FaultKind, Result, TemplateFault, fail};
use super::globals::Function;
use super::scope::Scope;

#[derive(Clone)]
pub(super) enum Value {
    Undefined(Rc<Missing>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Str),
    List(Rc<Seq>),
    Tuple(Rc<Seq>),
    Dict(Rc<Dict>),
    /// The result of a dict's `keys`, `values` and `items`.
    View(View, Rc<Dict>),
    Range(Range),
    /// A generator: yields its items once, has no length and no text.
    Iterator(Rc<Generator>),
    Namespace(Rc<RefCell<Dict>>),
    Loop(Rc<Loop>),
    Callable(Rc<Callable>),
    /// `cycler(…)`
    Cycler(Rc<Cycler>),
    /// `self`, by which blocks are called again.
    Template,
}

/// A missing value, with the error for its use.
pub(super) struct Missing {
    pub reason: String,
}

/// A string. `markup` is Jinja2's `Markup`, which escapes whatever is added to it.
#[derive(Clone)]
pub(super) struct Str {
    pub text: Arc<str>,
    pub markup: bool,
}

/// The items of a list or a tuple.
pub(super) struct Seq {
    pub items: Vec<Value>,
    depth: u32,
    /// The tuples of `groupby` have `grouper` and `list`.
    pub is_group: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub start: i128,
    pub stop: i128,
    pub step: i128,
}

pub(super) struct Generator {
    items: RefCell<std::vec::IntoIter<Value>>,
    depth: u32,
}

/// The variable `loop`.
pub(super) struct Loop {
    pub items: Seq,
    pub index: Cell<usize>,
    /// The depth of recursive loops.
    pub level: usize,
    pub changed: RefCell<Option<Vec<Value>>>,
    /// The scope in which a recursive loop was defined.
    pub recursion: Option<(Arc<For>, Rc<Scope>)>,
}

pub(super) enum Callable {
    Function(&'static Function),
    Macro(Arc<Macro>, Rc<Scope>),
    Method(Value, &'static str),
    /// `joiner(…)`: the separator, and whether it was called before.
    Joiner(Value, Cell<bool>),
    Block(Arc<str>),
}

pub(super) struct Cycler {
    pub items: Seq,
    pub at: Cell<usize>,
}

impl Value {
    pub fn undefined(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::Undefined(Rc::new(Missing { reason }))
    }

    pub fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Str(Str::plain(text))
    }

    pub fn list(items: Vec<Value>) -> Result<Self> {
        Ok(Self::List(Rc::new(Seq::new(items)?)))
    }

    pub fn tuple(items: Vec<Value>) -> Result<Self> {
        Ok(Self::Tuple(Rc::new(Seq::new(items)?)))
    }

    pub fn iterator(items: Vec<Value>) -> Result<Self> {
        Ok(Self::Iterator(Rc::new(Generator {
            depth: deeper(items.iter())?,
            items: RefCell::new(items.into_iter()),
        })))
    }

    pub fn joiner(separator: Value) -> Result<Self> {
        deeper([&separator].into_iter())?;
        let joiner = Callable::Joiner(separator, Cell::new(false));
        Ok(Self::Callable(Rc::new(joiner)))
    }

    pub fn method(receiver: &Value, name: &'static str) -> Self {
        Self::Callable(Rc::new(Callable::Method(receiver.clone(), name)))
    }

    /// A JSON value.
    pub fn from_json(json: &Json, budget: &Budget) -> Result<Self> {
        budget.steps(1)?;
        Ok(match json {
            Json::Null => Self::None,
            Json::Bool(flag) => Self::Bool(*flag),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Self::Int(number.into()),
                (None, Some(number)) => Self::Int(number.into()),
                (None, None) => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => {
                budget.bytes(text.len())?;
                Self::text(text.as_str())
            }
            Json::Array(items) => {
                budget.items::<Value>(items.len(), 0)?;
                let items = items.iter().map(|item| Self::from_json(item, budget));
                Self::list(items.collect::<Result<_>>()?)?
            }
            Json::Object(map) => {
                let mut dict = Dict::default();
                for (key, item) in map {
                    let value = Self::from_json(item, budget)?;
                    dict.insert(Self::text(key.as_str()), value, budget)?;
                }
                Self::Dict(Rc::new(dict))
            }
        })
    }

    /// `bool(value)`
    pub fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(flag) => *flag,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Str(text) => !text.text.is_empty(),
            Self::List(seq) | Self::Tuple(seq) => !seq.items.is_empty(),
            Self::Dict(dict) | Self::View(_, dict) => dict.len() > 0,
            Self::Range(range) => range.len() > 0,
            Self::Loop(state) => !state.items.items.is_empty(),
            _ => true,
        }
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(&text.text),
            _ => None,
        }
    }

    /// An integer, which to Python a boolean is too.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(flag) => Some((*flag).into()),
            _ => None,
        }
    }

    /// `type(value).__name__`
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(text) if text.markup => "Markup",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::View(View::Keys, _) => "dict_keys",
            Self::View(View::Values, _) => "dict_values",
            Self::View(View::Items, _) => "dict_items",
            Self::Range(_) => "range",
            Self::Iterator(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Loop(_) => "LoopContext",
            Self::Cycler(_) => "Cycler",
            Self::Template => "TemplateReference",
            Self::Callable(callable) => match **callable {
                Callable::Macro(..) => "Macro",
                Callable::Joiner(..) => "Joiner",
                Callable::Block(..) => "BlockReference",
                Callable::Function(_) | Callable::Method(..) => "function",
            },
        }
    }

    /// `len(value)`
    pub fn length(&self, budget: &Budget) -> Result<usize> {
        Ok(match self {
            Self::Undefined(_) => 0,
            Self::Str(text) => {
                budget.reads(text.text.len())?;
                text.text.chars().count()
            }
            Self::List(seq) | Self::Tuple(seq) => seq.items.len(),
            Self::Dict(dict) | Self::View(_, dict) => dict.len(),
            Self::Range(range) => range.len(),
            Self::Loop(state) => state.items.items.len(),
            other => {
                return fail(format!(
                    "object of type '{}' has no len()",
                    other.type_name()
                ));
            }
        })
    }

    /// `list(iter(value))`; a generator is empty afterwards.
    pub fn items(&self, budget: &Budget) -> Result<Vec<Value>> {
        let pay = |count: usize, extra: usize| {
            budget.steps(count)?;
            budget.items::<Value>(count, extra)
        };
        Ok(match self {
            Self::Undefined(_) => Vec::new(),
            Self::Str(text) => {
                budget.reads(text.text.len())?;
                pay(text.text.chars().count(), SMALL)?;
                let mut buffer = [0; 4];
                let character = |c: char| Self::text(&*c.encode_utf8(&mut buffer));
                text.text.chars().map(character).collect()
            }
            Self::List(seq) | Self::Tuple(seq) => {
                pay(seq.items.len(), 0)?;
                seq.items.clone()
            }
            Self::Dict(dict) => dict.view(View::Keys, budget)?,
            Self::View(view, dict) => dict.view(*view, budget)?,
            Self::Range(range) => {
                pay(range.len(), 0)?;
                range.iter().map(Self::Int).collect()
            }
            Self::Iterator(generator) => {
                let mut items = generator.items.borrow_mut();
                pay(items.len(), 0)?;
                items.by_ref().collect()
            }
            other => return fail(format!("'{}' object is not iterable", other.type_name())),
        })
    }

    /// The next item, as `next(iter(value))`.
    pub fn first(&self, budget: &Budget) -> Result<Option<Value>> {
        match self {
            Self::Iterator(generator) => Ok(generator.items.borrow_mut().next()),
            other => Ok(other.items(budget)?.into_iter().next()),
        }
    }

    pub fn is_iterable(&self) -> bool {
        matches!(
            self,
            Self::Undefined(_)
                | Self::Str(_)
                | Self::List(_)
                | Self::Tuple(_)
                | Self::Dict(_)
                | Self::View(..)
                | Self::Range(_)
                | Self::Iterator(_)
        )
    }

    /// How deep lists and dicts lie in each other.
    fn depth(&self) -> u32 {
        match self {
            Self::List(seq) | Self::Tuple(seq) => seq.depth,
            Self::Dict(dict) | Self::View(_, dict) => dict.depth(),
            Self::Iterator(generator) => generator.depth,
            Self::Loop(state) => state.items.depth,
            Self::Cycler(cycler) => cycler.items.depth,
            Self::Callable(callable) => match &**callable {
                Callable::Method(receiver, _) => receiver.depth() + 1,
                Callable::Joiner(separator, _) => separator.depth() + 1,
                _ => 0,
            },
            _ => 0,
        }
    }
}

/// The depth of a container of these values. Refused if it could not be freed safely.
pub(super) fn deeper<'v>(values: impl Iterator<Item = &'v Value>) -> Result<u32> {
    let depth = 1 + values.map(Value::depth).max().unwrap_or(0);
    if depth > VALUE_DEPTH {
        limit("the template nests lists or dicts too deep")
    } else {
        Ok(depth)
    }
}

impl From<&Literal> for Value {
    fn from(literal: &Literal) -> Self {
        match literal {
            Literal::None => Self::None,
            Literal::Bool(flag) => Self::Bool(*flag),
            Literal::Int(number) => Self::Int(*number),
            Literal::Float(number) => Self::Float(*number),
            Literal::Str(text) => Self::text(text.clone()),
        }
    }
}

impl Missing {
    /// The error of any use but printing, counting and testing.
    pub fn used<T>(&self) -> Result<T> {
        Err(TemplateFault::new(FaultKind::Failed, &*self.reason))
    }
}

impl Str {
    pub fn plain(text: impl Into<Arc<str>>) -> Self {
        Self {
            text: text.into(),
            markup: false,
        }
    }

    pub fn markup(text: impl Into<Arc<str>>) -> Self {
        Self {
            text: text.into(),
            markup: true,
        }
    }

    /// Another text of the same kind, as the methods of `Markup` return `Markup`.
    pub fn alike(&self, text: impl Into<Arc<str>>) -> Value {
        Value::Str(Self {
            text: text.into(),
            markup: self.markup,
        })
    }
}

impl Seq {
    pub fn new(items: Vec<Value>) -> Result<Self> {
        Ok(Self {
            depth: deeper(items.iter())?,
            items,
            is_group: false,
        })
    }

    /// A tuple of `groupby`.
    pub fn group(key: Value, items: Value) -> Result<Self> {
        Ok(Self {
            is_group: true,
            ..Self::new(vec![key, items])?
        })
    }
}

impl Range {
    pub fn len(&self) -> usize {
        let (low, high, step) = if self.step > 0 {
            (self.start, self.stop, self.step)
        } else {
            (self.stop, self.start, -self.step)
        };
        if low < high {
            usize::try_from((high - low - 1) / step + 1).unwrap_or(usize::MAX)
        } else {
            0
        }
    }

    pub fn contains(&self, number: i128) -> bool {
        let (low, high) = if self.step > 0 {
            (self.start, self.stop - 1)
        } else {
            (self.stop + 1, self.start)
        };
        (low..=high).contains(&number) && (number - self.start) % self.step == 0
    }

    pub fn at(&self, index: usize) -> i128 {
        self.start + self.step * index as i128
    }

    pub fn iter(self) -> impl Iterator<Item = i128> {
        (0..self.len()).map(move |index| self.at(index))
    }
}
