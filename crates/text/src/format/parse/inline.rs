//! Output that is one text with marked parts: thinking, answer, calls.

use std::collections::VecDeque;

use super::super::OutputFormat;
use super::ParseOptions;
use super::body::{Body, Mark};
use super::piece::Sink;
use super::section::{Entry, Outcome, Section};

#[derive(Debug)]
pub(super) struct Inline {
    format: OutputFormat,
    /// Whether calls are looked for.
    calls: bool,
    body: Body,
    /// A call, or text that looks like one, within the output.
    section: Option<Section>,
    /// Whether any of the answer was sent: reasoning, and calls without markers, come before it.
    answered: bool,
}

impl Inline {
    pub fn new(format: OutputFormat, start: &ParseOptions) -> Self {
        let body = if start.in_reasoning && format.reasoning.is_some() {
            Body::thinking(&format, start.calls).skip_breaks()
        } else {
            Body::answer(&format, start.calls)
        };
        Self {
            format,
            calls: start.calls,
            body,
            section: None,
            answered: false,
        }
    }

    pub fn push(&mut self, text: &str, sink: &mut Sink, start: &ParseOptions) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let plain = self.plain(rest);
            if plain > 0 {
                self.text(&rest[..plain], sink);
                rest = &rest[plain..];
            } else {
                self.one(c, sink, start);
                rest = &rest[c.len_utf8()..];
            }
        }
    }

    /// The length of text that can be passed on without inspecting each character.
    fn plain(&self, text: &str) -> usize {
        let settled = self.section.is_none() && (self.answered || self.body.thinking);
        if settled {
            self.body.scan.plain(text)
        } else {
            0
        }
    }

    /// Consumes one character, and then all characters it returns for another reading.
    fn one(&mut self, c: char, sink: &mut Sink, start: &ParseOptions) {
        let mut unread: VecDeque<char> = self.step(c, sink, start).chars().collect();
        while let Some(c) = unread.pop_front() {
            let again = self.step(c, sink, start);
            again.chars().rev().for_each(|c| unread.push_front(c));
        }
    }

    /// Consumes one character. Returns the characters to read again.
    fn step(&mut self, c: char, sink: &mut Sink, start: &ParseOptions) -> String {
        match &mut self.section {
            Some(section) => {
                let outcome = section.push(c, sink, &start.tools);
                self.settle(outcome, sink)
            }
            None => self.character(c, sink, start),
        }
    }

    pub fn finish(&mut self, sink: &mut Sink) {
        if let Some(mut section) = self.section.take() {
            let text = section.finish(sink);
            self.leave(section);
            self.body.text(&text, sink);
        }
        let held = self.body.scan.take_held();
        self.body.text(&held, sink);
        self.body.flush(sink);
    }

    /// Consumes a character outside calls. Returns the text of a call without a marker.
    fn character(&mut self, c: char, sink: &mut Sink, start: &ParseOptions) -> String {
        let mut text = String::new();
        let found = self.body.scan.push(c, &mut text);
        if self.begins_bare(&text) {
            let held = self.body.scan.take_held();
            let unread = found.map_or(held.as_str(), |(marker, _)| marker);
            self.enter(Entry::Bare, "", start);
            return text + unread;
        }
        self.text(&text, sink);
        if let Some((marker, mark)) = found {
            self.marker(marker, mark, sink, start);
        }
        String::new()
    }

    /// Sends text that is no marker.
    fn text(&mut self, text: &str, sink: &mut Sink) {
        self.body.text(text, sink);
        self.answered |= !self.body.thinking && !self.body.fresh;
    }

    /// Whether a call without a marker starts with this text, the first of the answer.
    fn begins_bare(&self, text: &str) -> bool {
        self.calls
            && self.format.calls.is_some_and(|calls| calls.unmarked)
            && !self.answered
            && !self.body.thinking
            && matches!(text, "{" | "[")
    }

    fn marker(&mut self, marker: &'static str, mark: Mark, sink: &mut Sink, start: &ParseOptions) {
        let thinking = match (mark, self.body.thinking) {
            (Mark::Calls(entry), _) => return self.enter(entry, marker, start),
            (Mark::ThinkingClose, true) | (Mark::Silent, _) => false,
            (Mark::ThinkingOpen, false) if !self.answered => true,
            // Some models open or close reasoning again even if the prompt already did.
            (Mark::ThinkingOpen, true) if self.body.fresh => true,
            (Mark::ThinkingClose, false) if !self.answered => false,
            (Mark::ThinkingOpen | Mark::ThinkingClose, _) => return self.text(marker, sink),
        };
        let body = if thinking {
            Body::thinking(&self.format, self.calls)
        } else {
            Body::answer(&self.format, self.calls)
        };
        self.body = body.skip_breaks();
    }

    /// Starts calls after their marker, or before their first character if there is none.
    fn enter(&mut self, entry: Entry, marker: &str, start: &ParseOptions) {
        if let Some(calls) = self.format.calls {
            let raw = self.body.take_space() + marker;
            let known_only = entry == Entry::Bare && !start.calls_forced;
            self.section = Some(Section::new(calls, known_only, entry, raw));
        }
    }

    /// Handles the end of a section. Returns the text to read again.
    fn settle(&mut self, outcome: Outcome, sink: &mut Sink) -> String {
        let (text, opening) = match outcome {
            Outcome::More => return String::new(),
            Outcome::End(text) => (text, None),
            Outcome::Text { text, opening } => (text, Some(opening)),
        };
        if let Some(section) = self.section.take() {
            self.leave(section);
        }
        let Some(opening) = opening else {
            return text;
        };
        let (sure, unsure) = text.split_at(self.body.scan.tail(&text, opening));
        self.text(sure, sink);
        unsure.to_owned()
    }

    /// Continues with the text around calls. After any calls, it is part of the answer.
    fn leave(&mut self, section: Section) {
        if section.fruitful {
            self.body = Body::answer(&self.format, self.calls).skip_breaks();
        }
    }
}
