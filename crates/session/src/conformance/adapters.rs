//! A sequence's output depends on its own adapters, and on no other sequence's.

use super::{Subject, TestSession};
use crate::{
    AdapterId, AdapterLimits, AppliedAdapter, Emit, SequenceId, SessionError, SessionOptions,
};

const ONE: Emit = Emit::Logits { positions: 1 };

/// A session with the subject's adapters loaded.
struct Adapted {
    probe: TestSession,
    ids: Vec<AdapterId>,
}

impl Adapted {
    /// `None` if the subject has no two adapters, or the session takes none.
    fn open(subject: &Subject) -> Result<Option<Self>, String> {
        if subject.adapters.len() < 2 {
            return Ok(None);
        }
        let mut probe = TestSession::open(subject, &with(room(subject)))?;
        if !probe.session.capabilities().adapters.any() {
            return refused_without_room(subject).map(|()| None);
        }
        let ids = subject.adapters.iter().map(|adapter| {
            let loaded = probe.session.load_adapter(adapter);
            loaded.map_err(|error| format!("load_adapter: {error}"))
        });
        let ids = ids.collect::<Result<_, _>>()?;
        Ok(Some(Self { probe, ids }))
    }

    fn create(&mut self, adapters: &[(usize, f32)]) -> Result<SequenceId, String> {
        let applied: Vec<AppliedAdapter> = adapters
            .iter()
            .map(|(index, scale)| AppliedAdapter {
                id: self.ids[*index],
                scale: *scale,
            })
            .collect();
        let created = self.probe.session.create_adapted(&applied);
        created.map_err(|error| format!("create_adapted: {error}"))
    }

    fn release(&mut self, sequence: SequenceId) -> Result<(), String> {
        let released = self.probe.session.release(sequence);
        released.map_err(|error| format!("release: {error}"))
    }

    /// The logits after the prompt and after one more token, in a sequence of its own.
    fn alone(
        &mut self,
        adapters: &[(usize, f32)],
        prompt: &[u32],
        next: &[u32],
    ) -> Result<[Vec<f32>; 2], String> {
        let sequence = self.create(adapters)?;
        let first = self.probe.logits(sequence, prompt, 1)?;
        let second = self.probe.logits(sequence, next, 1)?;
        self.release(sequence)?;
        Ok([first, second])
    }
}

fn room(subject: &Subject) -> AdapterLimits {
    AdapterLimits::holding(subject.adapters)
}

fn with(adapters: AdapterLimits) -> SessionOptions {
    SessionOptions {
        adapters,
        ..SessionOptions::default()
    }
}

/// A name and the adapters of a sequence, with their scales.
type Mix = (&'static str, &'static [(usize, f32)]);

const MIXES: &[Mix] = &[
    ("base", &[]),
    ("A", &[(0, 1.0)]),
    ("B", &[(1, 1.0)]),
    ("A and B", &[(0, 1.0), (1, 1.0)]),
    ("half of A", &[(0, 0.5)]),
    ("A again", &[(0, 1.0)]),
    ("B minus A", &[(1, 1.0), (0, -1.0)]),
    ("base again", &[]),
];

pub fn refused_without_room(subject: &Subject) -> Result<(), String> {
    let Some(adapter) = subject.adapters.first() else {
        return Ok(());
    };
    let mut probe = TestSession::open(subject, &with(AdapterLimits::NONE))?;
    if probe.session.capabilities().adapters != AdapterLimits::NONE {
        return Err("a session without room reports that it takes adapters".to_owned());
    }
    let refused = Err(SessionError::Unsupported("adapters"));
    if probe.session.load_adapter(adapter) != refused {
        return Err("an adapter is not refused by a session without room".to_owned());
    }
    Ok(())
}

pub fn batched_equals_single(subject: &Subject) -> Result<(), String> {
    let Some(mut adapted) = Adapted::open(subject)? else {
        return Ok(());
    };
    let next = adapted.probe.tokens(71, 1);
    let prompt = |probe: &TestSession, row: usize| probe.tokens(72 + row as u64, 3 + 5 * row);
    let mut alone = Vec::new();
    for (row, (_, mix)) in MIXES.iter().enumerate() {
        let prompt = prompt(&adapted.probe, row);
        alone.push(adapted.alone(mix, &prompt, &next)?);
    }
    let mut rows = Vec::new();
    for (row, (_, mix)) in MIXES.iter().enumerate() {
        rows.push((adapted.create(mix)?, prompt(&adapted.probe, row)));
    }
    let prompts = rows.iter().map(|(id, prompt)| (*id, &prompt[..], ONE));
    adapted.probe.step(&prompts.collect::<Vec<_>>())?;
    for (row, (name, _)) in MIXES.iter().enumerate() {
        let found = adapted.probe.row_logits(row)?;
        let what = format!("the prompt of {name}");
        adapted.probe.same_row(&what, &alone[row][0], &found)?;
    }
    let decoded = rows.iter().rev().map(|(id, _)| (*id, &next[..], ONE));
    adapted.probe.step(&decoded.collect::<Vec<_>>())?;
    for (row, (name, _)) in MIXES.iter().rev().enumerate() {
        let found = adapted.probe.row_logits(row)?;
        let expected = &alone[MIXES.len() - 1 - row][1];
        let what = format!("the next token of {name}");
        adapted.probe.same_row(&what, expected, &found)?;
    }
    Ok(())
}

/// Each mix has its own logits, and scale 0 is as if there were no adapter, loaded or not.
pub fn adapters_have_effect(subject: &Subject) -> Result<(), String> {
    let Some(mut adapted) = Adapted::open(subject)? else {
        return Ok(());
    };
    let (prompt, next) = (adapted.probe.tokens(81, 20), adapted.probe.tokens(82, 1));
    let mut plain = TestSession::open(subject, &SessionOptions::default())?;
    let sequence = plain.create()?;
    let without = [
        plain.logits(sequence, &prompt, 1)?,
        plain.logits(sequence, &next, 1)?,
    ];
    for mix in [&[][..], &[(0, 0.0)], &[(0, 0.0), (1, 0.0)]] {
        let found = adapted.alone(mix, &prompt, &next)?;
        for (found, expected) in found.iter().zip(&without) {
            let what = format!("{} adapters of scale 0", mix.len());
            adapted.probe.same(&what, expected, found)?;
        }
    }
    let mut seen = vec![("the base", without)];
    for (name, mix) in &MIXES[1..5] {
        let found = adapted.alone(mix, &prompt, &next)?;
        if let Some((other, _)) = seen.iter().find(|(_, other)| *other == found) {
            return Err(format!("{name} has the logits of {other}"));
        }
        seen.push((name, found));
    }
    let order = adapted.alone(&[(1, 1.0), (0, 1.0)], &prompt, &next)?;
    let both = &seen[3].1;
    for (order, both) in order.iter().zip(both) {
        adapted
            .probe
            .same("adapters in another order", both, order)?;
    }
    Ok(())
}

pub fn chunked_equals_whole(subject: &Subject) -> Result<(), String> {
    let Some(mut adapted) = Adapted::open(subject)? else {
        return Ok(());
    };
    let tokens = adapted.probe.tokens(91, 50);
    for (name, mix) in &MIXES[1..4] {
        let whole = adapted.create(mix)?;
        let expected = adapted.probe.logits(whole, &tokens, 1)?;
        for chunk in [1, 7, 33] {
            let cut = adapted.create(mix)?;
            let mut last = Vec::new();
            for tokens in tokens.chunks(chunk) {
                last = adapted.probe.logits(cut, tokens, 1)?;
            }
            let what = format!("{name} in chunks of {chunk}");
            adapted.probe.same(&what, &expected, &last)?;
            adapted.release(cut)?;
        }
        adapted.release(whole)?;
    }
    Ok(())
}

pub fn forks_inherit(subject: &Subject) -> Result<(), String> {
    let Some(mut adapted) = Adapted::open(subject)? else {
        return Ok(());
    };
    let (prompt, next) = (adapted.probe.tokens(101, 40), adapted.probe.tokens(102, 3));
    for (name, mix) in &MIXES[1..4] {
        let [_, expected] = adapted.alone(mix, &prompt, &next)?;
        let source = adapted.create(mix)?;
        adapted.probe.logits(source, &prompt, 0)?;
        let forked = adapted.probe.session.fork(source, prompt.len());
        let fork = forked.map_err(|error| format!("fork: {error}"))?;
        adapted.release(source)?;
        let found = adapted.probe.logits(fork, &next, 1)?;
        let what = format!("a fork of {name}");
        adapted.probe.same(&what, &expected, &found)?;
        adapted.release(fork)?;
    }
    Ok(())
}

pub fn imported_equals_exported(subject: &Subject) -> Result<(), String> {
    let Some(mut adapted) = Adapted::open(subject)? else {
        return Ok(());
    };
    if !adapted.probe.session.capabilities().export {
        return Ok(());
    }
    let (prompt, next) = (adapted.probe.tokens(111, 33), adapted.probe.tokens(112, 2));
    let sequence = adapted.create(&[(0, 0.5), (1, 1.0)])?;
    adapted.probe.logits(sequence, &prompt, 0)?;
    let exported = adapted.probe.session.export(sequence);
    let bytes = exported.map_err(|error| format!("export: {error}"))?;
    let expected = adapted.probe.logits(sequence, &next, 1)?;
    // The other session has the adapters under other ids.
    let mut other = TestSession::open(subject, &with(room(subject)))?;
    let refused = other.session.import(&bytes);
    if !matches!(refused, Err(SessionError::BadImport(_))) {
        return Err(format!("imported without its adapters: {refused:?}"));
    }
    for adapter in subject.adapters.iter().rev() {
        let loaded = other.session.load_adapter(adapter);
        loaded.map_err(|error| format!("load_adapter: {error}"))?;
    }
    let imported = other.session.import(&bytes);
    let imported = imported.map_err(|error| format!("import: {error}"))?;
    let found = other.logits(imported, &next, 1)?;
    // Adapters add up in another order: equal up to rounding.
    let largest = expected
        .iter()
        .fold(0.0f32, |max, value| max.max(value.abs()));
    let difference = super::max_difference(&expected, &found);
    if difference > 1e-2 * largest {
        return Err(format!("the imported sequence differs by {difference}"));
    }
    Ok(())
}

pub fn bad_calls(subject: &Subject) -> Result<(), String> {
    let Some(mut adapted) = Adapted::open(subject)? else {
        return Ok(());
    };
    let [a, b] = [adapted.ids[0], adapted.ids[1]];
    let unknown = AdapterId(u64::MAX);
    let session = &mut adapted.probe.session;
    let applied = |id, scale| AppliedAdapter { id, scale };
    let finite = "it must be a finite number";
    let twice = "the adapter is listed twice; list it once with the sum of the scales";
    let refusals = [
        (
            vec![applied(unknown, 1.0)],
            SessionError::UnknownAdapter(unknown),
        ),
        (
            vec![applied(a, f32::NAN)],
            SessionError::AdapterScale { id: a, why: finite },
        ),
        (
            vec![applied(a, 1.0), applied(b, 1.0), applied(a, 0.5)],
            SessionError::AdapterScale { id: a, why: twice },
        ),
    ];
    for (adapters, expected) in refusals {
        let refused = session.create_adapted(&adapters);
        if refused != Err(expected.clone()) {
            return Err(format!("{refused:?}, expected {expected}"));
        }
    }
    if session.unload_adapter(unknown) != Err(SessionError::UnknownAdapter(unknown)) {
        return Err("an unknown adapter was unloaded".to_owned());
    }
    let max = subject.adapters.len();
    if session.load_adapter(&subject.adapters[0]) != Err(SessionError::TooManyAdapters { max }) {
        return Err("one adapter too many was loaded".to_owned());
    }
    let mut narrow = room(subject);
    narrow.rank -= 1;
    let mut narrow = TestSession::open(subject, &with(narrow))?;
    let refused = subject.adapters.iter().any(|adapter| {
        let loaded = narrow.session.load_adapter(adapter);
        matches!(loaded, Err(SessionError::AdapterRank { .. }))
    });
    if !refused {
        return Err("a rank above the limit was accepted".to_owned());
    }
    Ok(())
}

pub fn unloaded_adapters_free_memory(subject: &Subject) -> Result<(), String> {
    let Some(mut adapted) = Adapted::open(subject)? else {
        return Ok(());
    };
    let (prompt, next) = (adapted.probe.tokens(121, 9), adapted.probe.tokens(122, 1));
    let expected = adapted.alone(&[(0, 1.0)], &prompt, &next)?;
    let full = adapted.probe.session.memory();
    if full.adapters_loaded != adapted.ids.len() || full.adapter_bytes == 0 {
        return Err(format!("adapters are not counted: {full:?}"));
    }
    let id = adapted.ids[0];
    let sequence = adapted.create(&[(0, 1.0)])?;
    adapted.probe.logits(sequence, &prompt, 0)?;
    let forked = adapted.probe.session.fork(sequence, prompt.len());
    let fork = forked.map_err(|error| format!("fork: {error}"))?;
    for (sequence, sequences) in [(sequence, 2), (fork, 1)] {
        let refused = adapted.probe.session.unload_adapter(id);
        if refused != (Err(SessionError::AdapterInUse { id, sequences })) {
            return Err(format!("unloading one in use: {refused:?}"));
        }
        adapted.release(sequence)?;
    }
    for _ in 0..3 {
        let id = adapted.ids[0];
        let unloaded = adapted.probe.session.unload_adapter(id);
        unloaded.map_err(|error| format!("unload_adapter: {error}"))?;
        let refused = adapted
            .probe
            .session
            .create_adapted(&[AppliedAdapter::whole(id)]);
        if refused != Err(SessionError::UnknownAdapter(id)) {
            return Err(format!("an unloaded adapter is usable: {refused:?}"));
        }
        let loaded = adapted.probe.session.load_adapter(&subject.adapters[0]);
        adapted.ids[0] = loaded.map_err(|error| format!("load_adapter: {error}"))?;
        let found = adapted.alone(&[(0, 1.0)], &prompt, &next)?;
        for (found, expected) in found.iter().zip(&expected) {
            adapted.probe.same("loaded again", expected, found)?;
        }
        let memory = adapted.probe.session.memory();
        if memory.adapter_bytes != full.adapter_bytes {
            return Err(format!("memory is not freed: {memory:?}"));
        }
    }
    for id in adapted.ids {
        let unloaded = adapted.probe.session.unload_adapter(id);
        unloaded.map_err(|error| format!("unload_adapter: {error}"))?;
    }
    match adapted.probe.session.memory().adapter_bytes {
        0 => Ok(()),
        bytes => Err(format!("{bytes} bytes of no adapter")),
    }
}
