//! Rows with media behave like rows of tokens: their output depends on what was fed, not on how.

use std::ops::Range;

use super::{Subject, TestSession, tails};
use crate::{
    Emit, Media, MediaHandle, MediaId, PrefixCopy, SequenceId, SessionError, SessionOptions, Span,
    StepBatch,
};

const ONE: Emit = Emit::Logits { positions: 1 };
/// Positions of the raw embeddings that are tested.
const EMBEDDED: usize = 11;
/// Room for everything that a check encodes.
const ROOM: usize = 4096;

/// A part of a prompt.
enum Part {
    Tokens(Vec<u32>),
    Media(MediaHandle, Range<usize>),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Tokens(tokens) => tokens.len(),
            Part::Media(_, range) => range.len(),
        }
    }

    fn span(&self) -> Span<'_> {
        match self {
            Part::Tokens(tokens) => Span::Tokens(tokens),
            Part::Media(handle, range) => Span::Media {
                id: handle.id,
                range: range.clone(),
            },
        }
    }

    /// Positions `range` of it.
    fn slice(&self, range: Range<usize>) -> Part {
        match self {
            Part::Tokens(tokens) => Part::Tokens(tokens[range].to_vec()),
            Part::Media(handle, own) => {
                Part::Media(*handle, own.start + range.start..own.start + range.end)
            }
        }
    }

    fn divisible(&self) -> bool {
        match self {
            Part::Tokens(_) => true,
            Part::Media(handle, _) => handle.divisible,
        }
    }
}

/// A session with room for media; `None` if it takes none.
fn open(subject: &Subject) -> Result<Option<TestSession>, String> {
    let options = SessionOptions {
        media_positions: Some(ROOM),
        ..SessionOptions::default()
    };
    let probe = TestSession::open(subject, &options)?;
    Ok(Some(probe).filter(|probe| probe.session.capabilities().media_positions > 0))
}

fn failed(what: &'static str) -> impl Fn(SessionError) -> String {
    move |error| format!("{what}: {error}")
}

/// Raw embeddings that differ at every position.
fn embeddings(probe: &TestSession, positions: usize) -> Media {
    let width = probe.session.capabilities().hidden_size.unwrap_or(1);
    let value = |index: usize| ((index * 7919 % 1009) as f32 / 504.0 - 1.0) * 0.5;
    Media::Embeddings((0..positions * width).map(value).collect())
}

/// The subject's media and raw embeddings.
fn all_media(subject: &Subject, probe: &TestSession) -> Vec<Media> {
    let mut media = subject.media.to_vec();
    media.push(embeddings(probe, EMBEDDED));
    media
}

fn encode(probe: &mut TestSession, media: &Media) -> Result<MediaHandle, String> {
    probe.session.encode(media).map_err(failed("encode"))
}

/// Text, the media, and text.
fn prompt(probe: &TestSession, handle: MediaHandle, seed: u64) -> Vec<Part> {
    vec![
        Part::Tokens(probe.tokens(seed, 5)),
        Part::Media(handle, 0..handle.positions),
        Part::Tokens(probe.tokens(seed + 1, 6)),
    ]
}

fn push(batch: &mut StepBatch, sequence: SequenceId, parts: &[Part], emit: Emit) {
    batch.push_spans(sequence, parts.iter().map(Part::span), emit);
}

/// Steps one row and returns the logits after it.
fn feed(probe: &mut TestSession, sequence: SequenceId, parts: &[Part]) -> Result<Vec<f32>, String> {
    match try_feed(probe, sequence, parts)? {
        None => probe.row_logits(0),
        Some(error) => Err(format!("row refused: {error}")),
    }
}

fn try_feed(
    probe: &mut TestSession,
    sequence: SequenceId,
    parts: &[Part],
) -> Result<Option<SessionError>, String> {
    probe.batch.clear();
    push(&mut probe.batch, sequence, parts, ONE);
    let stepped = probe.session.step(&probe.batch, &mut probe.output);
    stepped.map_err(failed("step"))?;
    Ok(probe.output.rows()[0].error.clone())
}

fn fresh(probe: &mut TestSession, parts: &[Part]) -> Result<Vec<f32>, String> {
    let sequence = probe.create()?;
    let logits = feed(probe, sequence, parts)?;
    release(probe, sequence)?;
    Ok(logits)
}

fn release(probe: &mut TestSession, sequence: SequenceId) -> Result<(), String> {
    probe.session.release(sequence).map_err(failed("release"))
}

/// The parts cut into rows of up to `size` positions, of which none cuts what must stay whole.
fn rows(parts: &[Part], size: usize) -> Vec<Vec<Part>> {
    let mut rows: Vec<Vec<Part>> = vec![Vec::new()];
    let mut room = size;
    for part in parts {
        let mut at = 0;
        while at < part.len() {
            let take = if part.divisible() {
                (part.len() - at).min(room)
            } else {
                part.len()
            };
            if let Some(row) = rows.last_mut() {
                row.push(part.slice(at..at + take));
            }
            (at, room) = (at + take, room.saturating_sub(take));
            if room == 0 {
                rows.push(Vec::new());
                room = size;
            }
        }
    }
    rows.retain(|row| !row.is_empty());
    rows
}

/// The first `len` positions.
fn prefix(parts: &[Part], len: usize) -> Vec<Part> {
    let mut left = len;
    let mut taken = Vec::new();
    for part in parts {
        let count = part.len().min(left);
        if count > 0 {
            taken.push(part.slice(0..count));
        }
        left -= count;
    }
    taken
}

fn total(parts: &[Part]) -> usize {
    parts.iter().map(Part::len).sum()
}

pub fn refused_without_room(subject: &Subject) -> Result<(), String> {
    let options = SessionOptions {
        media_positions: Some(0),
        ..SessionOptions::default()
    };
    let mut probe = TestSession::open(subject, &options)?;
    let capabilities = probe.session.capabilities();
    let inputs = capabilities.media;
    let takes_any = inputs.images || inputs.videos || inputs.embeddings;
    if takes_any || capabilities.media_positions != 0 {
        return Err(format!("{inputs:?} of a session without room"));
    }
    for media in all_media(subject, &probe) {
        match probe.session.encode(&media) {
            Err(SessionError::Unsupported(_)) => {}
            other => return Err(format!("encode: {other:?}")),
        }
    }
    let sequence = probe.create()?;
    let handle = MediaHandle {
        id: MediaId(0),
        positions: 4,
        divisible: true,
    };
    match try_feed(&mut probe, sequence, &[Part::Media(handle, 0..4)])? {
        Some(SessionError::Unsupported(_)) => {}
        other => return Err(format!("a row with media: {other:?}")),
    }
    if probe.session.len(sequence) != Ok(0) {
        return Err("a refused row changed its sequence".into());
    }
    let unknown = Err(SessionError::UnknownMedia(handle.id));
    if probe.session.release_media(handle.id) != unknown {
        return Err("unknown media are released".into());
    }
    Ok(())
}

pub fn chunked_equals_whole(subject: &Subject) -> Result<(), String> {
    let Some(mut probe) = open(subject)? else {
        return Ok(());
    };
    if probe.session.capabilities().media.whole_prompt {
        return Ok(());
    }
    for media in all_media(subject, &probe) {
        let handle = encode(&mut probe, &media)?;
        let parts = prompt(&probe, handle, 41);
        let whole = fresh(&mut probe, &parts)?;
        for size in [1, 3, 7, 8] {
            let sequence = probe.create()?;
            let mut last = Vec::new();
            for row in rows(&parts, size) {
                last = feed(&mut probe, sequence, &row)?;
            }
            probe.same(&format!("rows of {size}"), &whole, &last)?;
            release(&mut probe, sequence)?;
        }
    }
    Ok(())
}

pub fn batched_equals_single(subject: &Subject) -> Result<(), String> {
    let Some(mut probe) = open(subject)? else {
        return Ok(());
    };
    let mut prompts = Vec::new();
    for (media, seed) in all_media(subject, &probe).iter().zip(50..) {
        let handle = encode(&mut probe, media)?;
        prompts.push(prompt(&probe, handle, seed));
    }
    prompts.push(vec![Part::Tokens(probe.tokens(59, 9))]);
    let next = [Part::Tokens(probe.tokens(60, 1))];
    let mut alone = Vec::new();
    for parts in &prompts {
        let sequence = probe.create()?;
        let first = feed(&mut probe, sequence, parts)?;
        alone.push((first, feed(&mut probe, sequence, &next)?));
        release(&mut probe, sequence)?;
    }
    let sequences: Vec<SequenceId> = prompts
        .iter()
        .map(|_| probe.create())
        .collect::<Result<_, _>>()?;
    for decoding in [false, true] {
        probe.batch.clear();
        for (sequence, parts) in sequences.iter().zip(&prompts) {
            let parts = if decoding { &next[..] } else { parts };
            push(&mut probe.batch, *sequence, parts, ONE);
        }
        let stepped = probe.session.step(&probe.batch, &mut probe.output);
        stepped.map_err(failed("step"))?;
        for (row, (first, second)) in alone.iter().enumerate() {
            let expected = if decoding { second } else { first };
            probe.same_row(&format!("row {row}"), expected, &probe.row_logits(row)?)?;
        }
    }
    Ok(())
}

/// A session may compute ahead while all rows are greedy.
pub fn greedy_after_media(subject: &Subject) -> Result<(), String> {
    const STEPS: usize = 6;
    let Some(mut probe) = open(subject)? else {
        return Ok(());
    };
    for media in all_media(subject, &probe) {
        let handle = encode(&mut probe, &media)?;
        let prompts = [
            prompt(&probe, handle, 65),
            vec![Part::Tokens(probe.tokens(67, 9))],
        ];
        let sequences = [probe.create()?, probe.create()?];
        let mut chosen: [Vec<u32>; 2] = Default::default();
        for step in 0..STEPS {
            probe.batch.clear();
            for ((sequence, parts), chosen) in sequences.iter().zip(&prompts).zip(&chosen) {
                let emit = Emit::Greedy { positions: 1 };
                match chosen.last() {
                    None => push(&mut probe.batch, *sequence, parts, emit),
                    Some(token) => probe.batch.push(*sequence, &[*token], emit),
                }
            }
            let stepped = probe.session.step(&probe.batch, &mut probe.output);
            stepped.map_err(failed("step"))?;
            for (row, chosen) in chosen.iter_mut().enumerate() {
                let token = probe.output.tokens(row).first();
                chosen.push(*token.ok_or(format!("no token in step {step}"))?);
            }
        }
        for sequence in sequences {
            release(&mut probe, sequence)?;
        }
        for (parts, chosen) in prompts.into_iter().zip(chosen) {
            largest_logits(&mut probe, parts, &chosen)?;
        }
    }
    Ok(())
}

/// Whether each of the tokens has the largest logit after those before it.
fn largest_logits(
    probe: &mut TestSession,
    prompt: Vec<Part>,
    tokens: &[u32],
) -> Result<(), String> {
    let sequence = probe.create()?;
    let mut row = prompt;
    for (index, token) in tokens.iter().enumerate() {
        let logits = feed(probe, sequence, &row)?;
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let own = logits.get(*token as usize).copied();
        let own = own.ok_or(format!("token {token} is outside the vocabulary"))?;
        // Two logits may both be off by the tolerance.
        let margin = 2.0 * probe.row_tolerance();
        if largest - own > margin {
            return Err(format!("token {index} has {own}, the largest is {largest}"));
        }
        row = vec![Part::Tokens(vec![*token])];
    }
    release(probe, sequence)
}

pub fn fork_equals_fresh(subject: &Subject) -> Result<(), String> {
    let Some(mut probe) = open(subject)? else {
        return Ok(());
    };
    let shares = probe.session.capabilities().prefix_copy != PrefixCopy::None;
    for media in all_media(subject, &probe) {
        let handle = encode(&mut probe, &media)?;
        let parts = prompt(&probe, handle, 71);
        let source = probe.create()?;
        feed(&mut probe, source, &parts)?;
        let inside = 5 + handle.positions / 2;
        let after = 5 + handle.positions;
        for len in [3, 5, inside, after, after + 2, total(&parts)] {
            let cut = probe.session.reusable(source, len);
            let cut = cut.map_err(failed("reusable"))?;
            if cut > len {
                return Err(format!("{cut} is reported as reusable for {len}"));
            }
            if cut < len && probe.session.fork(source, len).is_ok() {
                return Err(format!("a fork at {len} is not refused"));
            }
            let fork = probe.session.fork(source, cut).map_err(failed("fork"))?;
            let rest = remaining(&parts, cut);
            // What follows a cut reads the same positions as it did without one.
            if shares && !rest.is_empty() {
                let expected = fresh(&mut probe, &parts)?;
                let found = feed(&mut probe, fork, &rest)?;
                probe.same(&format!("a fork at {cut}"), &expected, &found)?;
            }
            release(&mut probe, fork)?;
        }
        release(&mut probe, source)?;
    }
    Ok(())
}

/// The positions from `at` on.
fn remaining(parts: &[Part], at: usize) -> Vec<Part> {
    let mut skipped = at;
    let mut rest = Vec::new();
    for part in parts {
        let count = part.len().min(skipped);
        if count < part.len() {
            rest.push(part.slice(count..part.len()));
        }
        skipped -= count;
    }
    rest
}

pub fn imported_equals_exported(subject: &Subject) -> Result<(), String> {
    let Some(mut probe) = open(subject)? else {
        return Ok(());
    };
    if !probe.session.capabilities().export {
        return Ok(());
    }
    for media in all_media(subject, &probe) {
        let handle = encode(&mut probe, &media)?;
        let parts = prompt(&probe, handle, 81);
        let source = probe.create()?;
        let mut lengths = vec![total(&parts)];
        if handle.divisible && !probe.session.capabilities().media.whole_prompt {
            lengths.push(5 + handle.positions / 2);
        }
        lengths.sort_unstable();
        let mut fed = 0;
        for len in lengths {
            let row = remaining(&prefix(&parts, len), fed);
            feed(&mut probe, source, &row)?;
            fed = len;
            let bytes = probe.session.export(source).map_err(failed("export"))?;
            let copy = probe.session.import(&bytes).map_err(failed("import"))?;
            let mut rest = remaining(&parts, len);
            rest.push(Part::Tokens(probe.tokens(83, 2)));
            let found = feed(&mut probe, copy, &rest)?;
            let fork = probe.session.fork(source, len).map_err(failed("fork"))?;
            let expected = feed(&mut probe, fork, &rest)?;
            probe.same(&format!("imported at {len}"), &expected, &found)?;
            release(&mut probe, copy)?;
            release(&mut probe, fork)?;
        }
        release(&mut probe, source)?;
    }
    Ok(())
}

/// The other session has not encoded the media.
pub fn imported_ranges_equal_computed(subject: &Subject) -> Result<(), String> {
    let (Some(probe), Some(other)) = (open(subject)?, open(subject)?) else {
        return Ok(());
    };
    let capabilities = probe.session.capabilities();
    if probe.session.range_fingerprint().is_err() || capabilities.media.whole_prompt {
        return Ok(());
    }
    let has_tails = capabilities.prefix_copy == PrefixCopy::AtSnapshots;
    let mut sessions = [probe, other];
    for media in all_media(subject, &sessions[0]) {
        let handle = encode(&mut sessions[0], &media)?;
        let parts = prompt(&sessions[0], handle, 91);
        let source = sessions[0].create()?;
        feed(&mut sessions[0], source, &parts)?;
        let len = total(&parts);
        let rest = sessions[0].tokens(93, 3);
        let fork = sessions[0].session.fork(source, len);
        let expected = sessions[0].logits(fork.map_err(failed("fork"))?, &rest, 1)?;
        for step in [len, 7] {
            let imported = tails::copy_ranges(&mut sessions, (source, len), step)?;
            let [probe, other] = &mut sessions;
            if has_tails {
                for part in tails::parts(probe, (source, len), 1 << 16)? {
                    let added = other.session.import_tail(imported, &part);
                    added.map_err(failed("import_tail"))?;
                }
            } else {
                for at in 0..len {
                    let cuts = [(&*probe, source), (&*other, imported)];
                    let [computed, copied] =
                        cuts.map(|(session, sequence)| session.session.reusable(sequence, at));
                    if computed != copied {
                        return Err(format!("cut at {at}: {computed:?}, imported {copied:?}"));
                    }
                }
            }
            let found = other.logits(imported, &rest, 1)?;
            probe.same(&format!("imported in steps of {step}"), &expected, &found)?;
            release(other, imported)?;
        }
        let mut bytes = Vec::new();
        let [probe, other] = &mut sessions;
        let exported = probe.session.export_range(source, 0..len, &mut bytes);
        exported.map_err(failed("export_range"))?;
        let positions = bytes.len();
        let exported = probe.session.export_range_media(source, 0..len, &mut bytes);
        exported.map_err(failed("export_range_media"))?;
        // Media that end after the range.
        if bytes.len() > positions {
            bytes[positions + 8] ^= 0x40;
            let imported = other.create()?;
            if other.session.import_range(imported, len, &bytes).is_ok() {
                return Err("media beyond a range are accepted".to_owned());
            }
            release(other, imported)?;
        }
        release(probe, source)?;
    }
    Ok(())
}

pub fn released_media_free_memory(subject: &Subject) -> Result<(), String> {
    let Some(mut probe) = open(subject)? else {
        return Ok(());
    };
    let in_use = |probe: &TestSession| probe.session.memory().media_in_use;
    for media in all_media(subject, &probe) {
        let handle = encode(&mut probe, &media)?;
        if in_use(&probe) != handle.positions {
            return Err(format!("{} positions in use", in_use(&probe)));
        }
        let parts = prompt(&probe, handle, 91);
        let sequence = probe.create()?;
        feed(&mut probe, sequence, &parts)?;
        let retained = probe.session.retain_media(handle.id);
        retained.map_err(failed("retain"))?;
        for expected in [handle.positions, 0] {
            let released = probe.session.release_media(handle.id);
            released.map_err(failed("release of media"))?;
            if in_use(&probe) != expected {
                return Err(format!("{} positions, not {expected}", in_use(&probe)));
            }
        }
        let unknown = Err(SessionError::UnknownMedia(handle.id));
        if probe.session.release_media(handle.id) != unknown {
            return Err("media are released once too often".into());
        }
        // What was computed from them stays.
        let next = [Part::Tokens(probe.tokens(93, 2))];
        feed(&mut probe, sequence, &next)?;
        match try_feed(&mut probe, sequence, &parts)? {
            Some(SessionError::UnknownMedia(_)) => {}
            other => return Err(format!("released media in a row: {other:?}")),
        }
        release(&mut probe, sequence)?;
    }
    Ok(())
}

pub fn wrong_media_are_refused(subject: &Subject) -> Result<(), String> {
    let Some(mut probe) = open(subject)? else {
        return Ok(());
    };
    let width = probe.session.capabilities().hidden_size.unwrap_or(1);
    let mut wrong = vec![Media::Embeddings(Vec::new())];
    if width > 1 {
        wrong.push(Media::Embeddings(vec![0.5; width + 1]));
    }
    for media in subject.media {
        let mut media = media.clone();
        if let Media::Image(picture) | Media::Video(picture) = &mut media {
            picture.views[0].values.pop();
        }
        wrong.push(media.clone());
        if let Media::Image(picture) | Media::Video(picture) = &mut media {
            picture.views.clear();
        }
        wrong.push(media);
    }
    for media in &wrong {
        match probe.session.encode(media) {
            Err(SessionError::InvalidMedia { .. }) => {}
            other => return Err(format!("{media:?} gives {other:?}")),
        }
    }
    match probe.session.encode(&embeddings(&probe, ROOM + 1)) {
        Err(error @ SessionError::MediaExhausted { .. }) if !error.is_retryable() => {}
        other => return Err(format!("more than all memory gives {other:?}")),
    }
    if probe.session.memory().media_in_use != 0 {
        return Err("refused media hold memory".into());
    }
    let media = embeddings(&probe, EMBEDDED);
    let handle = encode(&mut probe, &media)?;
    let sequence = probe.create()?;
    for range in [3..3, 0..EMBEDDED + 1, EMBEDDED..EMBEDDED + 4] {
        match try_feed(&mut probe, sequence, &[Part::Media(handle, range.clone())])? {
            Some(SessionError::MediaRange { .. } | SessionError::EmptyRow) => {}
            other => return Err(format!("positions {range:?} give {other:?}")),
        }
    }
    if probe.session.len(sequence) != Ok(0) {
        return Err("a refused row changed its sequence".into());
    }
    Ok(())
}
