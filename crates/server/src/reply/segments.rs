//! Cuts a reply into reasoning, text and tool calls.
//!
//! The one state machine of replies: every dialect renders its events.

use loquat_chat::{ChatContext, ReplyDelta, ReplyEvent};
use loquat_engine::{FinishReason, TokenInfo};

use super::attribution::TokenAttribution;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SegmentKind {
    Reasoning,
    Text,
    ToolCall { id: String, name: String },
}

/// A part of a reply.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Position in the reply.
    pub index: usize,
    pub kind: SegmentKind,
    /// Reasoning, text, or a call's arguments as JSON.
    pub text: String,
    /// The tokens of text, if they are attributed.
    pub tokens: Vec<TokenInfo>,
    /// False if the reply was cut before the segment ended, or a call is malformed.
    pub complete: bool,
}

/// A change of a reply. Between a segment's `Begin` and `End` there are only its deltas.
#[derive(Debug, Clone, PartialEq)]
pub enum SegmentEvent {
    Begin {
        index: usize,
        kind: SegmentKind,
    },
    Delta {
        index: usize,
        kind: SegmentKind,
        text: String,
        tokens: Vec<TokenInfo>,
    },
    End(Segment),
}

/// Follows one choice's reply.
#[derive(Default)]
pub struct ReplySegments {
    attribution: Option<TokenAttribution>,
    keep_blank_text: bool,
    open: Option<Segment>,
    begun: usize,
    /// Whether text or a call has begun.
    answered: bool,
    /// White space before text. Models write it around reasoning and calls, where it means nothing.
    held_text: String,
    held_tokens: Vec<TokenInfo>,
}

impl ReplySegments {
    /// Attributes tokens to the segments they spell.
    pub fn with_tokens(self, chat: &ChatContext) -> Self {
        Self {
            attribution: Some(TokenAttribution::new(chat)),
            ..self
        }
    }

    /// Keeps the text of a reply that is nothing but white space.
    pub fn with_blank_text(self) -> Self {
        Self {
            keep_blank_text: true,
            ..self
        }
    }

    /// Tokens of reasoning so far; `None` if tokens are not attributed or the model never reasons.
    pub fn reasoning_tokens(&self) -> Option<usize> {
        self.attribution.as_ref()?.reasoning_tokens()
    }

    pub fn consume(&mut self, delta: ReplyDelta) -> Vec<SegmentEvent> {
        let ReplyDelta {
            events,
            tokens,
            finish,
        } = delta;
        let mut output = Vec::new();
        if let Some(attribution) = &mut self.attribution {
            attribution.push(tokens);
        }
        for event in events {
            let attribution = self.attribution.as_mut();
            let tokens = attribution.map_or_else(Vec::new, |tokens| tokens.claim(&event));
            self.add(event, tokens, &mut output);
        }
        if let Some(finish) = finish {
            self.finish(finish.reason, &mut output);
        }
        output
    }

    /// Ends a reply that breaks off.
    pub fn break_off(&mut self) -> Vec<SegmentEvent> {
        let mut output = Vec::new();
        self.close(false, &mut output);
        output
    }

    fn add(&mut self, event: ReplyEvent, tokens: Vec<TokenInfo>, output: &mut Vec<SegmentEvent>) {
        match event {
            ReplyEvent::Reasoning(text) => {
                self.extend(SegmentKind::Reasoning, text, Vec::new(), output);
            }
            ReplyEvent::Text(text) => self.extend(SegmentKind::Text, text, tokens, output),
            ReplyEvent::CallStart { index: _, id, name } => {
                self.begin(SegmentKind::ToolCall { id, name }, output);
            }
            ReplyEvent::CallArguments { index: _, json } => self.append(json, Vec::new(), output),
            ReplyEvent::CallEnd { index: _ } => {
                let call = self.open.take().map(|call| Segment {
                    complete: true,
                    ..call
                });
                output.extend(call.map(SegmentEvent::End));
            }
        }
    }

    fn extend(
        &mut self,
        kind: SegmentKind,
        text: String,
        tokens: Vec<TokenInfo>,
        output: &mut Vec<SegmentEvent>,
    ) {
        if self.open.as_ref().is_some_and(|open| open.kind == kind) {
            self.append(text, tokens, output);
        } else if kind == SegmentKind::Text {
            self.held_text.push_str(&text);
            self.held_tokens.extend(tokens);
            if !self.held_text.trim().is_empty() {
                self.release_text(output);
            }
        } else if !text.trim().is_empty() {
            self.begin(kind, output);
            self.append(text.trim_start().to_owned(), tokens, output);
        }
    }

    fn release_text(&mut self, output: &mut Vec<SegmentEvent>) {
        let text = std::mem::take(&mut self.held_text);
        let tokens = std::mem::take(&mut self.held_tokens);
        self.begin(SegmentKind::Text, output);
        self.append(text, tokens, output);
    }

    fn begin(&mut self, kind: SegmentKind, output: &mut Vec<SegmentEvent>) {
        self.close(true, output);
        self.held_text.clear();
        self.held_tokens.clear();
        self.answered |= kind != SegmentKind::Reasoning;
        let index = self.begun;
        self.begun += 1;
        self.open = Some(Segment {
            index,
            kind: kind.clone(),
            text: String::new(),
            tokens: Vec::new(),
            complete: false,
        });
        output.push(SegmentEvent::Begin { index, kind });
    }

    fn append(&mut self, text: String, tokens: Vec<TokenInfo>, output: &mut Vec<SegmentEvent>) {
        if let Some(open) = &mut self.open {
            open.text.push_str(&text);
            open.tokens.extend_from_slice(&tokens);
            output.push(SegmentEvent::Delta {
                index: open.index,
                kind: open.kind.clone(),
                text,
                tokens,
            });
        }
    }

    /// A call that is still open was cut or is malformed.
    fn close(&mut self, complete: bool, output: &mut Vec<SegmentEvent>) {
        if let Some(open) = self.open.take() {
            let is_call = matches!(open.kind, SegmentKind::ToolCall { .. });
            output.push(SegmentEvent::End(Segment {
                complete: complete && !is_call,
                ..open
            }));
        }
    }

    fn finish(&mut self, reason: FinishReason, output: &mut Vec<SegmentEvent>) {
        if self.keep_blank_text && !self.answered && !self.held_text.is_empty() {
            self.release_text(output);
        }
        self.close(reason != FinishReason::Length, output);
    }
}

#[cfg(test)]
mod tests {
    use loquat_chat::Finish;
    use loquat_engine::{Timings, Usage};

    use super::*;

    /// Begin, delta and end of segments as short lines.
    fn rendered(events: &[ReplyEvent], reason: FinishReason, blank: bool) -> Vec<String> {
        let segments = ReplySegments::default();
        let mut segments = if blank {
            segments.with_blank_text()
        } else {
            segments
        };
        let finish = Finish {
            reason,
            usage: Usage::default(),
            timings: Timings::default(),
            seed: 0,
        };
        let output = segments.consume(ReplyDelta {
            events: events.to_vec(),
            tokens: Vec::new(),
            finish: Some(finish),
        });
        let line = |event: SegmentEvent| match event {
            SegmentEvent::Begin { index, kind } => format!("{index} {kind:?}"),
            SegmentEvent::Delta { text, .. } => format!("+{text}"),
            SegmentEvent::End(segment) if segment.complete => format!("={}", segment.text),
            SegmentEvent::End(segment) => format!("!{}", segment.text),
        };
        output.into_iter().map(line).collect()
    }

    #[test]
    fn segments_change_with_the_kind() {
        let reasoning = |text: &str| ReplyEvent::Reasoning(text.to_owned());
        let text = |text: &str| ReplyEvent::Text(text.to_owned());
        let start = || ReplyEvent::CallStart {
            index: 0,
            id: "1".to_owned(),
            name: "add".to_owned(),
        };
        let arguments = || ReplyEvent::CallArguments {
            index: 0,
            json: "{}".to_owned(),
        };
        let end = || ReplyEvent::CallEnd { index: 0 };
        let call = "ToolCall { id: \"1\", name: \"add\" }";
        let (call_0, call_1) = (&*format!("0 {call}"), &*format!("1 {call}"));
        let stop = FinishReason::Stop;
        let cases: [(Vec<ReplyEvent>, FinishReason, &[&str]); 7] = [
            (vec![], stop, &[]),
            (vec![text(" \n")], stop, &[]),
            (
                vec![text(" a"), text(" "), text("b")],
                stop,
                &["0 Text", "+ a", "+ ", "+b", "= a b"],
            ),
            (
                vec![text("a")],
                FinishReason::Length,
                &["0 Text", "+a", "!a"],
            ),
            (
                vec![reasoning("\n"), reasoning("hm"), text("\n"), text("a")],
                stop,
                &["0 Reasoning", "+hm", "=hm", "1 Text", "+\na", "=\na"],
            ),
            (
                vec![text("a"), start(), arguments(), end(), text("\n")],
                stop,
                &["0 Text", "+a", "=a", call_1, "+{}", "={}"],
            ),
            (vec![start(), arguments()], stop, &[call_0, "+{}", "!{}"]),
        ];
        for (events, reason, expected) in cases {
            assert_eq!(rendered(&events, reason, false), expected, "{events:?}");
        }
    }

    #[test]
    fn blank_text_is_kept_on_request() {
        let events = [
            ReplyEvent::Reasoning("hm".to_owned()),
            ReplyEvent::Text(" \n".to_owned()),
        ];
        let output = rendered(&events, FinishReason::Stop, true);
        let expected = ["0 Reasoning", "+hm", "=hm", "1 Text", "+ \n", "= \n"];
        assert_eq!(output, expected);
    }
}
