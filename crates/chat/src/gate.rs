//! Thinking before an answer: it is free, it may be bounded, and the rules of the answer count
//! from its end.

use loquat_engine::{Allowed, Constrained, Constraint, TokenMask};
use loquat_text::Tokenizer;

use crate::without::Without;

/// The marks of a model's thinking.
#[derive(Debug, Clone, Default)]
pub(crate) struct Marks {
    /// Begins thinking, as tokens.
    pub open: Vec<u32>,
    /// Texts that begin it.
    pub open_texts: Vec<&'static str>,
    /// Texts that end it.
    pub close_texts: Vec<&'static str>,
    /// Ends it cleanly, up to where the answer begins.
    pub close: Vec<u32>,
    /// What still stands between the model's own closing and the answer.
    pub gap: Vec<u32>,
    /// Texts that begin a tool call in the midst of it, which ends thereby.
    pub calls: Vec<String>,
}

/// How the reply begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// The prompt opened the thinking.
    Thinking,
    /// The model may think or not.
    Open,
    /// There is no thinking.
    Answer,
}

/// Holds a reply to its budget of thinking and to the rules of its answer.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    tokenizer: Tokenizer,
    marks: Marks,
    budget: Option<usize>,
    /// The rules of the answer, at its beginning until it begins.
    answer: Option<Constrained>,
    /// What thinking may not hold where the answer has rules: calls, which have to wait for
    /// them, and the beginning of an answer in the token that closes it.
    without: Vec<Without>,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Start(Start),
    Thinking {
        used: usize,
        /// The end of what was said, long enough to find a closing text in.
        tail: Vec<u8>,
    },
    /// The last so many tokens of the gap are still to come.
    Gap {
        left: usize,
    },
    Answer,
}

/// Nothing is said yet that tells thinking from an answer.
#[derive(Debug, Clone, Default)]
struct Start {
    text: Vec<u8>,
    /// Tokens so far; all of them may open thinking.
    said: usize,
    /// The answer after these tokens; `None` where they cannot be its beginning.
    answer: Option<Constrained>,
    /// Whether the next token that opens thinking may also go on with the answer.
    ambiguous: bool,
}

impl Gate {
    pub fn new(
        tokenizer: Tokenizer,
        marks: Marks,
        beginning: Beginning,
        budget: Option<usize>,
        answer: Option<Constrained>,
    ) -> Self {
        let state = match beginning {
            Beginning::Thinking => thinking(),
            Beginning::Open => State::Start(Start {
                answer: answer.clone(),
                ..Start::default()
            }),
            Beginning::Answer => State::Answer,
        };
        Self {
            without: Vec::new(),
            tokenizer,
            marks,
            budget,
            answer,
            state,
        }
    }

    /// Keeps thinking from holding what these forbid.
    pub fn without(mut self, without: Vec<Without>) -> Self {
        self.without = without;
        self
    }

    /// Where the answer has no rules, its text tells whether it is thinking.
    fn listen(&mut self, token: u32) {
        let State::Start(start) = &mut self.state else {
            return;
        };
        let bytes = self.tokenizer.token_bytes(token);
        start.text.extend(bytes.unwrap_or_default());
        let spoken = start.text.trim_ascii_start();
        let mut opens = self.marks.open_texts.iter().map(|open| open.as_bytes());
        if opens.clone().any(|open| spoken.starts_with(open)) {
            self.state = thinking();
        } else if !opens.any(|open| open.starts_with(spoken)) {
            self.state = State::Answer;
        }
    }

    /// Where it has, the tokens tell.
    fn begin(&mut self, token: u32) -> Result<(), String> {
        let State::Start(start) = &mut self.state else {
            return Ok(());
        };
        let opens = self.marks.open.get(start.said) == Some(&token);
        if !opens || start.ambiguous {
            let answer = start.answer.as_mut();
            answer.ok_or("nothing may be said")?.accept(token)?;
        } else {
            start.answer = None;
        }
        if !opens {
            self.answer = start.answer.take();
            self.state = State::Answer;
            return Ok(());
        }
        start.said += 1;
        if start.said == self.marks.open.len() {
            self.state = thinking();
        }
        Ok(())
    }

    /// Where thinking was ended by the model itself. An answer without rules is the model's own
    /// to begin.
    fn closed(&mut self) {
        let left = match self.answer {
            Some(_) => self.marks.gap.len(),
            None => 0,
        };
        self.state = State::Gap { left };
        self.pass_gap();
    }

    fn pass_gap(&mut self) {
        if matches!(self.state, State::Gap { left: 0 }) {
            self.state = State::Answer;
        }
    }
}

impl Start {
    fn allowed(&mut self, opener: Option<&u32>, mask: &mut TokenMask) -> Result<Allowed, String> {
        let allowed = match &mut self.answer {
            Some(answer) => answer.allowed(mask)?,
            None => Allowed::Masked,
        };
        self.ambiguous = opener.is_some_and(|id| allowed == Allowed::All || mask.contains(*id));
        if let Some(&id) = opener {
            mask.allow(id);
        }
        Ok(allowed)
    }
}

fn thinking() -> State {
    State::Thinking {
        used: 0,
        tail: Vec::new(),
    }
}

impl Constraint for Gate {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<Allowed, String> {
        let Some(answer) = &mut self.answer else {
            return Ok(Allowed::All);
        };
        match &mut self.state {
            State::Answer | State::Gap { .. } => answer.allowed(mask),
            State::Start(start) => start.allowed(self.marks.open.get(start.said), mask),
            // An answer is wanted, so the reply may not end before it.
            State::Thinking { .. } => {
                mask.fill();
                for without in &self.without {
                    without.narrow(mask);
                }
                for &end in self.tokenizer.eos_ids() {
                    mask.forbid(end);
                }
                Ok(Allowed::Masked)
            }
        }
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        match &mut self.state {
            State::Answer => {
                if let Some(answer) = &mut self.answer {
                    answer.accept(token)?;
                }
            }
            State::Gap { left } => {
                *left = left.saturating_sub(1);
                self.pass_gap();
            }
            State::Start(_) if self.answer.is_none() => self.listen(token),
            State::Start(_) => self.begin(token)?,
            State::Thinking { used, tail } => {
                *used += 1;
                tail.extend(self.tokenizer.token_bytes(token).unwrap_or_default());
                for without in &mut self.without {
                    without.accept(token)?;
                }
                let closes = self.marks.close_texts.iter().map(|close| close.as_bytes());
                let calls = self.marks.calls.iter().map(String::as_bytes);
                if closes.clone().any(|close| contains(tail, close)) {
                    self.closed();
                } else if calls.clone().any(|call| contains(tail, call)) {
                    self.state = State::Answer;
                } else {
                    let longest = closes.chain(calls).map(<[u8]>::len).max().unwrap_or(0);
                    tail.drain(..tail.len().saturating_sub(longest));
                }
            }
        }
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>, String> {
        match (&self.state, &mut self.answer) {
            (State::Thinking { used, .. }, _) if self.budget.is_some_and(|most| *used >= most) => {
                let close = self.marks.close.clone();
                self.state = State::Gap { left: close.len() };
                self.pass_gap();
                Ok(close)
            }
            (State::Gap { left }, _) => {
                let gap = &self.marks.gap;
                Ok(gap[gap.len().saturating_sub(*left)..].to_vec())
            }
            (State::Answer, Some(answer)) => answer.forced(),
            _ => Ok(Vec::new()),
        }
    }

    fn is_complete(&self) -> bool {
        let answer = self.answer.as_ref();
        matches!(self.state, State::Answer) && answer.is_some_and(Constraint::is_complete)
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
    use crate::prefixed::Prefixed;
    use crate::testing::{Script, drive, tokenizer, tokens};
    use crate::without::Forbids;

    /// One token each, and seven.
    const SPELLINGS: [(&str, &str); 2] = [("<think>", "</think>"), ("(think)", "(/think)")];

    /// A line before the closing mark and two after it.
    fn marks((open, close): (&'static str, &'static str)) -> Marks {
        Marks {
            open: tokens(open),
            open_texts: vec![open],
            close_texts: vec![close],
            close: tokens(&format!("\n{close}\n\n")),
            gap: tokens("\n\n"),
            calls: Vec::new(),
        }
    }

    fn script(text: &str) -> Constrained {
        Constrained::new(Script::new(text))
    }

    #[test]
    fn a_reply_thinks_within_its_budget_and_answers_by_its_rules() {
        use Beginning::{Answer, Open, Thinking};
        // What the model would say, and what is said: what it is made to say stands in brackets.
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
            for (beginning, budget, answer, wanted, said) in cases {
                let answer = answer.map(script);
                let gate = Gate::new(tokenizer(), marks(spelling), beginning, budget, answer);
                let found = drive(gate, &spelt(wanted));
                assert_eq!(
                    found,
                    Ok(spelt(said)),
                    "{beginning:?} {budget:?} {wanted:?}"
                );
            }
        }
        // What begins like thinking and like the answer is decided where they part.
        for (spelling, said) in SPELLINGS.into_iter().zip(["([a)]", "(a[)]"]) {
            let answer = Some(script("(a)"));
            let gate = Gate::new(tokenizer(), marks(spelling), Open, None, answer);
            assert_eq!(drive(gate, "(a"), Ok(said.into()));
        }
    }

    #[test]
    fn a_call_ends_thinking_unless_rules_await_it() {
        let gate = |answer: Option<Constrained>| {
            let marks = Marks {
                calls: vec!["<call>".into()],
                ..marks(SPELLINGS[1])
            };
            let calls = Without::new(tokenizer(), marks.calls.clone(), Forbids::Completing);
            let without = Vec::from_iter(answer.is_some().then_some(calls));
            Gate::new(tokenizer(), marks, Beginning::Thinking, Some(9), answer).without(without)
        };
        let said = "hm<call>{} and more than the budget";
        assert_eq!(drive(gate(None), said), Ok(said.into()));
        let held = drive(gate(Some(script("<call>{}"))), said);
        assert_eq!(held, Err("`>` is forbidden".into()));
    }

    #[test]
    fn what_the_rules_forbid_cannot_be_said() {
        let gate = |beginning| {
            let answer = Some(script("{}"));
            Gate::new(tokenizer(), marks(SPELLINGS[1]), beginning, None, answer)
        };
        for (wanted, last) in [("x", "x"), ("(x", "x"), ("(thinx", "x"), ("{x", "[}]")] {
            let found = drive(gate(Beginning::Open), wanted);
            match last {
                "[}]" => assert_eq!(found, Ok("{[}]".into())),
                last => assert_eq!(found, Err(format!("`{last}` is forbidden"))),
            }
        }
        let mut gate = gate(Beginning::Thinking);
        let mut mask = TokenMask::none(tokenizer().vocab_size());
        assert_eq!(gate.allowed(&mut mask), Ok(Allowed::Masked));
        let ends = tokenizer().eos_ids().to_vec();
        assert!(!ends.is_empty() && ends.iter().all(|id| !mask.contains(*id)));
        assert!(mask.contains(tokens("a")[0]));
    }

    #[test]
    fn a_prefix_comes_first() {
        for spelling in SPELLINGS {
            let answer = Prefixed::new(tokens("final:"), script("{}"));
            assert_eq!(drive(answer.clone(), ""), Ok("[final:][{}]".into()));
            let answer = Some(Constrained::new(answer));
            let gate = Gate::new(tokenizer(), marks(spelling), Beginning::Open, None, answer);
            assert_eq!(drive(gate.clone(), "f"), Ok("f[inal:][{}]".into()));
            let thought = format!("{}x{}", spelling.0, spelling.1);
            let said = format!("{thought}[\n\n][final:][{{}}]");
            assert_eq!(drive(gate, &thought), Ok(said));
        }
    }
}
