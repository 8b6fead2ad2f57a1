//! Sessions stay within their plan and free the memory of sequences. A separate program, because
//! MLX's memory counters belong to the process.
#![cfg(feature = "mlx")]

use std::sync::Mutex;

use loquat_mlx::MlxBackend;
use loquat_session::{
    AdapterLimits, AdapterWeights, AppliedAdapter, Backend, Emit, Grid, Media, Picture, Session,
    SessionError, SessionOptions, Span, StepBatch, StepOutput, View,
};
use loquat_spec::Role;
use loquat_testkit::{adapters, goldens, vision};
use loquat_weights::ColumnLengths;

/// One test at a time.
static SERIAL: Mutex<()> = Mutex::new(());

fn active() -> u64 {
    loquat_mlx::device_memory().unwrap().active
}

/// One request: a prompt, some tokens one by one, a fork, and the release.
fn request(session: &mut dyn Session, round: usize) {
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let mut step = |session: &mut dyn Session, rows: &[(_, &[u32])]| {
        batch.clear();
        for (sequence, tokens) in rows {
            batch.push(*sequence, tokens, Emit::Greedy { positions: 1 });
        }
        session.step(&batch, &mut output).unwrap();
        assert!(output.rows().iter().all(|row| row.error.is_none()));
    };
    let sequence = session.create().unwrap();
    let prompt: Vec<u32> = (0..20 + round as u32 % 50).map(|i| i % 31).collect();
    step(session, &[(sequence, &prompt)]);
    let fork = session.fork(sequence, prompt.len()).unwrap();
    for token in 0..5 {
        step(session, &[(sequence, &[token]), (fork, &[token + 7])]);
    }
    session.release(sequence).unwrap();
    session.release(fork).unwrap();
}

#[test]
fn memory_returns_after_each_request() {
    let _serial = SERIAL.lock();
    for family in [
        "llama",
        "gemma3_text",
        "qwen3_moe",
        "deepseek_v3",
        "qwen3_next",
        "mamba2",
    ] {
        let before = active();
        let source = goldens::source(&goldens::family(family)).unwrap();
        let options = SessionOptions {
            kv_tokens: Some(2000),
            ..SessionOptions::default()
        };
        let mut session = MlxBackend::AUTO
            .open(source, &options, &mut |_| {})
            .unwrap();
        // One-time allocations, such as constants of compiled functions, exist after the first.
        request(&mut *session, 0);
        let settled = active();
        for round in 1..200 {
            request(&mut *session, round);
            assert_eq!(active(), settled, "{family}, request {round}");
        }
        assert_eq!(session.memory().kv_in_use, 0);
        drop(session);
        assert_eq!(active(), before, "{family}, after its session");
    }
}

/// What a sequence really takes follows what it is counted with, while windows leave most of it
/// behind.
#[test]
fn memory_behind_windows_is_freed() {
    let _serial = SERIAL.lock();
    const PAGE: usize = 32;
    /// MLX allocates whole pages of memory.
    const ROUNDING: u64 = 16 << 10;
    for family in ["gemma3_text", "gpt_oss", "cohere2", "llama4_text"] {
        let source = goldens::source(&goldens::family(family)).unwrap();
        let options = SessionOptions {
            max_step_tokens: 64,
            ..SessionOptions::default()
        };
        let mut session = MlxBackend::with_page(PAGE)
            .open(source, &options, &mut |_| {})
            .unwrap();
        let memory = session.memory();
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        let mut step = |session: &mut dyn Session, sequence, tokens: &[u32]| {
            batch.clear();
            batch.push(sequence, tokens, Emit::Logits { positions: 1 });
            session.step(&batch, &mut output).unwrap();
            assert!(output.rows().iter().all(|row| row.error.is_none()));
        };
        let length = 400.min(session.capabilities().max_context - 1);
        let prompt: Vec<u32> = (0..length as u32).map(|i| i % 31).collect();
        // One-time allocations exist after the first sequence.
        let (mut taken, mut counts) = ([0; 2], Vec::new());
        for round in &mut taken {
            let before = active();
            let sequence = session.create().unwrap();
            for row in prompt[..length - 3].chunks(64) {
                step(&mut *session, sequence, row);
            }
            for token in &prompt[length - 3..] {
                step(&mut *session, sequence, &[*token]);
            }
            *round = active() - before;
            let held = session.held(&[sequence]).unwrap().kv_tokens as u64;
            let counted = held * memory.kv_bytes_per_token;
            let everything = length as u64 * memory.kv_bytes_per_token;
            assert!(counted < everything * 4 / 5, "{family}");
            counts.push(counted);
            session.release(sequence).unwrap();
        }
        let (taken, counted) = (taken[1], counts[1]);
        assert!(
            taken <= counted + ROUNDING,
            "{family}: {taken} bytes, {counted} counted"
        );
    }
}

/// Creates sequences of 40 tokens until the session is full.
fn fill(session: &mut dyn Session) -> usize {
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let mut filled = 0;
    while let Ok(sequence) = session.create() {
        batch.clear();
        batch.push(sequence, &[3; 40], Emit::Greedy { positions: 1 });
        session.step(&batch, &mut output).unwrap();
        match &output.rows()[0].error {
            None => filled += 1,
            Some(SessionError::KvExhausted { .. }) => break,
            Some(error) => panic!("{error}"),
        }
    }
    filled
}

#[test]
fn held_memory_stays_within_plan() {
    /// Constants of a layer and the rounding of its arrays, which do not grow with the model.
    const SMALL: u64 = 160 << 10;
    let _serial = SERIAL.lock();
    let (plain, quantized) = (goldens::all().unwrap(), goldens::mlx().unwrap());
    for folder in plain.into_iter().chain(quantized) {
        let source = goldens::source(&folder).unwrap();
        let options = SessionOptions {
            kv_tokens: Some(2000),
            max_sequences: 8,
            ..SessionOptions::default()
        };
        let small = SMALL * source.spec.layers.len() as u64;
        let plan = MlxBackend::AUTO.plan(&source, &options).unwrap();
        let before = active();
        let mut session = MlxBackend::AUTO
            .open(source, &options, &mut |_| {})
            .unwrap();
        let weights = active() - before;
        assert!(fill(&mut *session) > 0, "{}", folder.display());
        let held = active() - before;
        for (taken, planned) in [
            (weights, plan.memory.weight_bytes),
            (held, plan.resident_bytes),
        ] {
            assert!(
                taken <= planned + small,
                "{}: {taken}, planned {planned}",
                folder.display()
            );
        }
    }
}

#[test]
fn memory_returns_after_media() {
    let _serial = SERIAL.lock();
    for model in vision::models() {
        let options = SessionOptions {
            kv_tokens: Some(2000),
            ..SessionOptions::default()
        };
        let before = active();
        let mut session = MlxBackend::AUTO
            .open(model.source.clone(), &options, &mut |_| {})
            .unwrap();
        let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
        let mut settled = None;
        for _ in 0..4 {
            for media in &model.media {
                let handle = session.encode(media).unwrap();
                let sequence = session.create().unwrap();
                batch.clear();
                let span = Span::Media {
                    id: handle.id,
                    range: 0..handle.positions,
                };
                let spans = [Span::Tokens(&[1, 2]), span, Span::Tokens(&[3])];
                batch.push_spans(sequence, spans, Emit::Greedy { positions: 1 });
                session.step(&batch, &mut output).unwrap();
                assert_eq!(output.rows()[0].error, None, "{}", model.name);
                session.release_media(handle.id).unwrap();
                session.release(sequence).unwrap();
            }
            let now = active();
            assert_eq!(*settled.get_or_insert(now), now, "{}", model.name);
        }
        drop(session);
        assert_eq!(active(), before, "{}", model.name);
    }
}

/// A picture of the most patches that a view may have. Its scores alone would be half a gigabyte.
#[test]
fn encoding_stays_within_plan() {
    const ROWS: usize = 64;
    const COLS: usize = 128;
    let _serial = SERIAL.lock();
    let models = vision::models();
    let model = models
        .iter()
        .find(|model| model.name == "qwen3_vl")
        .unwrap();
    let options = SessionOptions {
        kv_tokens: Some(2000),
        media_positions: Some(ROWS * COLS / 4),
        ..SessionOptions::default()
    };
    let plan = MlxBackend::AUTO.plan(&model.source, &options).unwrap();
    assert_eq!(plan.capabilities.media.max_patches, ROWS * COLS);
    let grid = Grid {
        frames: 1,
        rows: ROWS,
        cols: COLS,
    };
    let tower = model.source.spec.vision.as_ref().unwrap();
    let count = ROWS * COLS * tower.patch.values();
    let picture = Picture {
        views: vec![View {
            grid,
            values: (0..count)
                .map(|index| (index % 251) as f32 / 251.0)
                .collect(),
        }],
        ..Picture::default()
    };
    let before = active();
    let mut session = MlxBackend::AUTO
        .open(model.source.clone(), &options, &mut |_| {})
        .unwrap();
    let handle = session.encode(&Media::Image(picture)).unwrap();
    assert_eq!(handle.positions, ROWS * COLS / 4);
    let peak = loquat_mlx::device_memory().unwrap().peak - before;
    assert!(
        peak <= plan.resident_bytes,
        "{peak} of {}",
        plan.resident_bytes
    );
}

/// Bytes on the host that an adapter's embedding needs.
fn column_lengths(adapter: &AdapterWeights) -> u64 {
    let embeddings = adapter
        .low_ranks()
        .filter(|(role, _, change)| *role == Role::Embedding && change.magnitude.is_some());
    let bytes = embeddings.map(|(_, _, change)| ColumnLengths::bytes(change.a.cols()) as u64);
    bytes.sum()
}

/// Adapters take no more than is counted, and their memory returns.
#[test]
fn adapters_stay_within_their_bytes() {
    /// Rounding of the arrays of an adapter.
    const SMALL: u64 = 64 << 10;
    let _serial = SERIAL.lock();
    for family in ["llama", "gemma3_text", "qwen3_moe", "deepseek_v3"] {
        let source = goldens::source(&goldens::family(family)).unwrap();
        let pair = adapters::pair(&source.spec);
        let options = SessionOptions {
            kv_tokens: Some(2000),
            adapters: AdapterLimits::holding(&pair),
            ..SessionOptions::default()
        };
        let plan = MlxBackend::AUTO.plan(&source, &options).unwrap();
        let before = active();
        let mut session = MlxBackend::AUTO
            .open(source, &options, &mut |_| {})
            .unwrap();
        request(&mut *session, 0);
        let without = active();
        // Lengths of an embedding's columns are counted, but are no arrays.
        let on_host: u64 = pair.iter().map(column_lengths).sum();
        let mut settled = None;
        for round in 0..20 {
            let ids = [0, 1].map(|index| session.load_adapter(&pair[index]).unwrap());
            let loaded = active() - without;
            let counted = session.memory().adapter_bytes;
            assert!(counted <= plan.memory.adapter_capacity, "{family}");
            assert!(loaded <= counted + SMALL, "{family}: {loaded} of {counted}");
            let held = loaded + on_host;
            assert!(held >= counted, "{family}: {held} of {counted}");
            let applied = ids.map(AppliedAdapter::whole);
            let sequence = session.create_adapted(&applied).unwrap();
            let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
            for tokens in [&[1, 2, 3][..], &[4]] {
                batch.clear();
                batch.push(sequence, tokens, Emit::Logits { positions: 1 });
                session.step(&batch, &mut output).unwrap();
            }
            session.release(sequence).unwrap();
            for id in ids {
                session.unload_adapter(id).unwrap();
            }
            let now = active();
            let settled = *settled.get_or_insert(now);
            assert_eq!(now, settled, "{family}, round {round}");
        }
        drop(session);
        assert_eq!(active(), before, "{family}, after its session");
    }
}
