//! Sequences give the same results in a batch as alone, while others join, wait or leave.

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

/// The tokens of a sequence. The last one is not in the sequence yet.
#[derive(Debug, Clone, Default, PartialEq)]
struct Transcript {
    tokens: Vec<u32>,
    /// Positions of tokens that the session emitted, ascending.
    emitted: Vec<usize>,
}

impl Transcript {
    /// Replaces the last token with another one.
    fn replace_last(&mut self) {
        let last = self.tokens.len() - 1;
        self.tokens[last] = (self.tokens[last] + 1) % VOCAB;
        self.emitted.retain(|emitted| *emitted < last);
    }

    /// Feeds the tokens to a fresh session that emits logits, so that it computes no step ahead,
    /// and returns the last logits. Each emitted token must be the likeliest, up to ties between
    /// sums of another order.
    fn alone(&self, family: &str) -> Vec<f32> {
        const TIE: f32 = 1e-3;
        let mut session = open(family);
        let sequence = session.create().unwrap();
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        let mut done = 0;
        for place in self.emitted.iter().copied().chain([self.tokens.len()]) {
            batch.clear();
            batch.push(sequence, &self.tokens[done..place], LOGITS);
            session.step(&batch, &mut output).unwrap();
            done = place;
            if let Some(token) = self.tokens.get(place) {
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
struct BatchHarness {
    family: &'static str,
    session: Box<dyn Session>,
    transcripts: BTreeMap<SequenceId, Transcript>,
}

impl BatchHarness {
    fn open(family: &'static str) -> Self {
        Self {
            family,
            session: open(family),
            transcripts: BTreeMap::new(),
        }
    }

    /// A new sequence that starts with `tokens` tokens, unlike any other's.
    fn join(&mut self, tokens: usize) -> SequenceId {
        let id = self.session.create().unwrap();
        let seed = id.0 as u32;
        let text = (0..tokens as u32).map(|i| (i * i * 7 + (i + 11) * seed) % VOCAB);
        self.transcripts.entry(id).or_default().tokens.extend(text);
        id
    }

    fn transcript(&mut self, id: SequenceId) -> &mut Transcript {
        self.transcripts.get_mut(&id).unwrap()
    }

    /// One step of these sequences with their pending tokens.
    fn step(&mut self, ids: &[SequenceId], emit: Emit) -> StepOutput {
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        for id in ids {
            let done = self.session.len(*id).unwrap();
            batch.push(*id, &self.transcript(*id).tokens[done..], emit);
        }
        self.session.step(&batch, &mut output).unwrap();
        let mut rows = output.rows().iter();
        assert!(rows.all(|row| row.error.is_none()), "{}", self.family);
        self.check_memory();
        output
    }

    /// Greedy steps, each sequence continuing with its own token.
    fn run(&mut self, ids: &[SequenceId], steps: usize) {
        for _ in 0..steps {
            let output = self.step(ids, Emit::Greedy { positions: 1 });
            for (row, id) in ids.iter().enumerate() {
                let transcript = self.transcript(*id);
                transcript.emitted.push(transcript.tokens.len());
                transcript.tokens.extend(output.tokens(row));
            }
        }
    }

    /// Memory in use equals what the sequences hold.
    fn check_memory(&self) {
        let memory = self.session.memory();
        let ids = Vec::from_iter(self.transcripts.keys().copied());
        let held = self.session.held(&ids).unwrap();
        let in_use = (memory.kv_in_use, memory.states_in_use);
        assert_eq!((held.kv_tokens, held.states), in_use, "{}", self.family);
    }

    /// A fork that continues with another token than its source.
    fn fork(&mut self, id: SequenceId) -> SequenceId {
        let mut transcript = self.transcript(id).clone();
        let fork = self.session.fork(id, transcript.tokens.len() - 1).unwrap();
        transcript.replace_last();
        self.transcripts.insert(fork, transcript);
        fork
    }

    /// Removes two tokens, or one if no earlier state is kept, and continues with another.
    fn truncate_last(&mut self, id: SequenceId) {
        let anywhere = self.session.capabilities().prefix_copy == PrefixCopy::AnyLength;
        let back = if anywhere { 2 } else { 1 };
        self.transcripts[&id].alone(self.family);
        let len = self.transcripts[&id].tokens.len() - 1 - back;
        self.session.truncate(id, len).unwrap();
        let transcript = self.transcript(id);
        transcript.tokens.truncate(len + 1);
        transcript.replace_last();
    }

    /// Returns the last logits of the sequence alone.
    fn release(&mut self, id: SequenceId) -> Vec<f32> {
        let transcript = self.transcripts.remove(&id).unwrap();
        self.session.release(id).unwrap();
        self.check_memory();
        transcript.alone(self.family)
    }

    /// Compares logits at the end, because some models repeat themselves in every state.
    fn finish(mut self) {
        /// The tolerance for float32 sums in another order, as in the contract's tests.
        const SUMMATION: f32 = 1e-4;
        let ids = Vec::from_iter(self.transcripts.keys().copied());
        let output = self.step(&ids, LOGITS);
        for (row, id) in ids.into_iter().enumerate() {
            for (alone, own) in self.release(id).iter().zip(output.logits(row, 0)) {
                let difference = (alone - own).abs();
                assert!(
                    difference < SUMMATION,
                    "{}, {id:?}: {difference}",
                    self.family
                );
            }
        }
    }
}

#[test]
fn joining_and_leaving_sequences_stay_independent() {
    let scenarios: [(&[&'static str], [usize; 4]); 4] = [
        (&FAMILIES, [3, 17, 1, 30]),
        // Each joins with as many tokens as the others have by then.
        (&FAMILIES, [5, 5, 11, 17]),
        // Pages have 256 tokens: sequences grow past one, alone and together.
        (&["llama", "gemma3_text"], [243, 254, 250, 263]),
        (&["llama", "gemma3_text"], [249, 249, 255, 261]),
    ];
    for (families, prompts) in scenarios {
        for family in families {
            let mut harness = BatchHarness::open(family);
            let [a, b] = [prompts[0], prompts[1]].map(|tokens| harness.join(tokens));
            harness.run(&[a, b], 6);
            let c = harness.join(prompts[2]);
            harness.run(&[a, b, c], 3);
            harness.run(&[a, c], 3);
            let d = harness.join(prompts[3]);
            harness.run(&[d, b, a, c], 3);
            harness.release(c);
            harness.run(&[a, b, d], 2);
            let e = harness.fork(a);
            harness.run(&[a, e, b, d], 4);
            harness.truncate_last(b);
            harness.run(&[a, e, b, d], 4);
            harness.finish();
        }
    }
}

#[test]
fn unexpected_token_discards_step_ahead() {
    for family in FAMILIES {
        let mut harness = BatchHarness::open(family);
        let ids = [6, 9, 9].map(|tokens| harness.join(tokens));
        for replaced in [&ids[..1], &ids[1..], &ids[..]] {
            harness.run(&ids, 3);
            for id in replaced {
                harness.transcript(*id).replace_last();
            }
        }
        let newcomer = harness.join(1);
        harness.run(&[ids[0], newcomer, ids[2], ids[1]], 3);
        harness.finish();
    }
}

#[test]
fn session_moves_between_threads() {
    for family in FAMILIES {
        let [mut here, mut moved] = [family; 2].map(BatchHarness::open);
        let [ids, _] = [&mut here, &mut moved].map(|c| [4, 12].map(|tokens| c.join(tokens)));
        here.run(&ids, 9);
        for _ in 0..3 {
            let run = || moved.run(&ids, 3);
            thread::scope(|scope| scope.spawn(run).join()).unwrap();
        }
        assert_eq!(moved.transcripts, here.transcripts, "{family}");
        moved.finish();
    }
}

#[test]
fn sequence_ahead_is_still_refused_twice() {
    let mut session = open("llama");
    let sequence = session.create().unwrap();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    batch.push(sequence, &[1, 2, 3], GREEDY);
    session.step(&batch, &mut output).unwrap();
    let ahead = output.tokens(0).to_vec();
    batch.clear();
    batch.push(sequence, &[4, 5], Emit::Nothing);
    batch.push(sequence, &ahead, GREEDY);
    session.step(&batch, &mut output).unwrap();
    let refused = Some(SessionError::DuplicateSequence(sequence));
    assert_eq!(
        (&output.rows()[0].error, &output.rows()[1].error),
        (&None, &refused)
    );
    assert_eq!(session.len(sequence), Ok(5));
}
