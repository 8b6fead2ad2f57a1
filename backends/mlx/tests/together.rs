//! Sequences that step together give what each gives alone, whoever comes, waits or goes.
#![cfg(feature = "mlx")]

use std::collections::BTreeMap;
use std::thread;

use loquat_mlx::MlxBackend;
use loquat_session::{
    Backend, Emit, Precision, PrefixCopy, SequenceId, Session, SessionError, SessionOptions,
    StepBatch, StepOutput,
};
use loquat_testkit::goldens;

const FAMILIES: [&str; 7] = [
    "llama",
    "gemma2",
    "gpt_oss",
    "deepseek_v3",
    "qwen3_next",
    "falcon_h1",
    "gemma3_text",
];
/// The smallest vocabulary among them.
const VOCAB: u32 = 40;
const LOGITS: Emit = Emit::Logits { positions: 1 };
const GREEDY: Emit = Emit::Greedy { positions: 1 };

fn open(family: &str) -> Box<dyn Session> {
    let source = goldens::source(&goldens::family(family)).unwrap();
    let options = SessionOptions {
        precision: Precision::Reference,
        kv_tokens: Some(8192),
        ..SessionOptions::default()
    };
    let opened = MlxBackend::AUTO.open(source, &options, &mut |_| {});
    opened.unwrap()
}

/// What was said in a sequence. The last token is said, and not in the sequence yet.
#[derive(Debug, Clone, Default, PartialEq)]
struct Line {
    text: Vec<u32>,
    /// Places in the text of what the session gave, ascending.
    given: Vec<usize>,
}

impl Line {
    /// Says something else than what was given last.
    fn contradict(&mut self) {
        let place = self.text.len() - 1;
        self.text[place] = (self.text[place] + 1) % VOCAB;
        self.given.retain(|given| *given < place);
    }

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

/// A session and all its sequences.
struct Company {
    family: &'static str,
    session: Box<dyn Session>,
    lines: BTreeMap<SequenceId, Line>,
}

impl Company {
    fn open(family: &'static str) -> Self {
        Self {
            family,
            session: open(family),
            lines: BTreeMap::new(),
        }
    }

    /// A sequence that begins with so many tokens, like no other's.
    fn join(&mut self, tokens: usize) -> SequenceId {
        let id = self.session.create().unwrap();
        let seed = id.0 as u32;
        let text = (0..tokens as u32).map(|i| (i * i * 7 + (i + 11) * seed) % VOCAB);
        self.lines.entry(id).or_default().text.extend(text);
        id
    }

    fn line(&mut self, id: SequenceId) -> &mut Line {
        self.lines.get_mut(&id).unwrap()
    }

    /// One step of these sequences with what was said in them last.
    fn step(&mut self, ids: &[SequenceId], emit: Emit) -> StepOutput {
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        for id in ids {
            let done = self.session.len(*id).unwrap();
            batch.push(*id, &self.line(*id).text[done..], emit);
        }
        self.session.step(&batch, &mut output).unwrap();
        let mut rows = output.rows().iter();
        assert!(rows.all(|row| row.error.is_none()), "{}", self.family);
        self.check_memory();
        output
    }

    /// So many greedy steps, each sequence going on with what it was given.
    fn run(&mut self, ids: &[SequenceId], steps: usize) {
        for _ in 0..steps {
            let output = self.step(ids, Emit::Greedy { positions: 1 });
            for (row, id) in ids.iter().enumerate() {
                let line = self.line(*id);
                line.given.push(line.text.len());
                line.text.extend(output.tokens(row));
            }
        }
    }

    /// Nothing is in use but what is held, so nothing at all after the last release.
    fn check_memory(&self) {
        let memory = self.session.memory();
        let ids = Vec::from_iter(self.lines.keys().copied());
        let held = self.session.held(&ids).unwrap();
        let in_use = (memory.kv_in_use, memory.states_in_use);
        assert_eq!((held.kv_tokens, held.states), in_use, "{}", self.family);
    }

    /// A sequence that goes on with another token than the one it comes from.
    fn fork(&mut self, id: SequenceId) -> SequenceId {
        let mut line = self.line(id).clone();
        let fork = self.session.fork(id, line.text.len() - 1).unwrap();
        line.contradict();
        self.lines.insert(fork, line);
        fork
    }

    /// Takes back two tokens, or one where no state before that is kept, and says another.
    fn take_back(&mut self, id: SequenceId) {
        let anywhere = self.session.capabilities().prefix_copy == PrefixCopy::AnyLength;
        let back = if anywhere { 2 } else { 1 };
        self.lines[&id].alone(self.family);
        let len = self.lines[&id].text.len() - 1 - back;
        self.session.truncate(id, len).unwrap();
        let line = self.line(id);
        line.text.truncate(len + 1);
        line.contradict();
    }

    /// Gives the last logits it would have given alone.
    fn release(&mut self, id: SequenceId) -> Vec<f32> {
        let line = self.lines.remove(&id).unwrap();
        self.session.release(id).unwrap();
        self.check_memory();
        line.alone(self.family)
    }

    /// Some models repeat themselves whatever they remember, so that logits are compared at last.
    fn end(mut self) {
        /// Sums of float32 in another order, as in the contract's tests.
        const SUMMATION: f32 = 1e-4;
        let ids = Vec::from_iter(self.lines.keys().copied());
        let output = self.step(&ids, LOGITS);
        for (row, id) in ids.into_iter().enumerate() {
            for (alone, own) in self.release(id).iter().zip(output.logits(row, 0)) {
                let apart = (alone - own).abs();
                assert!(apart < SUMMATION, "{}, {id:?}: {apart}", self.family);
            }
        }
    }
}

#[test]
fn sequences_that_come_and_go_do_not_disturb_each_other() {
    let stories: [(&[&'static str], [usize; 4]); 4] = [
        (&FAMILIES, [3, 17, 1, 30]),
        // Each joins with as many tokens as the others have after that step.
        (&FAMILIES, [5, 5, 11, 17]),
        // Room comes in runs of 256 tokens: they grow into more, apart and together.
        (&["llama", "gemma3_text"], [243, 254, 250, 263]),
        (&["llama", "gemma3_text"], [249, 249, 255, 261]),
    ];
    for (families, prompts) in stories {
        for family in families {
            let mut company = Company::open(family);
            let [a, b] = [prompts[0], prompts[1]].map(|tokens| company.join(tokens));
            company.run(&[a, b], 6);
            let c = company.join(prompts[2]);
            company.run(&[a, b, c], 3);
            company.run(&[a, c], 3);
            let d = company.join(prompts[3]);
            company.run(&[d, b, a, c], 3);
            company.release(c);
            company.run(&[a, b, d], 2);
            let e = company.fork(a);
            company.run(&[a, e, b, d], 4);
            company.take_back(b);
            company.run(&[a, e, b, d], 4);
            company.end();
        }
    }
}

#[test]
fn a_token_that_was_not_foreseen_is_answered_all_the_same() {
    for family in FAMILIES {
        let mut company = Company::open(family);
        let ids = [6, 9, 9].map(|tokens| company.join(tokens));
        for contradicted in [&ids[..1], &ids[1..], &ids[..]] {
            company.run(&ids, 3);
            for id in contradicted {
                company.line(*id).contradict();
            }
        }
        let newcomer = company.join(1);
        company.run(&[ids[0], newcomer, ids[2], ids[1]], 3);
        company.end();
    }
}

#[test]
fn a_session_goes_from_thread_to_thread() {
    for family in FAMILIES {
        let [mut here, mut moved] = [family; 2].map(Company::open);
        let [ids, _] = [&mut here, &mut moved].map(|c| [4, 12].map(|tokens| c.join(tokens)));
        here.run(&ids, 9);
        for _ in 0..3 {
            let run = || moved.run(&ids, 3);
            thread::scope(|scope| scope.spawn(run).join()).unwrap();
        }
        assert_eq!(moved.lines, here.lines, "{family}");
        moved.end();
    }
}

#[test]
fn a_sequence_that_was_foreseen_still_stands_in_a_batch_once() {
    let mut session = open("llama");
    let sequence = session.create().unwrap();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    batch.push(sequence, &[1, 2, 3], GREEDY);
    session.step(&batch, &mut output).unwrap();
    let foreseen = output.tokens(0).to_vec();
    batch.clear();
    batch.push(sequence, &[4, 5], Emit::Nothing);
    batch.push(sequence, &foreseen, GREEDY);
    session.step(&batch, &mut output).unwrap();
    let refused = Some(SessionError::DuplicateSequence(sequence));
    assert_eq!(
        (&output.rows()[0].error, &output.rows()[1].error),
        (&None, &refused)
    );
    assert_eq!(session.len(sequence), Ok(5));
}
