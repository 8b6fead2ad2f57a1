//! Errors name their numbers or a remedy.

use loquat_mlx::MlxBackend;
use loquat_session::{
    Backend, Emit, MemoryBound, MemoryBudget, OpenError, Probe, SessionError, SessionOptions,
    StepBatch, StepOutput,
};
use loquat_testkit::goldens;

#[test]
fn probe_names_the_device() {
    let probe = MlxBackend::AUTO.probe();
    let Probe::Available(devices) = &probe else {
        panic!("{probe:?}");
    };
    assert!(devices[0].label.starts_with("mlx "), "{probe:?}");
    assert!(devices[0].memory_bytes.is_some_and(|bytes| bytes > 0));
}

#[test]
fn small_budget_is_refused_with_numbers() {
    for family in ["llama", "qwen3_next", "mamba2", "mixtral"] {
        let source = goldens::source(&goldens::family(family)).unwrap();
        let options = |bytes| SessionOptions {
            memory: Some(MemoryBudget::Bytes(bytes)),
            ..SessionOptions::default()
        };
        let refused = MlxBackend::AUTO.plan(&source, &options(1000)).err();
        let Some(OpenError::OutOfMemory {
            wanted: required,
            bound: MemoryBound::Budget,
            available: 1000,
            ..
        }) = refused
        else {
            panic!("{family}: {refused:?}");
        };
        assert!(MlxBackend::AUTO.plan(&source, &options(required)).is_ok());
        let refused = MlxBackend::AUTO.open(source, &options(required - 1), &mut |_| {});
        assert!(matches!(refused.err(), Some(OpenError::OutOfMemory { .. })));
    }
}

#[test]
fn model_beyond_device_memory_is_refused() {
    for kv_tokens in [1 << 40, usize::MAX] {
        let source = goldens::source(&goldens::family("llama")).unwrap();
        let options = SessionOptions {
            kv_tokens: Some(kv_tokens),
            ..SessionOptions::default()
        };
        let opened = MlxBackend::AUTO.open(source, &options, &mut |_| {});
        assert!(matches!(opened.err(), Some(OpenError::OutOfMemory { .. })));
    }
}

#[test]
fn threads_option_is_refused() {
    let source = goldens::source(&goldens::family("llama")).unwrap();
    let options = SessionOptions {
        threads: Some(2),
        ..SessionOptions::default()
    };
    let refused = MlxBackend::AUTO.plan(&source, &options).err();
    assert!(
        matches!(
            refused,
            Some(OpenError::Option {
                option: "threads",
                ..
            })
        ),
        "{refused:?}"
    );
}

/// The llama golden with its weights changed.
fn altered_llama(alter: impl FnOnce(&mut Vec<u8>)) -> tempfile::TempDir {
    let (golden, folder) = (goldens::family("llama"), tempfile::tempdir().unwrap());
    let config = folder.path().join("config.json");
    std::fs::copy(golden.join("config.json"), config).unwrap();
    let mut weights = std::fs::read(golden.join("model.safetensors")).unwrap();
    alter(&mut weights);
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    folder
}

#[test]
fn broken_weights_fail_only_their_row() {
    // The file ends with the final norm: two bytes of it become a bf16 NaN.
    let folder = altered_llama(|weights| {
        let end = weights.len();
        weights[end - 2..].copy_from_slice(&0x7fc0u16.to_le_bytes());
    });
    let source = goldens::source(folder.path()).unwrap();
    let mut session = MlxBackend::AUTO
        .open(source, &SessionOptions::default(), &mut |_| {})
        .unwrap();
    let (broken, fine) = (session.create().unwrap(), session.create().unwrap());
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    batch.push(broken, &[1, 2, 3], Emit::Greedy { positions: 1 });
    batch.push(fine, &[1, 2], Emit::Nothing);
    session.step(&batch, &mut output).unwrap();
    assert_eq!(output.rows()[0].error, Some(SessionError::NotANumber));
    assert_eq!((session.len(broken), session.len(fine)), (Ok(0), Ok(2)));
    session.release(broken).unwrap();
    session.release(fine).unwrap();
    assert_eq!(session.memory().kv_in_use, 0);
}

#[test]
fn sequence_of_another_model_is_not_imported() {
    let open = |folder: &std::path::Path| {
        let source = goldens::source(folder).unwrap();
        MlxBackend::AUTO
            .open(source, &SessionOptions::default(), &mut |_| {})
            .unwrap()
    };
    let llama = goldens::family("llama");
    let mut session = open(&llama);
    let sequence = session.create().unwrap();
    let bytes = session.export(sequence).unwrap();
    assert!(
        open(&llama).import(&bytes).is_ok(),
        "its own sequence, although empty"
    );
    // The same shape with other weights.
    let tuned = altered_llama(|weights| {
        let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
        weights[8 + header] ^= 1;
    });
    for other in [goldens::family("mistral"), tuned.path().to_owned()] {
        let refused = open(&other).import(&bytes);
        assert!(
            matches!(refused, Err(SessionError::BadImport(_))),
            "{}",
            other.display()
        );
    }
}
