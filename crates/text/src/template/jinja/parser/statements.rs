//! Tags: `{% … %}`.

use std::sync::Arc;

use super::Parser;
use crate::template::jinja::ast::{
    Block, Body, Expr, FilterCall, For, Macro, SpecialNames, Statement, StatementKind, Target,
};
use crate::template::jinja::error::{Result, syntax};
use crate::template::jinja::lexer::Token;

/// Tags that refer to another template, which chat templates do not have.
const OTHER_TEMPLATES: [&str; 4] = ["extends", "from", "import", "include"];

impl Parser {
    /// Statements up to a tag with one of these names, or to the end of the template if there are
    /// none. The name is not consumed.
    pub(super) fn body(&mut self, ends: &[&str]) -> Result<Body> {
        self.nested(|parser| parser.statements(ends))
    }

    fn statements(&mut self, ends: &[&str]) -> Result<Body> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let kind = match self.advance() {
                Token::Data(text) => StatementKind::Text(text),
                Token::VariableBegin => {
                    let expr = self.tuple(true)?;
                    match self.token() {
                        Token::VariableEnd => self.advance(),
                        _ => return self.unexpected("`}}`"),
                    };
                    StatementKind::Print(expr)
                }
                Token::BlockBegin => {
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    let kind = self.tag()?;
                    self.expect_block_end()?;
                    kind
                }
                _ if ends.is_empty() => return Ok(body),
                _ => {
                    let wanted = ends.join("` or `");
                    return syntax(line, format!("the template ends before `{wanted}`"));
                }
            };
            body.push(Statement { line, kind });
        }
    }

    fn tag(&mut self) -> Result<StatementKind> {
        let line = self.line();
        let name = self.expect_name()?;
        match &*name {
            "set" => self.set(),
            "if" => self.conditional(Self::if_tag),
            "for" => self.for_tag(),
            "macro" => self.macro_tag(),
            "call" => self.call_tag(),
            "filter" => self.filter_tag(),
            "with" => self.with_tag(),
            "block" => self.block_tag(),
            "generation" => {
                let body = self.macro_body(None, Vec::new(), "endgeneration")?;
                Ok(StatementKind::Generation(body))
            }
            "break" | "continue" if !self.in_loop => {
                syntax(line, format!("`{name}` outside a loop"))
            }
            "break" => Ok(StatementKind::Break),
            "continue" => Ok(StatementKind::Continue),
            other if OTHER_TEMPLATES.contains(&other) => syntax(
                line,
                format!("`{other}` names another template, and there is only this one"),
            ),
            other => syntax(line, format!("unknown tag `{other}`")),
        }
    }

    /// The body after `%}`, up to and with the name of its end tag.
    fn body_until(&mut self, end: &str) -> Result<Body> {
        let body = self.open_body(&[end])?;
        self.expect_word(end)?;
        Ok(body)
    }

    /// The body after `%}`; the name of the tag that ends it is not passed.
    fn open_body(&mut self, ends: &[&str]) -> Result<Body> {
        self.skip_symbol(":");
        self.expect_block_end()?;
        self.body(ends)
    }

    /// Parses a body that Python runs as a separate function: enclosing loops do not count.
    fn outside_loops<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(T, SpecialNames)> {
        let in_loop = std::mem::replace(&mut self.in_loop, false);
        let result = self.frame(inner);
        self.in_loop = in_loop;
        result
    }

    fn set(&mut self) -> Result<StatementKind> {
        let target = self.targets(true)?;
        if self.skip_symbol("=") {
            return Ok(StatementKind::Set(target, self.tuple(true)?));
        }
        let filters = self.filters()?;
        let (body, _) = self.frame(|parser| parser.body_until("endset"))?;
        Ok(StatementKind::SetBlock(target, filters, body))
    }

    fn filters(&mut self) -> Result<Vec<FilterCall>> {
        let mut filters = Vec::new();
        while self.skip_symbol("|") {
            filters.push(self.filter_call()?);
        }
        Ok(filters)
    }

    /// One target, or several with commas between them.
    fn targets(&mut self, with_attributes: bool) -> Result<Target> {
        let mut targets = vec![self.target(with_attributes)?];
        let mut is_tuple = false;
        while self.skip_symbol(",") {
            is_tuple = true;
            match self.token() {
                Token::Name(name) if name != "in" => targets.push(self.target(with_attributes)?),
                Token::Symbol("(") => targets.push(self.target(with_attributes)?),
                _ => break,
            }
        }
        Ok(match targets.pop() {
            Some(only) if targets.is_empty() && !is_tuple => only,
            last => {
                targets.extend(last);
                Target::Tuple(targets)
            }
        })
    }

    fn target(&mut self, with_attributes: bool) -> Result<Target> {
        if self.skip_symbol("(") {
            let inner = self.nested(|parser| parser.targets(with_attributes))?;
            self.expect_symbol(")")?;
            return Ok(inner);
        }
        let line = self.line();
        let name = self.expect_name()?;
        if with_attributes && self.skip_symbol(".") {
            return Ok(Target::Attribute(name, self.expect_name()?));
        }
        match &*name {
            "true" | "false" | "none" | "True" | "False" | "None" => {
                syntax(line, format!("`{name}` cannot be assigned to"))
            }
            "loop" if self.in_for => syntax(
                line,
                "Can't assign to special loop variable in for-loop target",
            ),
            _ => Ok(Target::Name(name)),
        }
    }

    fn if_tag(&mut self) -> Result<StatementKind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.tuple(false)?;
            let body = self.open_body(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            if self.skip_name("elif") {
                continue;
            }
            let otherwise = if self.skip_name("else") {
                self.body_until("endif")?
            } else {
                self.expect_word("endif")?;
                Vec::new()
            };
            return Ok(StatementKind::If(branches, otherwise));
        }
    }

    fn for_tag(&mut self) -> Result<StatementKind> {
        let around = (self.in_for, self.in_loop);
        self.in_for = true;
        let target = self.targets(false)?;
        self.expect_word("in")?;
        let iterable = self.tuple(false)?;
        let condition = if self.skip_name("if") {
            Some(self.expression()?)
        } else {
            None
        };
        let recursive = self.skip_name("recursive");
        self.in_loop = true;
        let (body, _) = self.frame(|parser| parser.open_body(&["else", "endfor"]))?;
        // The `else` body runs after the loop.
        self.in_loop = around.1;
        let otherwise = if self.skip_name("else") {
            self.frame(|parser| parser.body_until("endfor"))?.0
        } else {
            self.expect_word("endfor")?;
            Vec::new()
        };
        self.in_for = around.0;
        Ok(StatementKind::For(Arc::new(For {
            target,
            iterable,
            condition,
            recursive,
            body,
            otherwise,
        })))
    }

    fn signature(&mut self) -> Result<Vec<(Arc<str>, Option<Expr>)>> {
        let mut parameters: Vec<(Arc<str>, Option<Expr>)> = Vec::new();
        self.expect_symbol("(")?;
        while !self.is_symbol(")") {
            if !parameters.is_empty() {
                self.expect_symbol(",")?;
            }
            let line = self.line();
            let name = self.expect_name()?;
            let default = if self.skip_symbol("=") {
                Some(self.expression()?)
            } else {
                None
            };
            let after_default = parameters.last().is_some_and(|(_, last)| last.is_some());
            if default.is_none() && after_default {
                return syntax(line, "non-default argument follows default argument");
            }
            parameters.push((name, default));
        }
        self.expect_symbol(")")?;
        Ok(parameters)
    }

    fn macro_body(
        &mut self,
        name: Option<Arc<str>>,
        parameters: Vec<(Arc<str>, Option<Expr>)>,
        end: &str,
    ) -> Result<Arc<Macro>> {
        let line = self.line();
        let (body, mut uses) = self.outside_loops(|parser| parser.body_until(end))?;
        let is_parameter = |name: &str| parameters.iter().find(|(p, _)| &**p == name);
        if let (true, Some((_, None))) = (uses.caller, is_parameter("caller")) {
            return syntax(line, "the parameter `caller` must have a default");
        }
        uses.kwargs &= is_parameter("kwargs").is_none();
        uses.varargs &= is_parameter("varargs").is_none();
        Ok(Arc::new(Macro {
            name,
            parameters,
            body,
            uses,
        }))
    }

    fn macro_tag(&mut self) -> Result<StatementKind> {
        let name = self.expect_name()?;
        let parameters = self.signature()?;
        let definition = self.macro_body(Some(name), parameters, "endmacro")?;
        Ok(StatementKind::Macro(definition))
    }

    fn call_tag(&mut self) -> Result<StatementKind> {
        let parameters = if self.is_symbol("(") {
            self.signature()?
        } else {
            Vec::new()
        };
        let line = self.line();
        let Expr::Call(call) = self.expression()? else {
            return syntax(line, "expected a call");
        };
        let body = self.macro_body(None, parameters, "endcall")?;
        Ok(StatementKind::Call(*call, body))
    }

    fn filter_tag(&mut self) -> Result<StatementKind> {
        let mut filters = vec![self.filter_call()?];
        filters.extend(self.filters()?);
        let (body, _) = self.frame(|parser| parser.body_until("endfilter"))?;
        Ok(StatementKind::FilterBlock(filters, body))
    }

    fn with_tag(&mut self) -> Result<StatementKind> {
        let mut variables = Vec::new();
        while *self.token() != Token::BlockEnd {
            if !variables.is_empty() {
                self.expect_symbol(",")?;
            }
            let target = self.target(false)?;
            self.expect_symbol("=")?;
            variables.push((target, self.expression()?));
        }
        let (body, _) = self.frame(|parser| parser.body_until("endwith"))?;
        Ok(StatementKind::With(variables, body))
    }

    fn block_tag(&mut self) -> Result<StatementKind> {
        let line = self.line();
        let name = self.expect_name()?;
        let scoped = self.skip_name("scoped");
        if self.is_name("required") {
            return syntax(
                line,
                "`required` blocks need a template that extends this one",
            );
        }
        let (body, _) = self.outside_loops(|parser| parser.body_until("endblock"))?;
        self.skip_name(&name);
        if self.blocks.iter().any(|block| block.name == name) {
            return syntax(line, format!("block '{name}' defined twice"));
        }
        let block = Arc::new(Block { name, scoped, body });
        self.blocks.push(block.clone());
        Ok(StatementKind::Block(block))
    }
}
