//! Expressions, loosest operator first.

use std::sync::Arc;

use super::{MAX_DEPTH, Parser};
use crate::template::jinja::ast::{
    Arguments, CallExpr, Comparison, Conditional, Expr, FilterCall, Literal, Operator, SliceExpr,
    TestExpr,
};
use crate::template::jinja::budget::limit;
use crate::template::jinja::error::{Result, syntax};
use crate::template::jinja::filters;
use crate::template::jinja::lexer::Token;
use crate::template::jinja::predicates;
use crate::template::jinja::strings::repr;

impl Parser {
    pub(super) fn expression(&mut self) -> Result<Expr> {
        self.nested(Self::choice)
    }

    /// One expression, or a tuple without brackets. An `if` that belongs to the tag is not part of
    /// it.
    pub(super) fn tuple(&mut self, with_choice: bool) -> Result<Expr> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            let ends = matches!(
                self.token(),
                Token::VariableEnd | Token::BlockEnd | Token::Symbol(")")
            );
            if is_tuple && (ends || self.is_name("recursive")) {
                break;
            }
            items.push(if with_choice {
                self.expression()?
            } else {
                self.nested(Self::any)?
            });
            if !self.skip_symbol(",") {
                break;
            }
            is_tuple = true;
        }
        Ok(match items.pop() {
            Some(only) if items.is_empty() && !is_tuple => only,
            last => {
                items.extend(last);
                Expr::Tuple(items)
            }
        })
    }

    /// `a if b else c`; filters in it may never be reached.
    fn choice(&mut self) -> Result<Expr> {
        let unknown = self.unknown.len();
        let mut expr = self.any()?;
        while self.skip_name("if") {
            let condition = self.any()?;
            let otherwise = if self.skip_name("else") {
                Some(self.nested(Self::choice)?)
            } else {
                None
            };
            expr = Expr::Conditional(Box::new(Conditional {
                condition,
                then: expr,
                otherwise,
            }));
            self.unknown.truncate(unknown);
        }
        Ok(expr)
    }

    fn any(&mut self) -> Result<Expr> {
        let mut parts = vec![self.every()?];
        while self.skip_name("or") {
            parts.push(self.every()?);
        }
        Ok(single(parts, Expr::Or))
    }

    fn every(&mut self) -> Result<Expr> {
        let mut parts = vec![self.negation()?];
        while self.skip_name("and") {
            parts.push(self.negation()?);
        }
        Ok(single(parts, Expr::And))
    }

    fn negation(&mut self) -> Result<Expr> {
        if self.skip_name("not") {
            let inner = self.nested(Self::negation)?;
            Ok(Expr::Not(Box::new(inner)))
        } else {
            self.comparison()
        }
    }

    fn comparison(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut steps = Vec::new();
        while let Some(comparison) = self.comparison_sign() {
            steps.push((comparison, self.sum()?));
        }
        Ok(if steps.is_empty() {
            first
        } else {
            Expr::Compare(Box::new(first), steps)
        })
    }

    fn comparison_sign(&mut self) -> Option<Comparison> {
        let comparison = match self.token() {
            Token::Symbol("==") => Comparison::Equal,
            Token::Symbol("!=") => Comparison::NotEqual,
            Token::Symbol("<") => Comparison::Less,
            Token::Symbol("<=") => Comparison::LessEqual,
            Token::Symbol(">") => Comparison::Greater,
            Token::Symbol(">=") => Comparison::GreaterEqual,
            Token::Name(name) if name == "in" => Comparison::In,
            Token::Name(name) if name == "not" => match self.ahead() {
                Token::Name(next) if next == "in" => {
                    self.advance();
                    Comparison::NotIn
                }
                _ => return None,
            },
            _ => return None,
        };
        self.advance();
        Some(comparison)
    }

    fn sum(&mut self) -> Result<Expr> {
        const SIGNS: &[(&str, Operator)] = &[("+", Operator::Add), ("-", Operator::Subtract)];
        self.arithmetic(SIGNS, Self::concat)
    }

    fn concat(&mut self) -> Result<Expr> {
        let mut parts = vec![self.product()?];
        while self.skip_symbol("~") {
            parts.push(self.product()?);
        }
        Ok(single(parts, Expr::Concat))
    }

    fn product(&mut self) -> Result<Expr> {
        const SIGNS: &[(&str, Operator)] = &[
            ("*", Operator::Multiply),
            ("/", Operator::Divide),
            ("//", Operator::FloorDivide),
            ("%", Operator::Modulo),
        ];
        self.arithmetic(SIGNS, Self::power)
    }

    /// From left to right, unlike Python's own.
    fn power(&mut self) -> Result<Expr> {
        self.arithmetic(&[("**", Operator::Power)], |parser| parser.unary(true))
    }

    fn arithmetic(
        &mut self,
        signs: &[(&str, Operator)],
        operand: fn(&mut Self) -> Result<Expr>,
    ) -> Result<Expr> {
        let first = operand(self)?;
        let mut steps = Vec::new();
        while let Some((_, operator)) = signs.iter().find(|(sign, _)| self.is_symbol(sign)) {
            self.advance();
            steps.push((*operator, operand(self)?));
        }
        Ok(if steps.is_empty() {
            first
        } else {
            Expr::Arithmetic(Box::new(first), steps)
        })
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expr> {
        let expr = if self.skip_symbol("-") {
            let inner = self.nested(|parser| parser.unary(false))?;
            Expr::Negative(Box::new(inner))
        } else if self.skip_symbol("+") {
            let inner = self.nested(|parser| parser.unary(false))?;
            Expr::Positive(Box::new(inner))
        } else {
            self.primary()?
        };
        let expr = self.postfix(expr)?;
        if with_filters {
            self.filtered(expr)
        } else {
            Ok(expr)
        }
    }

    fn primary(&mut self) -> Result<Expr> {
        let line = self.line();
        match self.token() {
            Token::Name(_) => {
                let name = self.expect_name()?;
                Ok(self.named(name))
            }
            Token::Str(_) => {
                let mut text = String::new();
                while let Token::Str(_) = self.token() {
                    if let Token::Str(part) = self.advance() {
                        text.push_str(&part);
                    }
                }
                Ok(Expr::Literal(Literal::Str(text.into())))
            }
            Token::Int(number) => {
                let literal = Literal::Int(*number);
                self.advance();
                Ok(Expr::Literal(literal))
            }
            Token::Float(number) => {
                let literal = Literal::Float(*number);
                self.advance();
                Ok(Expr::Literal(literal))
            }
            Token::Symbol("(") => self.parenthesis(),
            Token::Symbol("[") => self.list(),
            Token::Symbol("{") => self.dict(),
            Token::End => syntax(line, "the template ends inside an expression"),
            _ => self.unexpected("an expression"),
        }
    }

    fn named(&mut self, name: Arc<str>) -> Expr {
        const SPECIAL: [&str; 3] = ["caller", "kwargs", "varargs"];
        if let Some(at) = SPECIAL.iter().position(|special| **special == *name) {
            self.uses[at] += 1;
        }
        match &*name {
            "true" | "True" => Expr::Literal(Literal::Bool(true)),
            "false" | "False" => Expr::Literal(Literal::Bool(false)),
            "none" | "None" => Expr::Literal(Literal::None),
            _ => {
                self.names.insert(name.clone());
                Expr::Name(name)
            }
        }
    }

    fn parenthesis(&mut self) -> Result<Expr> {
        self.expect_symbol("(")?;
        if self.skip_symbol(")") {
            return Ok(Expr::Tuple(Vec::new()));
        }
        let inner = self.tuple(true)?;
        self.expect_symbol(")")?;
        Ok(inner)
    }

    fn list(&mut self) -> Result<Expr> {
        self.expect_symbol("[")?;
        let mut items = Vec::new();
        while !self.is_symbol("]") {
            items.push(self.expression()?);
            if !self.skip_symbol(",") {
                break;
            }
        }
        self.expect_symbol("]")?;
        Ok(Expr::List(items))
    }

    fn dict(&mut self) -> Result<Expr> {
        self.expect_symbol("{")?;
        let mut entries = Vec::new();
        while !self.is_symbol("}") {
            let key = self.expression()?;
            self.expect_symbol(":")?;
            entries.push((key, self.expression()?));
            if !self.skip_symbol(",") {
                break;
            }
        }
        self.expect_symbol("}")?;
        Ok(Expr::Dict(entries))
    }

    /// Attributes, items and calls.
    fn postfix(&mut self, mut expr: Expr) -> Result<Expr> {
        for _ in 0..MAX_DEPTH {
            expr = match self.token() {
                Token::Symbol(".") => self.attribute(expr)?,
                Token::Symbol("[") => self.subscript(expr)?,
                Token::Symbol("(") => self.call(expr)?,
                _ => return Ok(expr),
            };
        }
        self.too_long()
    }

    /// Filters and tests.
    fn filtered(&mut self, mut expr: Expr) -> Result<Expr> {
        for _ in 0..MAX_DEPTH {
            expr = if self.skip_symbol("|") {
                let call = self.filter_call()?;
                Expr::Filter(Box::new((expr, call)))
            } else if self.skip_name("is") {
                self.test(expr)?
            } else if self.is_symbol("(") {
                self.call(expr)?
            } else {
                return Ok(expr);
            };
        }
        self.too_long()
    }

    fn too_long<T>(&self) -> Result<T> {
        let line = self.line();
        limit("an expression is too long").map_err(|fault| fault.at(line))
    }

    fn attribute(&mut self, base: Expr) -> Result<Expr> {
        self.expect_symbol(".")?;
        match self.token() {
            Token::Name(_) => Ok(Expr::Attribute(Box::new(base), self.expect_name()?)),
            Token::Int(index) => {
                let index = Expr::Literal(Literal::Int(*index));
                self.advance();
                Ok(Expr::Item(Box::new((base, index))))
            }
            _ => self.unexpected("a name or a number"),
        }
    }

    fn subscript(&mut self, base: Expr) -> Result<Expr> {
        self.expect_symbol("[")?;
        let start = if self.is_symbol(":") {
            None
        } else {
            Some(self.expression()?)
        };
        if let Some(index) = start {
            if self.is_symbol(",") {
                let line = self.line();
                return syntax(
                    line,
                    "several indices in one pair of brackets are not supported",
                );
            }
            if self.skip_symbol("]") {
                return Ok(Expr::Item(Box::new((base, index))));
            }
            return self.slice(base, Some(index));
        }
        self.slice(base, None)
    }

    /// The rest of a slice, from its first colon.
    fn slice(&mut self, base: Expr, start: Option<Expr>) -> Result<Expr> {
        self.expect_symbol(":")?;
        let bound = |parser: &mut Self| match parser.token() {
            Token::Symbol(":" | "]") => Ok(None),
            _ => parser.expression().map(Some),
        };
        let stop = bound(self)?;
        let step = if self.skip_symbol(":") {
            bound(self)?
        } else {
            None
        };
        self.expect_symbol("]")?;
        Ok(Expr::Slice(Box::new(SliceExpr {
            base,
            start,
            stop,
            step,
        })))
    }

    fn call(&mut self, callee: Expr) -> Result<Expr> {
        let arguments = self.arguments()?;
        Ok(Expr::Call(Box::new(CallExpr { callee, arguments })))
    }

    fn arguments(&mut self) -> Result<Arguments> {
        let mut arguments = Arguments::default();
        self.expect_symbol("(")?;
        while !self.is_symbol(")") {
            let line = self.line();
            if self.skip_symbol("**") {
                let rest = self.expression()?;
                if arguments.keyword_rest.replace(rest).is_some() {
                    return syntax(line, "`**` is allowed only once in a call");
                }
            } else if self.skip_symbol("*") {
                let rest = self.expression()?;
                if arguments.keyword_rest.is_some() || arguments.rest.replace(rest).is_some() {
                    return syntax(line, "`*` is allowed only once in a call, before `**`");
                }
            } else if let (Token::Name(_), Token::Symbol("=")) = (self.token(), self.ahead()) {
                let name = self.expect_name()?;
                self.advance();
                if arguments.keyword_rest.is_some() {
                    return syntax(line, "an argument follows `**`");
                }
                let value = self.expression()?;
                arguments.keyword.push((name, value));
            } else {
                let is_late = !arguments.keyword.is_empty()
                    || arguments.rest.is_some()
                    || arguments.keyword_rest.is_some();
                if is_late {
                    return syntax(line, "a positional argument follows a keyword argument");
                }
                arguments.positional.push(self.expression()?);
            }
            if !self.skip_symbol(",") {
                break;
            }
        }
        self.expect_symbol(")")?;
        Ok(arguments)
    }

    /// A filter after its `|`.
    pub(super) fn filter_call(&mut self) -> Result<FilterCall> {
        let line = self.line();
        let name = self.dotted_name()?;
        let filter = filters::find(&name);
        if filter.is_none() {
            let reason = format!("No filter named {}.", repr(&name));
            self.unknown.push((reason, line));
        }
        let arguments = if self.is_symbol("(") {
            self.arguments()?
        } else {
            Arguments::default()
        };
        Ok(FilterCall {
            name,
            filter,
            arguments,
        })
    }

    fn dotted_name(&mut self) -> Result<Arc<str>> {
        let mut name = self.expect_name()?.to_string();
        while self.skip_symbol(".") {
            name.push('.');
            name.push_str(&self.expect_name()?);
        }
        Ok(name.into())
    }

    /// A test after its `is`.
    fn test(&mut self, value: Expr) -> Result<Expr> {
        let line = self.line();
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let test = predicates::find(&name);
        if test.is_none() {
            let reason = format!("No test named {}.", repr(&name));
            self.unknown.push((reason, line));
        }
        let arguments = match self.token() {
            Token::Symbol("(") => self.arguments()?,
            Token::Name(next) if ["else", "or", "and"].contains(&next.as_str()) => {
                Arguments::default()
            }
            Token::Name(next) if next == "is" => {
                return syntax(line, "You cannot chain multiple tests with is");
            }
            Token::Name(_)
            | Token::Str(_)
            | Token::Int(_)
            | Token::Float(_)
            | Token::Symbol("[" | "{") => {
                let argument = self.primary()?;
                let argument = self.postfix(argument)?;
                Arguments {
                    positional: vec![argument],
                    ..Arguments::default()
                }
            }
            _ => Arguments::default(),
        };
        let test = Expr::Test(Box::new(TestExpr {
            value,
            name,
            test,
            arguments,
        }));
        Ok(if negated {
            Expr::Not(Box::new(test))
        } else {
            test
        })
    }
}

/// The only part, or all of them under their operator.
fn single(mut parts: Vec<Expr>, operator: fn(Vec<Expr>) -> Expr) -> Expr {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        last => {
            parts.extend(last);
            operator(parts)
        }
    }
}
