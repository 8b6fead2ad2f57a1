//! Recurrent state: undone with a failed row, kept at snapshots, bounded.

use loquat_cpu::CpuBackend;
use loquat_session::{
    Backend, Emit, SequenceId, Session, SessionError, SessionOptions, StepBatch, StepOutput,
};
use loquat_testkit::goldens;
use loquat_weights::safetensors::write_safetensors;
use loquat_weights::{Blob, Checkpoint, RawTensor};

/// One family for each recurrent mixer.
const FAMILIES: [&str; 3] = ["lfm2", "mamba2", "qwen3_next"];

fn open(folder: &std::path::Path, options: &SessionOptions) -> Box<dyn Session> {
    let source = goldens::source(folder).unwrap();
    CpuBackend::AUTO.open(source, options, &mut |_| {}).unwrap()
}

/// Steps one row; its logits after the last token, as bits.
fn step(
    session: &mut dyn Session,
    sequence: SequenceId,
    tokens: &[u32],
    emit: Emit,
) -> Result<Vec<u32>, SessionError> {
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    batch.push(sequence, tokens, emit);
    session.step(&batch, &mut output)?;
    match &output.rows()[0].error {
        Some(error) => Err(error.clone()),
        None if emit == Emit::Nothing => Ok(Vec::new()),
        None => Ok(output.logits(0, 0).iter().map(|v| v.to_bits()).collect()),
    }
}

const LAST: Emit = Emit::Logits { positions: 1 };

fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|i| i * 7 % 31 + 1).collect()
}

/// The config with another number in `field`.
fn with_number(config: &str, field: &str, number: usize) -> String {
    let field = format!("\"{field}\": ");
    let (before, after) = config.split_once(&field).unwrap();
    let after = after.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{before}{field}{number}{after}")
}

/// A copy of the golden with a longer context.
fn with_context(family: &str, context: usize) -> tempfile::TempDir {
    let (golden, folder) = (goldens::family(family), tempfile::tempdir().unwrap());
    let config = std::fs::read_to_string(golden.join("config.json")).unwrap();
    let config = with_number(&config, "max_position_embeddings", context);
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let weights = "model.safetensors";
    std::fs::copy(golden.join(weights), folder.path().join(weights)).unwrap();
    folder
}

/// The golden with token 0's embedding turned into NaN.
fn with_broken_token(family: &str) -> tempfile::TempDir {
    let (golden, folder) = (goldens::family(family), tempfile::tempdir().unwrap());
    let checkpoint = Checkpoint::open(&golden).unwrap();
    let tensors: Vec<RawTensor> = checkpoint
        .tensors()
        .iter()
        .map(|tensor| {
            let mut data = tensor.data.to_vec();
            if tensor.name.contains("embed") && tensor.shape.len() == 2 {
                for value in data[..2 * tensor.cols()].chunks_exact_mut(2) {
                    value.copy_from_slice(&0x7fc0u16.to_le_bytes());
                }
            }
            let data = Blob::from_vec(data);
            RawTensor {
                data,
                ..tensor.clone()
            }
        })
        .collect();
    let weights = write_safetensors(&tensors).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    let config = std::fs::read(golden.join("config.json")).unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    folder
}

#[test]
fn failed_row_leaves_state_unchanged() {
    for family in FAMILIES {
        let folder = with_broken_token(family);
        let mut session = open(folder.path(), &SessionOptions::default());
        let (sequence, fresh) = (session.create().unwrap(), session.create().unwrap());
        let prompt = tokens(20);
        step(&mut *session, sequence, &prompt, Emit::Nothing).unwrap();
        let before = session.memory();
        let broken = step(
            &mut *session,
            sequence,
            &[3, 0],
            Emit::Greedy { positions: 1 },
        );
        assert_eq!(broken, Err(SessionError::NotANumber), "{family}");
        assert_eq!(session.memory(), before, "{family}");
        let found = step(&mut *session, sequence, &[5], LAST).unwrap();
        let tokens_and_next: Vec<u32> = prompt.iter().copied().chain([5]).collect();
        let expected = step(&mut *session, fresh, &tokens_and_next, LAST).unwrap();
        assert!(
            found == expected,
            "{family}: the broken row changed the state"
        );
    }
}

#[test]
fn snapshots_are_kept_at_intervals_and_last_step() {
    for family in FAMILIES {
        let folder = with_context(family, 1024);
        let mut session = open(folder.path(), &SessionOptions::default());
        let sequence = session.create().unwrap();
        for tokens in tokens(400).chunks(100) {
            step(&mut *session, sequence, tokens, Emit::Nothing).unwrap();
        }
        let reusable = |session: &dyn Session, at_most| session.reusable(sequence, at_most);
        for (at_most, expected) in [(500, 400), (399, 300), (299, 256), (255, 0)] {
            let found = reusable(&*session, at_most);
            assert_eq!(found, Ok(expected), "{family} at {at_most}");
        }
        step(&mut *session, sequence, &[1], Emit::Nothing).unwrap();
        assert_eq!(reusable(&*session, 400), Ok(400));
        assert_eq!(reusable(&*session, 399), Ok(256));
        let refused = session.truncate(sequence, 399);
        let (len, reusable) = (399, 256);
        assert_eq!(refused, Err(SessionError::NoSnapshot { len, reusable }));
        assert_eq!(session.len(sequence), Ok(401));
    }
}

#[test]
fn long_step_keeps_latest_snapshots() {
    let folder = with_context("mamba2", 2048);
    let options = SessionOptions {
        max_step_tokens: 2048,
        ..SessionOptions::default()
    };
    let mut session = open(folder.path(), &options);
    let sequence = session.create().unwrap();
    step(&mut *session, sequence, &tokens(2000), Emit::Nothing).unwrap();
    for (at_most, expected) in [(1999, 1792), (1791, 1536), (1535, 1280), (1279, 0)] {
        assert_eq!(
            session.reusable(sequence, at_most),
            Ok(expected),
            "at {at_most}"
        );
    }
}

/// LFM2 with these convolution taps.
fn with_taps(taps: impl Fn(&[u8]) -> Vec<u8>, kernel: usize) -> tempfile::TempDir {
    let (golden, folder) = (goldens::family("lfm2"), tempfile::tempdir().unwrap());
    let checkpoint = Checkpoint::open(&golden).unwrap();
    let tensors: Vec<RawTensor> = checkpoint
        .tensors()
        .iter()
        .map(|tensor| match tensor.shape[..] {
            [channels, 1, old] => RawTensor {
                shape: vec![channels, 1, kernel],
                data: Blob::from_vec(tensor.data.chunks_exact(2 * old).flat_map(&taps).collect()),
                ..tensor.clone()
            },
            _ => tensor.clone(),
        })
        .collect();
    let weights = write_safetensors(&tensors).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    let config = std::fs::read_to_string(golden.join("config.json")).unwrap();
    let config = with_number(&config, "conv_L_cache", kernel);
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    folder
}

#[test]
fn convolution_over_one_token_needs_no_state() {
    let last = |taps: &[u8]| taps[taps.len() - 2..].to_vec();
    let zeros_before = |taps: &[u8]| {
        let zeros = vec![0; taps.len() - 2];
        zeros.into_iter().chain(last(taps)).collect()
    };
    let kernel = 3;
    let [short, long] = [with_taps(last, 1), with_taps(zeros_before, kernel)].map(|folder| {
        let mut session = open(folder.path(), &SessionOptions::default());
        let sequence = session.create().unwrap();
        step(&mut *session, sequence, &tokens(20), LAST).unwrap()
    });
    assert!(short == long);
}

#[test]
fn every_allowed_sequence_can_step() {
    let options = SessionOptions {
        max_sequences: 3,
        ..SessionOptions::default()
    };
    for family in FAMILIES {
        let folder = with_context(family, 1024);
        let mut session = open(folder.path(), &options);
        let bytes = session.memory().state_bytes;
        assert!(bytes > 0);
        let ids: Vec<SequenceId> = (0..3).map(|_| session.create().unwrap()).collect();
        for round in 0..5 {
            let prompt = tokens(90 + round);
            let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
            for id in &ids {
                batch.push(*id, &prompt, Emit::Nothing);
            }
            session.step(&batch, &mut output).unwrap();
            assert!(output.rows().iter().all(|row| row.error.is_none()));
        }
        for id in ids {
            session.release(id).unwrap();
        }
        assert_eq!(session.memory().states_in_use, 0);
    }
}
