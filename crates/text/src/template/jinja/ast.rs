//! A template as a tree.
//!
//! Chains of one operator are flat, so the depth of the tree follows the template's nesting. Bodies
//! that values refer to at run time (macros, recursive loops) are shared.

use std::sync::Arc;

use super::filters::Filter;
use super::predicates::Test;

pub(super) type Name = Arc<str>;
pub(super) type Body = Vec<Statement>;

#[derive(Debug)]
pub(super) struct Statement {
    pub line: u32,
    pub kind: StatementKind,
}

#[derive(Debug)]
pub(super) enum StatementKind {
    Text(String),
    Print(Expr),
    Set(Target, Expr),
    /// `{% set x | filter %}…{% endset %}`
    SetBlock(Target, Vec<FilterCall>, Body),
    /// Branches in order, then the body of `else`.
    If(Vec<(Expr, Body)>, Body),
    For(Arc<For>),
    Macro(Arc<Macro>),
    /// `{% call(…) f(…) %}…{% endcall %}`: the call, and the body as a macro.
    Call(CallExpr, Arc<Macro>),
    FilterBlock(Vec<FilterCall>, Body),
    With(Vec<(Target, Expr)>, Body),
    /// `{% generation %}`: a macro that is called in place.
    Generation(Arc<Macro>),
    Block(Arc<Block>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub target: Target,
    pub iterable: Expr,
    pub condition: Option<Expr>,
    pub recursive: bool,
    pub body: Body,
    pub otherwise: Body,
}

#[derive(Debug)]
pub(super) struct Macro {
    /// Absent for the body of a call block.
    pub name: Option<Name>,
    pub parameters: Vec<(Name, Option<Expr>)>,
    pub body: Body,
    pub uses: SpecialNames,
}

/// Which of the names for a macro's extra arguments its body mentions. A macro accepts only those
/// it mentions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SpecialNames {
    pub caller: bool,
    pub kwargs: bool,
    pub varargs: bool,
}

#[derive(Debug)]
pub(super) struct Block {
    pub name: Name,
    /// Sees the variables around it.
    pub scoped: bool,
    pub body: Body,
}

#[derive(Debug)]
pub(super) enum Target {
    Name(Name),
    /// `ns.attribute`
    Attribute(Name, Name),
    Tuple(Vec<Target>),
}

#[derive(Debug, Clone)]
pub(super) enum Literal {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
}

#[derive(Debug)]
pub(super) enum Expr {
    Literal(Literal),
    Name(Name),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attribute(Box<Expr>, Name),
    Item(Box<(Expr, Expr)>),
    Slice(Box<SliceExpr>),
    Call(Box<CallExpr>),
    Filter(Box<(Expr, FilterCall)>),
    Test(Box<TestExpr>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    /// Evaluated from left to right.
    Arithmetic(Box<Expr>, Vec<(Operator, Expr)>),
    /// `a ~ b ~ …`
    Concat(Vec<Expr>),
    /// `a < b < …`
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    Conditional(Box<Conditional>),
}

#[derive(Debug)]
pub(super) struct SliceExpr {
    pub base: Expr,
    pub start: Option<Expr>,
    pub stop: Option<Expr>,
    pub step: Option<Expr>,
}

#[derive(Debug)]
pub(super) struct CallExpr {
    pub callee: Expr,
    pub arguments: Arguments,
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub positional: Vec<Expr>,
    pub keyword: Vec<(Name, Expr)>,
    /// `*list`
    pub rest: Option<Expr>,
    /// `**dict`
    pub keyword_rest: Option<Expr>,
}

#[derive(Debug)]
pub(super) struct FilterCall {
    pub name: Name,
    /// `None` if the filter does not exist, which is an error only when it is reached.
    pub filter: Option<Filter>,
    pub arguments: Arguments,
}

#[derive(Debug)]
pub(super) struct TestExpr {
    pub value: Expr,
    pub name: Name,
    pub test: Option<Test>,
    pub arguments: Arguments,
}

#[derive(Debug)]
pub(super) struct Conditional {
    pub condition: Expr,
    pub then: Expr,
    pub otherwise: Option<Expr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}
