//! A reply cut where one kind of thing ends and another begins: what dialects with items or
//! blocks number and open and close.

use loquat_chat::ReplyEvent;

/// What a piece of a reply is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    Thinking,
    Text,
    Call { id: String, name: String },
}

/// News of a reply. Between a beginning and its end there is nothing but more of the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Begin(Segment),
    More(String),
    /// `whole` is false where the reply was cut before the segment was.
    End {
        whole: bool,
    },
}

/// Follows one reply.
#[derive(Debug, Default)]
pub struct Segments {
    open: Option<Open>,
    /// Space before words; alone it is none, since models put it around thinking and calls.
    space: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    Call,
}

impl Segments {
    pub fn take(&mut self, event: ReplyEvent) -> Vec<Step> {
        let mut steps = Vec::new();
        match event {
            ReplyEvent::Reasoning(text) => self.more(Open::Thinking, text, &mut steps),
            ReplyEvent::Text(text) => self.more(Open::Text, text, &mut steps),
            ReplyEvent::CallStart { index: _, id, name } => {
                self.close(true, &mut steps);
                self.begin(Open::Call, Segment::Call { id, name }, &mut steps);
            }
            ReplyEvent::CallArguments { index: _, json } => steps.push(Step::More(json)),
            ReplyEvent::CallEnd { index: _ } => {
                self.open = None;
                steps.push(Step::End { whole: true });
            }
        }
        steps
    }

    /// Ends the reply, which is `whole` unless it was cut short.
    pub fn finish(&mut self, whole: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        self.close(whole, &mut steps);
        steps
    }

    fn more(&mut self, kind: Open, text: String, steps: &mut Vec<Step>) {
        if self.open == Some(kind) {
            steps.push(Step::More(text));
            return;
        }
        let (segment, text) = match kind {
            Open::Thinking => (Segment::Thinking, text),
            Open::Text | Open::Call => {
                self.space.push_str(&text);
                (Segment::Text, self.space.clone())
            }
        };
        if text.trim().is_empty() {
            return;
        }
        self.close(true, steps);
        self.begin(kind, segment, steps);
        steps.push(Step::More(text));
    }

    fn begin(&mut self, kind: Open, segment: Segment, steps: &mut Vec<Step>) {
        self.space.clear();
        self.open = Some(kind);
        steps.push(Step::Begin(segment));
    }

    /// A call that is still open was cut or is malformed, however the reply ended.
    fn close(&mut self, whole: bool, steps: &mut Vec<Step>) {
        if let Some(open) = self.open.take() {
            let whole = whole && open != Open::Call;
            steps.push(Step::End { whole });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(events: Vec<ReplyEvent>, whole: bool) -> Vec<Step> {
        let mut segments = Segments::default();
        let mut steps: Vec<Step> = events
            .into_iter()
            .flat_map(|event| segments.take(event))
            .collect();
        steps.extend(segments.finish(whole));
        steps
    }

    #[test]
    fn a_reply_is_cut_where_its_kind_changes() {
        let thinks = |text: &str| ReplyEvent::Reasoning(text.to_owned());
        let says = |text: &str| ReplyEvent::Text(text.to_owned());
        let more = |text: &str| Step::More(text.to_owned());
        let call = || ReplyEvent::CallStart {
            index: 0,
            id: "1".to_owned(),
            name: "add".to_owned(),
        };
        let argument = || ReplyEvent::CallArguments {
            index: 0,
            json: "{}".to_owned(),
        };
        let calls = || {
            Step::Begin(Segment::Call {
                id: "1".to_owned(),
                name: "add".to_owned(),
            })
        };
        let end = |whole| Step::End { whole };
        let text = || Step::Begin(Segment::Text);
        let cases = [
            (vec![], true, vec![]),
            (vec![says(" \n")], true, vec![]),
            (
                vec![says(" a"), says(" "), says("b")],
                true,
                vec![text(), more(" a"), more(" "), more("b"), end(true)],
            ),
            (vec![says("a")], false, vec![text(), more("a"), end(false)]),
            (
                vec![thinks("\n"), thinks("hm"), says("\n"), says("a")],
                true,
                vec![
                    Step::Begin(Segment::Thinking),
                    more("hm"),
                    end(true),
                    text(),
                    more("\na"),
                    end(true),
                ],
            ),
            (
                vec![
                    says("a"),
                    call(),
                    argument(),
                    ReplyEvent::CallEnd { index: 0 },
                    says("\n"),
                ],
                true,
                vec![text(), more("a"), end(true), calls(), more("{}"), end(true)],
            ),
            (
                vec![call(), argument()],
                true,
                vec![calls(), more("{}"), end(false)],
            ),
        ];
        for (events, whole, expected) in cases {
            let said = format!("{events:?}");
            assert_eq!(steps(events, whole), expected, "{said}");
        }
    }
}
