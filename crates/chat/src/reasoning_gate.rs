//! Applies the answer's constraint only after the reasoning, which may have a token budget.

use loquat_engine::{AllowedTokens, Constraint, ConstraintError, RequestConstraint, TokenMask};
use loquat_text::Tokenizer;

use crate::forbidden_text::ForbiddenText;

/// The marks around a model's reasoning.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReasoningMarks {
    /// Opens reasoning, as tokens.
    pub open: Vec<u32>,
    /// Texts that open it.
    pub open_texts: Vec<&'static str>,
    /// Texts that close it.
    pub close_texts: Vec<&'static str>,
    /// Closes it, up to the start of the answer.
    pub close: Vec<u32>,
    /// Comes between the model's own closing mark and the answer.
    pub gap: Vec<u32>,
    /// Texts that start a tool call within reasoning and so end it.
    pub calls: Vec<String>,
}

/// How the reply starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyStart {
    /// The prompt opened the reasoning.
    Thinking,
    /// The model decides whether to think.
    Undecided,
    /// Without reasoning.
    Answer,
}

/// Enforces a reply's reasoning budget and the constraint of its answer.
#[derive(Debug, Clone)]
pub(crate) struct ReasoningGate {
    tokenizer: Tokenizer,
    marks: ReasoningMarks,
    budget: Option<usize>,
    /// The answer's constraint, in its initial state until the answer starts.
    answer: Option<RequestConstraint>,
    /// Texts kept out of the reasoning if the answer is constrained: calls, which must come
    /// after it, and the start of an answer in the token that closes it.
    forbidden: Vec<ForbiddenText>,
    state: GateState,
}

#[derive(Debug, Clone)]
enum GateState {
    Start(Start),
    Thinking {
        used: usize,
        /// The end of the reasoning so far, long enough to find a closing text in.
        tail: Vec<u8>,
    },
    /// This many tokens of the gap are left.
    Gap {
        left: usize,
    },
    Answer,
}

/// The text so far could be reasoning or an answer.
#[derive(Debug, Clone, Default)]
struct Start {
    text: Vec<u8>,
    /// Tokens so far, all of which match the opening mark.
    matched: usize,
    /// The answer's constraint after these tokens; `None` if they cannot start it.
    answer: Option<RequestConstraint>,
    /// Whether the mark's next token may also continue the answer.
    ambiguous: bool,
}

impl ReasoningGate {
    pub fn new(
        tokenizer: Tokenizer,
        marks: ReasoningMarks,
        start: ReplyStart,
        budget: Option<usize>,
        answer: Option<RequestConstraint>,
    ) -> Self {
        let state = match start {
            ReplyStart::Thinking => thinking(),
            ReplyStart::Undecided => GateState::Start(Start {
                answer: answer.clone(),
                ..Start::default()
            }),
            ReplyStart::Answer => GateState::Answer,
        };
        Self {
            forbidden: Vec::new(),
            tokenizer,
            marks,
            budget,
            answer,
            state,
        }
    }

    /// Keeps these texts out of the reasoning.
    pub fn forbidding(mut self, forbidden: Vec<ForbiddenText>) -> Self {
        self.forbidden = forbidden;
        self
    }

    /// Decides by text whether the reply starts with reasoning, if the answer is unconstrained.
    fn start_by_text(&mut self, token: u32) {
        let GateState::Start(start) = &mut self.state else {
            return;
        };
        let bytes = self.tokenizer.token_bytes(token);
        start.text.extend(bytes.unwrap_or_default());
        let text = start.text.trim_ascii_start();
        let mut opens = self.marks.open_texts.iter().map(|open| open.as_bytes());
        if opens.clone().any(|open| text.starts_with(open)) {
            self.state = thinking();
        } else if !opens.any(|open| open.starts_with(text)) {
            self.state = GateState::Answer;
        }
    }

    /// Decides by tokens, if the answer is constrained.
    fn start_by_token(&mut self, token: u32) -> Result<(), ConstraintError> {
        let GateState::Start(start) = &mut self.state else {
            return Ok(());
        };
        let opens = self.marks.open.get(start.matched) == Some(&token);
        if !opens || start.ambiguous {
            let answer = start.answer.as_mut();
            answer.ok_or(ConstraintError::NoToken)?.accept(token)?;
        } else {
            start.answer = None;
        }
        if !opens {
            self.answer = start.answer.take();
            self.state = GateState::Answer;
            return Ok(());
        }
        start.matched += 1;
        if start.matched == self.marks.open.len() {
            self.state = thinking();
        }
        Ok(())
    }

    /// The model closed its reasoning. It starts an unconstrained answer itself.
    fn close(&mut self) {
        let left = match self.answer {
            Some(_) => self.marks.gap.len(),
            None => 0,
        };
        self.state = GateState::Gap { left };
        self.pass_gap();
    }

    fn pass_gap(&mut self) {
        if matches!(self.state, GateState::Gap { left: 0 }) {
            self.state = GateState::Answer;
        }
    }
}

impl Start {
    fn allowed(
        &mut self,
        opener: Option<&u32>,
        mask: &mut TokenMask,
    ) -> Result<AllowedTokens, ConstraintError> {
        let allowed = match &mut self.answer {
            Some(answer) => answer.allowed(mask)?,
            None => AllowedTokens::Masked,
        };
        self.ambiguous =
            opener.is_some_and(|id| allowed == AllowedTokens::All || mask.contains(*id));
        if let Some(&id) = opener {
            mask.allow(id);
        }
        Ok(allowed)
    }
}

fn thinking() -> GateState {
    GateState::Thinking {
        used: 0,
        tail: Vec::new(),
    }
}

impl Constraint for ReasoningGate {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        let Some(answer) = &mut self.answer else {
            return Ok(AllowedTokens::All);
        };
        match &mut self.state {
            GateState::Answer | GateState::Gap { .. } => answer.allowed(mask),
            GateState::Start(start) => start.allowed(self.marks.open.get(start.matched), mask),
            // The reply must not end before its answer.
            GateState::Thinking { .. } => {
                mask.fill();
                for forbidden in &self.forbidden {
                    forbidden.narrow(mask);
                }
                for &end in self.tokenizer.eos_ids() {
                    mask.forbid(end);
                }
                Ok(AllowedTokens::Masked)
            }
        }
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        match &mut self.state {
            GateState::Answer => {
                if let Some(answer) = &mut self.answer {
                    answer.accept(token)?;
                }
            }
            GateState::Gap { left } => {
                *left = left.saturating_sub(1);
                self.pass_gap();
            }
            GateState::Start(_) if self.answer.is_none() => self.start_by_text(token),
            GateState::Start(_) => self.start_by_token(token)?,
            GateState::Thinking { used, tail } => {
                *used += 1;
                tail.extend(self.tokenizer.token_bytes(token).unwrap_or_default());
                for forbidden in &mut self.forbidden {
                    forbidden.accept(token)?;
                }
                let closes = self.marks.close_texts.iter().map(|close| close.as_bytes());
                let calls = self.marks.calls.iter().map(String::as_bytes);
                if closes.clone().any(|close| contains(tail, close)) {
                    self.close();
                } else if calls.clone().any(|call| contains(tail, call)) {
                    self.state = GateState::Answer;
                } else {
                    let longest = closes.chain(calls).map(<[u8]>::len).max().unwrap_or(0);
                    tail.drain(..tail.len().saturating_sub(longest));
                }
            }
        }
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        match (&self.state, &mut self.answer) {
            (GateState::Thinking { used, .. }, _)
                if self.budget.is_some_and(|most| *used >= most) =>
            {
                let close = self.marks.close.clone();
                self.state = GateState::Gap { left: close.len() };
                self.pass_gap();
                Ok(close)
            }
            (GateState::Gap { left }, _) => {
                let gap = &self.marks.gap;
                Ok(gap[gap.len().saturating_sub(*left)..].to_vec())
            }
            (GateState::Answer, Some(answer)) => answer.forced(),
            _ => Ok(Vec::new()),
        }
    }

    fn is_complete(&self) -> bool {
        let answer = self.answer.as_ref();
        matches!(self.state, GateState::Answer) && answer.is_some_and(Constraint::is_complete)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

pub(crate) fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forbidden_text::Forbids;
    use crate::prefixed_answer::PrefixedAnswer;
    use crate::testing::{Script, drive, tokenizer, tokens};

    /// Marks of one token, and of several.
    const SPELLINGS: [(&str, &str); 2] = [("<think>", "</think>"), ("(think)", "(/think)")];

    /// A line before the closing mark and two after it.
    fn marks((open, close): (&'static str, &'static str)) -> ReasoningMarks {
        ReasoningMarks {
            open: tokens(open),
            open_texts: vec![open],
            close_texts: vec![close],
            close: tokens(&format!("\n{close}\n\n")),
            gap: tokens("\n\n"),
            calls: Vec::new(),
        }
    }

    fn script(text: &str) -> RequestConstraint {
        RequestConstraint::new(Script::new(text))
    }

    #[test]
    fn budget_closes_reasoning_and_answer_is_constrained() {
        use ReplyStart::{Answer, Thinking, Undecided as Open};
        // The model's preference and the result, with forced tokens in brackets.
        let cases = [
            (Thinking, None, None, "hm</think>yes", "hm</think>yes"),
            (
                Thinking,
                Some(2),
                None,
                "hm and so on",
                "hm[\n</think>\n\n] and so on",
            ),
            (Thinking, Some(0), None, "hm", "[\n</think>\n\n]hm"),
            (
                Thinking,
                None,
                Some("{}"),
                "hm</think>x",
                "hm</think>[\n\n][{}]",
            ),
            (
                Thinking,
                Some(2),
                Some("{}"),
                "hmm",
                "hm[\n</think>\n\n][{}]",
            ),
            (
                Open,
                None,
                Some("{}"),
                "<think>a</think>no",
                "<think>a</think>[\n\n][{}]",
            ),
            (Open, None, Some("{}"), "{", "{[}]"),
            (
                Open,
                None,
                Some("(a)"),
                "<think>a</think>no",
                "<think>a</think>[\n\n][(a)]",
            ),
            (
                Open,
                Some(1),
                None,
                "<think>abc",
                "<think>a[\n</think>\n\n]bc",
            ),
            (
                Open,
                Some(1),
                None,
                " <think>abc",
                " <think>a[\n</think>\n\n]bc",
            ),
            (Open, Some(1), None, "(thin)abc", "(thin)abc"),
            (Answer, Some(0), Some("{}"), "x", "[{}]"),
        ];
        for spelling in SPELLINGS {
            let spelt = |text: &str| {
                let text = text.replace("<think>", spelling.0);
                text.replace("</think>", spelling.1)
            };
            for (start, budget, answer, wanted, expected) in cases {
                let answer = answer.map(script);
                let gate = ReasoningGate::new(tokenizer(), marks(spelling), start, budget, answer);
                let found = drive(gate, &spelt(wanted));
                assert_eq!(
                    found,
                    Ok(spelt(expected)),
                    "{start:?} {budget:?} {wanted:?}"
                );
            }
        }
        // A common start of reasoning and answer is decided where they differ.
        for (spelling, expected) in SPELLINGS.into_iter().zip(["([a)]", "(a[)]"]) {
            let answer = Some(script("(a)"));
            let gate = ReasoningGate::new(tokenizer(), marks(spelling), Open, None, answer);
            assert_eq!(drive(gate, "(a"), Ok(expected.into()));
        }
    }

    #[test]
    fn call_ends_reasoning_unless_answer_is_constrained() {
        let gate = |answer: Option<RequestConstraint>| {
            let marks = ReasoningMarks {
                calls: vec!["<call>".into()],
                ..marks(SPELLINGS[1])
            };
            let calls = ForbiddenText::new(tokenizer(), marks.calls.clone(), Forbids::Completing);
            let forbidden = Vec::from_iter(answer.is_some().then_some(calls));
            ReasoningGate::new(tokenizer(), marks, ReplyStart::Thinking, Some(9), answer)
                .forbidding(forbidden)
        };
        let said = "hm<call>{} and more than the budget";
        assert_eq!(drive(gate(None), said), Ok(said.into()));
        let held = drive(gate(Some(script("<call>{}"))), said);
        assert_eq!(held, Err("`>` is forbidden".into()));
    }

    #[test]
    fn disallowed_tokens_are_masked() {
        let gate = |start| {
            let answer = Some(script("{}"));
            ReasoningGate::new(tokenizer(), marks(SPELLINGS[1]), start, None, answer)
        };
        for (wanted, last) in [("x", "x"), ("(x", "x"), ("(thinx", "x"), ("{x", "[}]")] {
            let found = drive(gate(ReplyStart::Undecided), wanted);
            match last {
                "[}]" => assert_eq!(found, Ok("{[}]".into())),
                last => assert_eq!(found, Err(format!("`{last}` is forbidden"))),
            }
        }
        let mut gate = gate(ReplyStart::Thinking);
        let mut mask = TokenMask::none(tokenizer().vocab_size());
        assert_eq!(gate.allowed(&mut mask), Ok(AllowedTokens::Masked));
        let ends = tokenizer().eos_ids().to_vec();
        assert!(!ends.is_empty() && ends.iter().all(|id| !mask.contains(*id)));
        assert!(mask.contains(tokens("a")[0]));
    }

    #[test]
    fn prefix_precedes_the_answer() {
        for spelling in SPELLINGS {
            let answer = PrefixedAnswer::new(tokens("final:"), script("{}"));
            assert_eq!(drive(answer.clone(), ""), Ok("[final:][{}]".into()));
            let answer = Some(RequestConstraint::new(answer));
            let gate = ReasoningGate::new(
                tokenizer(),
                marks(spelling),
                ReplyStart::Undecided,
                None,
                answer,
            );
            assert_eq!(drive(gate.clone(), "f"), Ok("f[inal:][{}]".into()));
            let thought = format!("{}x{}", spelling.0, spelling.1);
            let said = format!("{thought}[\n\n][final:][{{}}]");
            assert_eq!(drive(gate, &thought), Ok(said));
        }
    }
}
