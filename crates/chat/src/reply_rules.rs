//! Builds a reply's constraint from the rules for its tool calls, answer and reasoning.

use loquat_engine::RequestConstraint;
use loquat_grammar::GrammarSource;
use loquat_text::format::{CallFormat, CallRules, ReasoningFormat, ToolRule};
use loquat_text::{Special, Tokenizer};

use crate::call_or_answer::CallOrAnswer;
use crate::context::ChatContext;
use crate::prefixed_answer::PrefixedAnswer;
use crate::reasoning_gate::{ReasoningGate, ReasoningMarks, ReplyStart};
use crate::{ChatError, Thinking, Tool, ToolChoice};

/// What a request requires of its reply.
pub(crate) struct ReplyRules<'a> {
    pub tools: &'a [Tool],
    pub choice: &'a ToolChoice,
    pub parallel: bool,
    pub thinking: Thinking,
    pub answer: Option<&'a GrammarSource>,
    pub start: ReplyStart,
}

impl ReplyRules<'_> {
    pub fn offers_calls(&self) -> bool {
        !self.tools.is_empty() && *self.choice != ToolChoice::None
    }
}

impl ChatContext {
    /// `None` if the reply is unconstrained.
    pub(crate) fn constraint(
        &self,
        rules: &ReplyRules<'_>,
    ) -> Result<Option<RequestConstraint>, ChatError> {
        let answer = self.answer_or_calls(rules)?;
        let Some(reasoning) = self.format().reasoning else {
            return match rules.thinking.budget {
                Some(_) => Err(ChatError::Unsupported {
                    field: "thinking budget",
                    why: "it does not mark its reasoning".into(),
                }),
                None => Ok(answer),
            };
        };
        if answer.is_none() && rules.thinking.budget.is_none() {
            return Ok(None);
        }
        let start = match (rules.start, rules.thinking.budget) {
            (ReplyStart::Undecided, Some(0)) if answer.is_some() => ReplyStart::Answer,
            (start, _) => start,
        };
        let mut marks = marks(reasoning, self.tokenizer())?;
        let calls = self.format().calls.filter(|calls| calls.ends_reasoning);
        if let Some(calls) = calls.filter(|_| rules.offers_calls()) {
            let opening = calls.opening_marks().into_iter();
            marks.calls = opening.map(str::to_owned).collect();
        }
        let mut forbidden = Vec::new();
        if answer.is_some() {
            forbidden.push(self.closing_exactly(reasoning).clone());
            forbidden.extend(
                self.without_calls()
                    .filter(|_| !marks.calls.is_empty())
                    .cloned(),
            );
        }
        let gate = ReasoningGate::new(
            self.tokenizer().clone(),
            marks,
            start,
            rules.thinking.budget,
            answer,
        );
        Ok(Some(RequestConstraint::new(gate.forbidding(forbidden))))
    }

    fn answer_or_calls(
        &self,
        rules: &ReplyRules<'_>,
    ) -> Result<Option<RequestConstraint>, ChatError> {
        let answer = rules.answer.map(|source| self.answer(source)).transpose()?;
        if rules.tools.is_empty() {
            return Ok(answer);
        }
        let strict = rules.tools.iter().any(|tool| tool.strict);
        match (rules.choice, answer) {
            (ToolChoice::None, Some(answer)) => Ok(Some(answer)),
            (ToolChoice::None, None) => {
                Ok(self.without_calls().cloned().map(RequestConstraint::new))
            }
            (ToolChoice::Required | ToolChoice::Named(_), _) => self.calls(rules, true).map(Some),
            (ToolChoice::Auto, Some(answer)) => {
                let rules = CallOrAnswer::new(self.calls(rules, true)?, answer);
                Ok(Some(RequestConstraint::new(rules)))
            }
            (ToolChoice::Auto, None) if strict || !rules.parallel => {
                self.calls(rules, false).map(Some)
            }
            (ToolChoice::Auto, None) => Ok(None),
        }
    }

    fn answer(&self, source: &GrammarSource) -> Result<RequestConstraint, ChatError> {
        let grammar = self.grammars().compile(source);
        let grammar = grammar.map_err(|source| ChatError::Grammar {
            field: "response_format".into(),
            source,
        })?;
        let reasoning = self.format().reasoning;
        let prefix = reasoning.map_or("", |reasoning| reasoning.answer_text);
        match prefix {
            "" => Ok(grammar.constraint()),
            prefix => {
                let prefix = self.tokenizer().encode_inner(prefix, Special::RENDERED)?;
                Ok(RequestConstraint::new(PrefixedAnswer::new(
                    prefix,
                    grammar.constraint(),
                )))
            }
        }
    }

    /// One or more calls in the model's format, with text around them unless `required`.
    fn calls(
        &self,
        rules: &ReplyRules<'_>,
        required: bool,
    ) -> Result<RequestConstraint, ChatError> {
        let format = self.call_format()?;
        let named = |tool: &&Tool| match rules.choice {
            ToolChoice::Named(name) => tool.name == *name,
            _ => true,
        };
        for (index, tool) in rules.tools.iter().enumerate() {
            if !tool.strict || !named(&tool) {
                continue;
            }
            let checked = loquat_grammar::check_schema(&tool.parameters);
            checked.map_err(|source| ChatError::Grammar {
                field: format!("tools[{index}].parameters"),
                source,
            })?;
        }
        let offered = rules.tools.iter().filter(named);
        let tools: Vec<ToolRule<'_>> = offered
            .map(|tool| ToolRule {
                name: &tool.name,
                parameters: &tool.parameters,
                strict: tool.strict,
            })
            .collect();
        let one = matches!(rules.choice, ToolChoice::Named(_));
        let call_rules = CallRules {
            tools: &tools,
            at_least_one: required,
            parallel: rules.parallel && !one,
        };
        let special = |text: &str| {
            let id = self.tokenizer().token_id(text)?;
            self.tokenizer().is_special(id).then_some(id)
        };
        let lark = format.lark(&call_rules, &special)?;
        let grammar = self.grammars().compile(&GrammarSource::Lark(lark));
        let grammar = grammar.map_err(|source| ChatError::Grammar {
            field: "tools".into(),
            source,
        })?;
        Ok(grammar.constraint())
    }

    fn call_format(&self) -> Result<&'static CallFormat, ChatError> {
        self.format().calls.ok_or_else(|| ChatError::Unsupported {
            field: "tools",
            why: "its tool format is turned off".into(),
        })
    }
}

fn marks(reasoning: &ReasoningFormat, tokenizer: &Tokenizer) -> Result<ReasoningMarks, ChatError> {
    let close_text = reasoning.close_text;
    // The model writes the mark itself; the text after it is still missing.
    let after = reasoning.close.iter().find_map(|close| {
        let (_, after) = close_text.split_once(close)?;
        Some(after)
    });
    let tokens = |text: &str| tokenizer.encode_inner(text, Special::RENDERED);
    let open = reasoning.open.first().copied().unwrap_or_default();
    Ok(ReasoningMarks {
        open: tokens(open)?,
        open_texts: reasoning.open.to_vec(),
        close_texts: reasoning.close.to_vec(),
        close: tokens(close_text)?,
        gap: tokens(after.unwrap_or_default())?,
        calls: Vec::new(),
    })
}
