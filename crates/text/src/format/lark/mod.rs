//! Grammars of tool calls, in llguidance's Lark dialect, built from the parser's tables: the parser
//! accepts every call that such a grammar admits.

mod literals;
mod tagged;

use std::fmt;

use serde_json::{Value, json};

use self::literals::{Literals, Notation};
use super::data::{CallFormat, CallSyntax, Framing, IdPosition, JsonFields, NameThenJson, Span};
use super::reasoning;
use crate::{Result, TextError};

/// A tool that may be called.
#[derive(Debug, Clone, Copy)]
pub struct ToolRule<'a> {
    /// The name by which the model calls it.
    pub name: &'a str,
    /// The JSON schema of its arguments.
    pub parameters: &'a Value,
    /// Whether the arguments must follow the schema; otherwise they are any that the format can
    /// write.
    pub strict: bool,
}

/// Requirements for calls.
#[derive(Debug, Clone, Copy)]
pub struct CallRules<'a> {
    /// At least one.
    pub tools: &'a [ToolRule<'a>],
    /// Only calls, and at least one. Otherwise text is allowed, and whatever starts like a call is
    /// one.
    pub at_least_one: bool,
    /// Whether there may be several.
    pub parallel: bool,
}

impl CallFormat {
    /// The grammar of a reply that calls tools. `special` returns the id of a special token, which
    /// text cannot spell.
    pub fn lark(
        &self,
        rules: &CallRules<'_>,
        special: &dyn Fn(&str) -> Option<u32>,
    ) -> Result<String> {
        let mut writer = Writer {
            format: self,
            special,
            rules: Vec::new(),
        };
        writer.tools(rules.tools)?;
        if rules.at_least_one {
            writer.only_calls(rules.parallel)
        } else {
            writer.text_and_calls(rules.parallel)
        }
        Ok(writer.rules.join("\n"))
    }
}

struct Writer<'a> {
    format: &'a CallFormat,
    special: &'a dyn Fn(&str) -> Option<u32>,
    rules: Vec<String>,
}

impl Writer<'_> {
    fn rule(&mut self, name: &str, body: &str) {
        self.rules.push(format!("{name}: {body}"));
    }

    /// Text as string literals and special tokens.
    fn spell(&self, text: &str) -> String {
        let parts = self.parts(text).into_iter().map(|part| part.to_string());
        parts.collect::<Vec<_>>().join(" ")
    }

    fn parts<'t>(&self, text: &'t str) -> Vec<Part<'t>> {
        let known = self.format.markers();
        let mut tokens: Vec<(&str, u32)> = known
            .filter(|marker| !marker.is_empty())
            .filter_map(|marker| Some((marker, (self.special)(marker)?)))
            .collect();
        tokens.sort_by_key(|(marker, _)| std::cmp::Reverse(marker.len()));
        let (mut parts, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let next = tokens
                .iter()
                .filter_map(|(marker, id)| Some((rest.find(marker)?, marker.len(), *id)))
                .min_by_key(|(at, len, _)| (*at, std::cmp::Reverse(*len)));
            let Some((at, len, id)) = next else {
                parts.push(Part::Text(rest));
                break;
            };
            if at > 0 {
                parts.push(Part::Text(&rest[..at]));
            }
            parts.push(Part::Token(id));
            rest = &rest[at + len..];
        }
        parts
    }

    /// `tool`: one call between its marks.
    fn tools(&mut self, tools: &[ToolRule<'_>]) -> Result<()> {
        let mut names = Vec::with_capacity(tools.len());
        for (index, tool) in tools.iter().enumerate() {
            let name = format!("tool_{index}");
            let body = self.tool(index, tool)?;
            self.rule(&name, &body);
            names.push(name);
        }
        // Calls with their own opening mark are found without the section's.
        self.rule("named", &names.join(" | "));
        let open = self.spell(self.format.syntax.name_open());
        self.rule("tool", &join([open, "named".into()]));
        Ok(())
    }

    fn tool(&mut self, index: usize, tool: &ToolRule<'_>) -> Result<String> {
        Ok(match &self.format.syntax {
            CallSyntax::Json(fields) => self.json_call(index, tool, fields),
            CallSyntax::KeyedJson => {
                let arguments = self.json_arguments(index, tool);
                let open = literal(&format!("{{{}: ", quoted(tool.name)));
                format!("{open} {arguments} {}", literal("}"))
            }
            CallSyntax::NameThenJson(syntax) => self.named_call(index, tool, syntax),
            CallSyntax::Tagged(syntax) => self.tagged_call(index, tool, syntax)?,
            CallSyntax::Pythonic => {
                let arguments = self.literal_arguments(index, tool, Notation::Python)?;
                let open = literal(&format!("{}(", tool.name));
                format!("{open} {arguments} {}", literal(")"))
            }
            CallSyntax::Gemma { quote } => {
                let notation = Notation::Gemma {
                    quote,
                    token: (self.special)(quote),
                };
                let arguments = self.literal_arguments(index, tool, notation)?;
                let open = literal(&format!("call:{}{{", tool.name));
                format!("{open} {arguments} {}", literal("}"))
            }
        })
    }

    /// `{"name": "f", "arguments": {…}}`. A model whose objects start with a generated identifier
    /// may write that first; a plain `id` is left to the application.
    fn json_call(&mut self, index: usize, tool: &ToolRule<'_>, fields: &JsonFields) -> String {
        let arguments = self.json_arguments(index, tool);
        let first = |keys: &'static [&'static str]| keys.first().copied().unwrap_or_default();
        let id = match first(fields.id) {
            "" | "id" => String::new(),
            key => {
                let open = literal(&format!("{}: \"", quoted(key)));
                format!("({open} /[A-Za-z0-9_-]{{1,40}}/ {})?", literal("\", "))
            }
        };
        let name = format!("{}: {}, ", quoted(first(fields.name)), quoted(tool.name));
        let key = format!("{}: ", quoted(first(fields.arguments)));
        join([
            literal("{"),
            id,
            literal(&name),
            literal(&key),
            arguments,
            literal("}"),
        ])
    }

    fn named_call(&mut self, index: usize, tool: &ToolRule<'_>, syntax: &NameThenJson) -> String {
        let arguments = self.json_arguments(index, tool);
        let name = match syntax.id {
            IdPosition::None | IdPosition::AfterName(_) => literal(tool.name),
            IdPosition::BeforeName(mark) => {
                let mark = self.spell(mark);
                format!("/[A-Za-z0-9_-]{{1,40}}/ {mark} {}", literal(tool.name))
            }
            IdPosition::AroundName(prefix) => {
                format!(
                    "{} /[0-9]{{1,4}}/",
                    literal(&format!("{prefix}{}:", tool.name))
                )
            }
        };
        let parts = [
            self.spell(syntax.before),
            name,
            self.spell(syntax.between),
            arguments,
            self.spell(syntax.after),
        ];
        let parts = parts.iter().filter(|part| !part.is_empty());
        parts.map(String::as_str).collect::<Vec<_>>().join(" ")
    }

    /// The rule of a tool's arguments as a JSON object.
    fn json_arguments(&mut self, index: usize, tool: &ToolRule<'_>) -> String {
        let name = format!("arguments_{index}");
        let schema = if tool.strict {
            tool.parameters.clone()
        } else {
            json!({ "type": "object" })
        };
        self.rule(&name, &format!("%json {schema}"));
        name
    }

    fn literal_arguments(
        &mut self,
        index: usize,
        tool: &ToolRule<'_>,
        notation: Notation,
    ) -> Result<String> {
        let mut literals = Literals::new(format!("value_{index}"), notation);
        let arguments = literals.arguments(tool)?;
        self.rules.extend(literals.into_rules());
        Ok(arguments)
    }

    /// A call with its marks, and the text between two calls.
    fn call(&self) -> String {
        let Span { open, close } = self.format.call;
        join([self.spell(open), "tool".into(), self.spell(close)])
    }

    /// Only calls.
    fn only_calls(&mut self, parallel: bool) {
        if self.format.framing == Framing::Channels {
            // The end of such a call ends the reply, so there is only one, and its end mark is
            // optional.
            let open = self.spell(self.format.call.open);
            return self.rule("start", &join([open, "tool".into()]));
        }
        let section = if self.format.unmarked {
            Span::NONE
        } else {
            self.format.section
        };
        let open = self.spell(section.open);
        let calls = join([open, self.calls(parallel), self.spell(section.close)]);
        self.rule("call", &self.call());
        self.rule("start", &calls);
    }

    /// `call`s, as many as allowed, within their brackets.
    fn calls(&self, parallel: bool) -> String {
        let more = if parallel {
            format!(
                "({})*",
                join([self.spell(self.format.separator), "call".into()])
            )
        } else {
            String::new()
        };
        let calls = join(["call".into(), more]);
        if self.format.list {
            join([literal("["), calls, literal("]")])
        } else {
            calls
        }
    }

    /// Text, and calls in it.
    fn text_and_calls(&mut self, parallel: bool) {
        if self.format.framing == Framing::Channels {
            let call = join([self.spell(self.format.call.open), "tool".into()]);
            let answer = self.spell(reasoning::HARMONY.answer_text);
            self.rule("call", &call);
            return self.rule("start", &format!("call | {answer} /(?s:.*)/"));
        }
        self.rule("call", &self.call());
        if self.format.unmarked || self.format.opening_marks().is_empty() {
            return self.text_or_calls(parallel);
        }
        let entries = self.entries(parallel);
        let tokens = entries.iter().map(|(mark, _)| match self.parts(mark)[..] {
            [Part::Token(id), ..] | [Part::Text(_), Part::Token(id), ..] => Some(id.to_string()),
            _ => None,
        });
        // Text may contain other special tokens, which only a token list can express.
        let text = match tokens.collect::<Option<Vec<_>>>() {
            Some(tokens) => format!("<[^{}]>*", tokens.join(",")),
            None => "/(?s:.*)/".to_owned(),
        };
        self.rule("text", &text);
        let entries = entries.into_iter().enumerate();
        let entries: Vec<String> = entries
            .map(|(index, entry)| self.entry(&format!("opening_{index}"), entry))
            .collect();
        self.rule("entry", &entries.join(" | "));
        if parallel {
            self.rule("start", "entry* text")
        } else {
            self.rule("start", "entry | text")
        }
    }

    /// Text up to a mark, and what must follow it. The mark's first part distinguishes it from
    /// text.
    fn entry(&mut self, name: &str, (mark, after): (&'static str, String)) -> String {
        let parts = self.parts(mark);
        let rest = match &parts[..] {
            // Everything before the token is text.
            [Part::Token(id), rest @ ..] | [Part::Text(_), Part::Token(id), rest @ ..] => {
                self.rule(name, &format!("text <[{id}]>"));
                rest
            }
            [Part::Text(first), rest @ ..] => {
                let first = literal(first);
                self.rule(&format!("{name}[lazy]"), &format!("/(?s:.*)/ {first}"));
                rest
            }
            [] => &[],
        };
        let rest: Vec<String> = rest.iter().map(|part| part.to_string()).collect();
        join([name.to_owned(), rest.join(" "), after])
    }

    /// All texts the parser recognizes as the start of a call, and what must follow each.
    fn entries(&self, parallel: bool) -> Vec<(&'static str, String)> {
        let Span { open, close } = self.format.call;
        let one = join(["tool".into(), self.spell(close)]);
        let (first, after) = match self.format.section {
            section if section.open.is_empty() => (open, one.clone()),
            section => {
                let calls = join([self.calls(parallel), self.spell(section.close)]);
                (section.open, calls)
            }
        };
        let behind = |mark: &'static str, after: &str| {
            let bare = mark.trim();
            let gap = &mark[mark.find(bare).unwrap_or(0) + bare.len()..];
            (bare, join([self.spell(gap), after.to_owned()]))
        };
        let mut entries = vec![behind(first, &after)];
        let aliases = self.format.aliases.iter();
        entries.extend(aliases.map(|alias| behind(alias, &after)));
        if first != open && !open.is_empty() {
            entries.push(behind(open, &one));
        }
        let name = self.format.syntax.name_open();
        if !name.is_empty() {
            let close = self.spell(close);
            let close = if close.is_empty() {
                close
            } else {
                format!("({close})?")
            };
            entries.push(behind(name, &join(["named".into(), close])));
        }
        entries
    }

    /// If calls have no mark, the first character decides between calls and text.
    fn text_or_calls(&mut self, parallel: bool) {
        let calls = self.calls(parallel);
        self.rule("start", &format!(r"{calls} | /\s*([^\s\[\{{](?s:.*))?/"));
    }
}

/// A piece of text that is one terminal.
enum Part<'a> {
    Text(&'a str),
    Token(u32),
}

impl fmt::Display for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(&literal(text)),
            Self::Token(id) => write!(f, "<[{id}]>"),
        }
    }
}

/// The schema keywords that a format cannot enforce.
fn cannot_hold(tool: &ToolRule<'_>, keyword: &str) -> TextError {
    TextError::ToolSchema {
        tool: tool.name.to_owned(),
        keyword: keyword.to_owned(),
    }
}

fn join<const N: usize>(parts: [String; N]) -> String {
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(" ")
}

/// A string as Lark writes it.
fn literal(text: &str) -> String {
    match text {
        "" => String::new(),
        // JSON allows this character, Lark does not.
        text => quoted(text).replace('\u{7f}', "\\u007f"),
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
