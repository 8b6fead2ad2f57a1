//! The session contract, judged on every block kind and both precisions.

use std::path::Path;

use loquat_cpu::CpuBackend;
use loquat_session::conformance::{Subject, run};
use loquat_session::{
    Backend, Emit, Held, MemoryBound, MemoryBudget, OpenError, Precision, Session, SessionError,
    SessionOptions, StepBatch, StepOutput,
};
use loquat_testkit::goldens;

fn judge(folder: &std::path::Path, precision: Precision) {
    let source = goldens::source(folder).unwrap();
    let open = |options: &SessionOptions| {
        let options = SessionOptions {
            precision,
            ..options.clone()
        };
        CpuBackend::AUTO.open(source.clone(), &options, &mut |_| {})
    };
    let subject = Subject {
        open: &open,
        tolerance: 0.0,
    };
    for (check, outcome) in run(&subject) {
        if let Err(reason) = outcome {
            panic!("{} ({precision:?}), {check}: {reason}", folder.display());
        }
    }
}

#[test]
fn every_family_conforms() {
    for folder in goldens::all().unwrap() {
        for precision in [Precision::Fast, Precision::Reference] {
            judge(&folder, precision);
        }
    }
}

#[test]
fn quantized_checkpoints_conform() {
    for folder in goldens::mlx().unwrap() {
        judge(&folder, Precision::Fast);
    }
}

#[test]
fn a_plan_foretells_the_session() {
    let (plain, quantized) = (goldens::all().unwrap(), goldens::mlx().unwrap());
    for folder in plain.into_iter().chain(quantized) {
        for precision in [Precision::Fast, Precision::Reference] {
            let source = goldens::source(&folder).unwrap();
            for (kv_tokens, memory) in [(Some(100), None), (None, Some(MemoryBudget::Percent(9)))] {
                let options = SessionOptions {
                    precision,
                    kv_tokens,
                    memory,
                    ..SessionOptions::default()
                };
                let plan = CpuBackend::AUTO.plan(&source, &options).unwrap();
                let mut heard = Vec::new();
                let session = CpuBackend::AUTO
                    .open(source.clone(), &options, &mut |share| heard.push(share))
                    .unwrap();
                assert_eq!(plan.memory, session.memory(), "{}", folder.display());
                assert_eq!(&plan.capabilities, session.capabilities());
                assert!(heard.is_sorted() && heard.last() == Some(&1.0), "{heard:?}");
            }
        }
    }
}

#[test]
fn a_memory_budget_is_kept_or_refused_with_the_numbers() {
    for family in ["llama", "qwen3_next", "mamba2", "mixtral"] {
        let source = goldens::source(&goldens::family(family)).unwrap();
        let options = |bytes| SessionOptions {
            memory: Some(MemoryBudget::Bytes(bytes)),
            ..SessionOptions::default()
        };
        let refused = CpuBackend::AUTO.plan(&source, &options(1000)).err();
        let Some(OpenError::OutOfMemory {
            wanted: least,
            bound: MemoryBound::Budget,
            available: 1000,
            ..
        }) = refused
        else {
            panic!("{family}: {refused:?}");
        };
        for bytes in [least, least + 1, least * 3 / 2, least * 2, least * 5] {
            let plan = CpuBackend::AUTO.plan(&source, &options(bytes)).unwrap();
            assert!(plan.resident_bytes <= bytes, "{family}: {bytes}");
            let mut session = CpuBackend::AUTO
                .open(source.clone(), &options(bytes), &mut |_| {})
                .unwrap();
            assert_eq!(session.memory(), plan.memory);
            fill(&mut *session);
            let memory = session.memory();
            assert!(memory.kv_in_use <= plan.memory.kv_capacity);
            let held = Held {
                kv_tokens: memory.kv_in_use,
                states: memory.states_in_use,
            };
            assert!(
                plan.memory.weight_bytes + held.bytes(&memory) <= bytes,
                "{family}"
            );
        }
        let refused = CpuBackend::AUTO.open(source, &options(least - 1), &mut |_| {});
        assert!(matches!(refused.err(), Some(OpenError::OutOfMemory { .. })));
    }
}

/// Makes sequences of 40 tokens until the session takes no more.
fn fill(session: &mut dyn Session) {
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    while let Ok(sequence) = session.create() {
        batch.clear();
        batch.push(sequence, &[3; 40], Emit::Nothing);
        session.step(&batch, &mut output).unwrap();
        if output.rows()[0].error.is_some() {
            return;
        }
    }
}

/// The llama golden with its weights changed; the closure gets the file and where data starts.
fn altered_llama(alter: impl FnOnce(&mut Vec<u8>, usize)) -> tempfile::TempDir {
    let (golden, folder) = (goldens::family("llama"), tempfile::tempdir().unwrap());
    let config = folder.path().join("config.json");
    std::fs::copy(golden.join("config.json"), config).unwrap();
    let mut weights = std::fs::read(golden.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    alter(&mut weights, 8 + header);
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    folder
}

#[test]
fn another_models_sequence_is_not_imported() {
    let options = SessionOptions::default();
    let open = |family: &str| {
        let source = goldens::source(&goldens::family(family)).unwrap();
        CpuBackend::AUTO
            .open(source, &options, &mut |_| {})
            .unwrap()
    };
    let mut session = open("llama");
    let sequence = session.create().unwrap();
    let bytes = session.export(sequence).unwrap();
    assert!(
        open("llama").import(&bytes).is_ok(),
        "its own, empty as it is"
    );
    assert!(matches!(
        open("mistral").import(&bytes),
        Err(SessionError::BadImport(_))
    ));
    // The same shape with other weights.
    let folder = altered_llama(|weights, data| weights[data] ^= 1);
    let source = goldens::source(folder.path()).unwrap();
    let mut tuned = CpuBackend::AUTO
        .open(source, &options, &mut |_| {})
        .unwrap();
    assert!(matches!(
        tuned.import(&bytes),
        Err(SessionError::BadImport(_))
    ));
}

#[test]
fn broken_weights_fail_the_row_and_nothing_else() {
    // The file ends with the final norm: two bytes of it become a bf16 NaN.
    let folder = altered_llama(|weights, _| {
        let end = weights.len();
        weights[end - 2..].copy_from_slice(&0x7fc0u16.to_le_bytes());
    });
    let source = goldens::source(folder.path()).unwrap();
    let mut session = CpuBackend::AUTO
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
fn more_than_the_machine_has_is_planned_but_not_opened() {
    for kv_tokens in [1 << 40, usize::MAX] {
        let source = goldens::source(&goldens::family("llama")).unwrap();
        let options = SessionOptions {
            kv_tokens: Some(kv_tokens),
            ..SessionOptions::default()
        };
        let plan = CpuBackend::AUTO.plan(&source, &options).unwrap();
        assert!(plan.memory.kv_capacity > 1 << 39);
        let opened = CpuBackend::AUTO.open(source, &options, &mut |_| {});
        assert!(matches!(opened.err(), Some(OpenError::OutOfMemory { .. })));
    }
}

/// Logits after every token of a prompt that crosses pages and windows.
fn logits(backend: &CpuBackend, folder: &Path, precision: Precision, threads: usize) -> Vec<u32> {
    let options = SessionOptions {
        precision,
        threads: Some(threads),
        ..SessionOptions::default()
    };
    let source = goldens::source(folder).unwrap();
    let vocab = source.spec.vocab_size as u32;
    let mut session = backend.open(source, &options, &mut |_| {}).unwrap();
    let sequence = session.create().unwrap();
    let tokens: Vec<u32> = (0..70).map(|i| i * 37 % vocab).collect();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    batch.push(sequence, &tokens, Emit::Logits { positions: 70 });
    session.step(&batch, &mut output).unwrap();
    output
        .all_logits_mut()
        .iter()
        .map(|logit| logit.to_bits())
        .collect()
}

#[test]
fn every_instruction_set_and_thread_count_gives_the_same_bits() {
    let (plain, quantized) = (goldens::all().unwrap(), goldens::mlx().unwrap());
    for folder in plain.into_iter().chain(quantized) {
        for precision in [Precision::Fast, Precision::Reference] {
            let expected = logits(&CpuBackend::AUTO, &folder, precision, 1);
            for backend in CpuBackend::every_instruction_set() {
                for threads in [1, 2, 3] {
                    let found = logits(&backend, &folder, precision, threads);
                    assert!(
                        found == expected,
                        "{} {threads}: {:?}",
                        folder.display(),
                        backend.probe()
                    );
                }
            }
        }
    }
}
