//! Sequences that step together give what each gives alone, whoever comes, waits or goes.
#![cfg(feature = "mlx")]

use std::thread;

use loquat_mlx::MlxBackend;
use loquat_session::{
    Backend, Emit, Held, Precision, PrefixCopy, SequenceId, Session, SessionOptions, StepBatch,
    StepOutput,
};
use loquat_testkit::goldens;

/// The smallest vocabulary among the families here.
const VOCAB: u32 = 40;
const LOGITS: Emit = Emit::Logits { positions: 1 };

fn open(family: &str) -> Box<dyn Session> {
    let source = goldens::source(&goldens::family(family)).unwrap();
    let options = SessionOptions {
        precision: Precision::Reference,
        kv_tokens: Some(8192),
        max_step_tokens: 1024,
        ..SessionOptions::default()
    };
    MlxBackend::AUTO
        .open(source, &options, &mut |_| {})
        .unwrap()
}

/// Tokens of no pattern that a model could fall in with; each `seed` has its own.
fn prompt(seed: u32, len: usize) -> Vec<u32> {
    let places = 0..len as u32;
    places
        .map(|place| (place * place * 7 + place * seed + seed * 11) % VOCAB)
        .collect()
}

/// A sequence and what was said in it. The last token is said, and not in the sequence yet.
#[derive(Clone)]
struct Line {
    sequence: SequenceId,
    text: Vec<u32>,
    /// Places in the text of what the session gave, ascending.
    given: Vec<usize>,
}

/// A session, and the lines that take part in its steps.
struct Company {
    family: &'static str,
    session: Box<dyn Session>,
    lines: Vec<Option<Line>>,
}

impl Company {
    fn open(family: &'static str) -> Self {
        Self {
            family,
            session: open(family),
            lines: Vec::new(),
        }
    }

    fn enter(&mut self, line: Line) -> usize {
        self.lines.push(Some(line));
        self.lines.len() - 1
    }

    fn join(&mut self, text: Vec<u32>) -> usize {
        let sequence = self.session.create().unwrap();
        self.enter(Line {
            sequence,
            text,
            given: Vec::new(),
        })
    }

    fn line(&mut self, line: usize) -> &mut Line {
        self.lines[line].as_mut().unwrap()
    }

    /// One step of these lines with what was said in them last.
    fn step(&mut self, lines: &[usize], emit: Emit) -> StepOutput {
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        for line in lines {
            let Line { sequence, text, .. } = self.line(*line).clone();
            let done = self.session.len(sequence).unwrap();
            batch.push(sequence, &text[done..], emit);
        }
        self.session.step(&batch, &mut output).unwrap();
        let mut rows = output.rows().iter();
        assert!(rows.all(|row| row.error.is_none()), "{}", self.family);
        self.check_memory();
        output
    }

    /// So many greedy steps, each line going on with what it was given.
    fn run(&mut self, lines: &[usize], steps: usize) {
        for _ in 0..steps {
            let output = self.step(lines, Emit::Greedy { positions: 1 });
            for (row, line) in lines.iter().enumerate() {
                let line = self.line(*line);
                line.given.push(line.text.len());
                line.text.extend(output.greedy(row));
            }
        }
    }

    fn check_memory(&self) {
        let sequences: Vec<SequenceId> = self.lines.iter().flatten().map(|l| l.sequence).collect();
        let memory = self.session.memory();
        let in_use = Held {
            kv_tokens: memory.kv_in_use,
            states: memory.states_in_use,
        };
        let held = self.session.held(&sequences).unwrap();
        assert_eq!(held, in_use, "{}, {} alive", self.family, sequences.len());
    }

    /// Says something else than what the line was given last.
    fn contradict(&mut self, line: usize) {
        let line = self.line(line);
        let place = line.text.len() - 1;
        line.text[place] = (line.text[place] + 1) % VOCAB;
        line.given.retain(|given| *given < place);
    }

    /// A line that goes on with another token than the one it comes from.
    fn fork(&mut self, line: usize) -> usize {
        let mut fork = self.line(line).clone();
        fork.sequence = self
            .session
            .fork(fork.sequence, fork.text.len() - 1)
            .unwrap();
        let fork = self.enter(fork);
        self.contradict(fork);
        fork
    }

    /// Takes back two tokens, or one where the state before that is not kept, and goes on with
    /// another.
    fn take_back(&mut self, line: usize) {
        let back = match self.session.capabilities().prefix_copy {
            PrefixCopy::AnyLength => 2,
            PrefixCopy::AtSnapshots => 1,
            PrefixCopy::None => return,
        };
        let before = self.line(line).clone();
        before.alone(self.family);
        let len = before.text.len() - 1 - back;
        self.session.truncate(before.sequence, len).unwrap();
        self.line(line).text.truncate(len + 1);
        self.contradict(line);
    }

    fn release(&mut self, line: usize) {
        let line = self.lines[line].take().unwrap();
        line.alone(self.family);
        self.session.release(line.sequence).unwrap();
        self.check_memory();
    }

    /// Some models repeat themselves whatever they remember, so that logits are compared at last.
    fn end(mut self) {
        /// Sums of float32 in another order, as in the contract's tests.
        const SUMMATION: f32 = 1e-4;
        let lines: Vec<usize> = (0..self.lines.len())
            .filter(|line| self.lines[*line].is_some())
            .collect();
        let output = self.step(&lines, LOGITS);
        for (row, line) in lines.into_iter().enumerate() {
            let alone = self.line(line).alone(self.family);
            let pairs = output.logits(row, 0).iter().zip(&alone);
            let apart = pairs.map(|(own, alone)| (own - alone).abs());
            let apart = apart.fold(0.0, f32::max);
            assert!(apart < SUMMATION, "{}, line {line}: {apart}", self.family);
            self.release(line);
        }
        let memory = self.session.memory();
        assert_eq!((memory.kv_in_use, memory.states_in_use), (0, 0));
    }
}

impl Line {
    /// Says the same to a session that knows nothing else and is asked for logits, so that it
    /// looks no step ahead; gives the last ones. What was given must be the likeliest: sums of
    /// another order may prefer another only where the two are all but equal, and the text goes on
    /// with what was given, so that all that follows is judged too.
    fn alone(&self, family: &str) -> Vec<f32> {
        const TIE: f32 = 1e-3;
        let mut session = open(family);
        let sequence = session.create().unwrap();
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        let mut done = 0;
        for place in self.given.iter().copied().chain([self.text.len()]) {
            batch.clear();
            batch.push(sequence, &self.text[done..place], LOGITS);
            session.step(&batch, &mut output).unwrap();
            done = place;
            if let Some(token) = self.text.get(place) {
                let logits = output.logits(0, 0);
                let best = logits.iter().copied().fold(f32::MIN, f32::max);
                let behind = best - logits[*token as usize];
                assert!(behind < TIE, "{family}, {token} at {place}: {behind}");
            }
        }
        output.logits(0, 0).to_vec()
    }
}

/// Lines that begin, join, wait, leave, part and go back. `lens` are the prompts' lengths.
fn tell(family: &'static str, lens: [usize; 4]) {
    let mut company = Company::open(family);
    let a = company.join(prompt(1, lens[0]));
    let b = company.join(prompt(2, lens[1]));
    company.run(&[a, b], 6);
    let c = company.join(prompt(3, lens[2]));
    company.run(&[a, b, c], 3);
    company.run(&[a, c], 3);
    let d = company.join(prompt(4, lens[3]));
    company.run(&[d, b, a, c], 3);
    company.release(c);
    company.run(&[a, b, d], 2);
    let e = company.fork(a);
    company.run(&[a, e, b, d], 4);
    company.take_back(b);
    company.run(&[a, e, b, d], 4);
    company.end();
}

const FAMILIES: [&str; 7] = [
    "llama",
    "gemma2",
    "gpt_oss",
    "deepseek_v3",
    "qwen3_next",
    "falcon_h1",
    "gemma3_text",
];

#[test]
fn lines_of_many_lengths_do_not_disturb_each_other() {
    FAMILIES
        .iter()
        .for_each(|family| tell(family, [3, 17, 9, 30]));
}

/// Each joins with a prompt as long as the others' texts are after that step.
#[test]
fn lines_of_one_length_do_not_disturb_each_other() {
    FAMILIES
        .iter()
        .for_each(|family| tell(family, [5, 5, 11, 17]));
}

/// Room comes in runs of 256 tokens: the lines grow into more at different steps.
#[test]
fn lines_that_outgrow_their_room_do_not_disturb_each_other() {
    for lens in [[243, 254, 250, 263], [247; 4]] {
        tell("llama", lens);
        tell("gemma3_text", lens);
    }
}

#[test]
fn a_token_that_was_not_foreseen_is_answered_all_the_same() {
    for family in FAMILIES {
        let mut company = Company::open(family);
        let lines = [6, 9, 9].map(|len| company.join(prompt(len, len as usize)));
        for contradicted in [&lines[..1], &lines[1..], &lines[..]] {
            company.run(&lines, 3);
            contradicted
                .iter()
                .for_each(|line| company.contradict(*line));
        }
        company.run(&lines, 3);
        company.end();
    }
}

#[test]
fn a_session_goes_from_thread_to_thread() {
    for family in FAMILIES {
        let start = || {
            let mut company = Company::open(family);
            let lines = [4, 12].map(|len| company.join(prompt(len, len as usize)));
            (company, lines)
        };
        let (mut here, lines) = start();
        here.run(&lines, 9);
        let (mut moved, _) = start();
        for _ in 0..3 {
            let run = move || {
                moved.run(&lines, 3);
                moved
            };
            moved = thread::spawn(run).join().unwrap();
        }
        for line in lines {
            assert_eq!(moved.line(line).text, here.line(line).text, "{family}");
        }
        moved.end();
    }
}
