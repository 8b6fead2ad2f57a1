//! The session contract for every block kind and both precisions.

use std::path::Path;

use loquat_cpu::CpuBackend;
use loquat_session::conformance::{Subject, run};
use loquat_session::{
    Backend, Emit, HeldMemory, KvFormat, Media, MemoryBound, MemoryBudget, ModelSource, OpenError,
    Precision, Session, SessionError, SessionOptions, StepBatch, StepOutput,
};
use loquat_spec::Mixer;
use loquat_testkit::{adapters, goldens, vision};

fn assert_conforms(folder: &std::path::Path, precision: Precision, kv_format: Option<KvFormat>) {
    let source = goldens::source(folder).unwrap();
    let what = folder.display().to_string();
    assert_source_conforms(&what, &source, &[], (precision, kv_format));
}

fn assert_source_conforms(
    what: &str,
    source: &ModelSource,
    media: &[Media],
    (precision, kv_format): (Precision, Option<KvFormat>),
) {
    let open = |options: &SessionOptions| {
        let options = SessionOptions {
            precision,
            kv_format,
            ..options.clone()
        };
        CpuBackend::AUTO.open(source.clone(), &options, &mut |_| {})
    };
    let subject = Subject {
        open: &open,
        tolerance: 0.0,
        media,
        adapters: &adapters::pair(&source.spec),
    };
    let failures: Vec<String> = run(&subject)
        .into_iter()
        .filter_map(|(check, outcome)| Some(format!("{check}: {}", outcome.err()?)))
        .collect();
    assert!(
        failures.is_empty(),
        "{what} ({precision:?}, {kv_format:?}): {failures:#?}"
    );
}

#[test]
fn every_family_conforms() {
    for folder in goldens::all().unwrap() {
        for precision in [Precision::Fast, Precision::Reference] {
            assert_conforms(&folder, precision, None);
        }
    }
}

#[test]
fn models_that_read_pictures_conform() {
    for model in vision::models() {
        for precision in [Precision::Fast, Precision::Reference] {
            let options = (precision, None);
            assert_source_conforms(model.name, &model.source, &model.media, options);
        }
    }
}

#[test]
fn quantized_checkpoints_conform() {
    for folder in goldens::mlx().unwrap() {
        assert_conforms(&folder, Precision::Fast, None);
    }
}

pub fn is_latent(folder: &Path) -> bool {
    let spec = goldens::source(folder).unwrap().spec;
    spec.mixers()
        .any(|(_, mixer)| matches!(mixer, Mixer::Latent(_)))
}

#[test]
fn every_kv_format_conforms() {
    for folder in goldens::all().unwrap() {
        let latent = is_latent(&folder);
        let presets = KvFormat::PRESETS.map(|(_, format)| format);
        let mixed = "turbo3:turbo2,boundary=1,skip=0.01".parse().unwrap();
        for format in presets.into_iter().chain([mixed]) {
            if format.is_float() || !latent {
                assert_conforms(&folder, Precision::Fast, Some(format));
            }
        }
    }
}

/// The tolerance for rounded keys and values, as a share of the largest logit: a bf16 element has
/// an error of up to 1/256 of its value, a q8 element of up to 1/254 of the largest in its head,
/// and the tiny models have nearly uniform softmaxes, which preserve the error. Only families
/// without experts: a router could choose another expert at a tie.
#[test]
fn kv_format_moves_logits_by_its_rounding() {
    for family in ["llama", "mistral", "qwen3", "gemma3_text", "olmo2", "phi3"] {
        let folder = goldens::family(family);
        let of = |format| {
            let found = logits_of(
                &CpuBackend::AUTO,
                &folder,
                Precision::Reference,
                1,
                Some(format),
            );
            found.into_iter().map(f32::from_bits).collect::<Vec<f32>>()
        };
        let exact = of(KvFormat::F32);
        let largest = exact.iter().fold(0.0f32, |max, logit| max.max(logit.abs()));
        for (format, share) in [
            (KvFormat::F16, 0.004),
            (KvFormat::BF16, 0.025),
            (KvFormat::Q8, 0.05),
        ] {
            let pairs = of(format).into_iter().zip(&exact);
            let moved = pairs.fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
            assert!(
                moved <= share * largest,
                "{family} {format:?}: moved by {moved}, largest logit {largest}"
            );
        }
    }
}

/// The logits of these weights with q8 keys and values, and the largest difference from exact ones,
/// as a share of the largest.
fn moved_by_q8(folder: &Path) -> f32 {
    let of = |format| {
        let precision = Precision::Reference;
        let found = logits_of(&CpuBackend::AUTO, folder, precision, 1, Some(format));
        found.into_iter().map(f32::from_bits).collect::<Vec<f32>>()
    };
    let (exact, coded) = (of(KvFormat::F32), of(KvFormat::Q8));
    let largest = exact.iter().fold(0.0f32, |max, logit| max.max(logit.abs()));
    let moved = coded.iter().zip(&exact).map(|(a, b)| (a - b).abs());
    moved.fold(0.0f32, f32::max) / largest
}

/// With every expert chosen there is no choice that rounding could flip. What moves these models
/// further otherwise is their router: the tiny ones' scores are nearly tied.
#[test]
fn q8_moves_experts_only_through_their_router() {
    for (family, choice) in [
        ("gpt_oss", "\"num_experts_per_tok\": 2"),
        ("gemma4_moe", "\"top_k_experts\": 2"),
    ] {
        let golden = goldens::family(family);
        let folder = tempfile::tempdir().unwrap();
        let config = std::fs::read_to_string(golden.join("config.json")).unwrap();
        assert!(config.contains(choice), "{config}");
        let all = choice.replace('2', "4");
        std::fs::write(
            folder.path().join("config.json"),
            config.replace(choice, &all),
        )
        .unwrap();
        let weights = "model.safetensors";
        std::fs::copy(golden.join(weights), folder.path().join(weights)).unwrap();
        let (routed, all) = (moved_by_q8(&golden), moved_by_q8(folder.path()));
        println!("{family}: moved by {routed} of the largest logit, with all experts by {all}");
        // The bound of models without experts, see above.
        assert!(all <= 0.05, "{family}: {all} with all experts");
        assert!(
            routed > 3.0 * all,
            "{family}: {routed}, {all} with all experts"
        );
    }
}

#[test]
fn unsupported_kv_format_names_the_option() {
    let source = goldens::source(&goldens::family("deepseek_v3")).unwrap();
    for format in ["q8", "turbo4,boundary=1"] {
        let options = SessionOptions {
            kv_format: Some(format.parse().unwrap()),
            ..SessionOptions::default()
        };
        let open = CpuBackend::AUTO.open(source.clone(), &options, &mut |_| {});
        for error in [CpuBackend::AUTO.plan(&source, &options).err(), open.err()] {
            let Some(OpenError::Option { option, found, .. }) = error else {
                panic!("{error:?}");
            };
            assert_eq!((option, found.as_str()), ("kv_format", format));
        }
    }
}

#[test]
fn sequence_of_another_kv_format_is_refused() {
    let open = |format| {
        let source = goldens::source(&goldens::family("llama")).unwrap();
        let options = SessionOptions {
            kv_format: Some(format),
            ..SessionOptions::default()
        };
        CpuBackend::AUTO
            .open(source, &options, &mut |_| {})
            .unwrap()
    };
    for (_, from) in KvFormat::PRESETS {
        let mut session = open(from);
        let sequence = session.create().unwrap();
        let bytes = session.export(sequence).unwrap();
        for (_, to) in KvFormat::PRESETS {
            assert_eq!(
                open(to).import(&bytes).is_ok(),
                from == to,
                "{from:?} to {to:?}"
            );
        }
    }
}

#[test]
fn plan_equals_the_opened_session() {
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
                let mut reported = Vec::new();
                let session = CpuBackend::AUTO
                    .open(source.clone(), &options, &mut |share| reported.push(share))
                    .unwrap();
                assert_eq!(plan.memory, session.memory(), "{}", folder.display());
                assert_eq!(&plan.capabilities, session.capabilities());
                assert!(
                    reported.is_sorted() && reported.last() == Some(&1.0),
                    "{reported:?}"
                );
            }
        }
    }
}

#[test]
fn memory_budget_is_kept_or_refused() {
    for family in ["llama", "qwen3_next", "mamba2", "mixtral"] {
        let source = goldens::source(&goldens::family(family)).unwrap();
        let options = |bytes| SessionOptions {
            memory: Some(MemoryBudget::Bytes(bytes)),
            ..SessionOptions::default()
        };
        let refused = CpuBackend::AUTO.plan(&source, &options(1000)).err();
        let Some(OpenError::OutOfMemory {
            wanted: min_bytes,
            bound: MemoryBound::Budget,
            available: 1000,
            ..
        }) = refused
        else {
            panic!("{family}: {refused:?}");
        };
        for bytes in [
            min_bytes,
            min_bytes + 1,
            min_bytes * 3 / 2,
            min_bytes * 2,
            min_bytes * 5,
        ] {
            let plan = CpuBackend::AUTO.plan(&source, &options(bytes)).unwrap();
            assert!(plan.resident_bytes <= bytes, "{family}: {bytes}");
            let mut session = CpuBackend::AUTO
                .open(source.clone(), &options(bytes), &mut |_| {})
                .unwrap();
            assert_eq!(session.memory(), plan.memory);
            fill(&mut *session);
            let memory = session.memory();
            assert!(memory.kv_in_use <= plan.memory.kv_capacity);
            let held = HeldMemory {
                kv_tokens: memory.kv_in_use,
                states: memory.states_in_use,
            };
            assert!(
                plan.memory.weight_bytes + held.bytes(&memory) <= bytes,
                "{family}"
            );
        }
        let refused = CpuBackend::AUTO.open(source, &options(min_bytes - 1), &mut |_| {});
        assert!(matches!(refused.err(), Some(OpenError::OutOfMemory { .. })));
    }
}

/// Creates sequences of 40 tokens until the session is full.
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
fn sequence_of_another_model_is_refused() {
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
        "its own sequence, although empty"
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
fn broken_weights_fail_only_their_row() {
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
fn oversized_kv_is_planned_but_not_opened() {
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
    logits_of(backend, folder, precision, threads, None)
}

/// Longer than the windows of all goldens.
pub fn prompt(vocab: u32) -> Vec<u32> {
    (0..70).map(|i| i * 37 % vocab).collect()
}

/// The bits of the logits of every position of [`prompt`].
pub fn logits_of(
    backend: &CpuBackend,
    folder: &Path,
    precision: Precision,
    threads: usize,
    kv_format: Option<KvFormat>,
) -> Vec<u32> {
    let options = SessionOptions {
        precision,
        kv_format,
        threads: Some(threads),
        ..SessionOptions::default()
    };
    let source = goldens::source(folder).unwrap();
    let vocab = source.spec.vocab_size as u32;
    let mut session = backend.open(source, &options, &mut |_| {}).unwrap();
    let sequence = session.create().unwrap();
    let tokens = prompt(vocab);
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let positions = tokens.len();
    batch.push(sequence, &tokens, Emit::Logits { positions });
    session.step(&batch, &mut output).unwrap();
    output
        .all_logits_mut()
        .iter()
        .map(|logit| logit.to_bits())
        .collect()
}

#[test]
fn instruction_sets_and_threads_give_equal_bits() {
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

/// Logits after the last tokens of a long text that is read `at_once` tokens at a time.
fn long_logits(family: &str, options: &SessionOptions, at_once: usize) -> Vec<u32> {
    const LEN: usize = 500;
    let source = goldens::source(&goldens::family(family)).unwrap();
    let vocab = source.spec.vocab_size as u32;
    let mut session = CpuBackend::AUTO.open(source, options, &mut |_| {}).unwrap();
    let sequence = session.create().unwrap();
    let tokens: Vec<u32> = (0..LEN as u32).map(|i| i * 37 % vocab).collect();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let mut logits = Vec::new();
    for tokens in tokens.chunks(at_once) {
        batch.clear();
        let positions = tokens.len();
        batch.push(sequence, tokens, Emit::Logits { positions });
        session.step(&batch, &mut output).unwrap();
        assert_eq!(output.rows()[0].error, None);
        logits.extend(output.all_logits_mut().iter().map(|logit| logit.to_bits()));
    }
    logits
}

/// One thread processes everything; several threads share one token, or the tokens of a chunk.
#[test]
fn threads_change_no_bit_of_long_sequences() {
    for family in ["llama", "gemma3_text"] {
        for (_, kv_format) in KvFormat::PRESETS {
            let options = |threads| SessionOptions {
                threads: Some(threads),
                kv_format: Some(kv_format),
                ..SessionOptions::default()
            };
            let expected = long_logits(family, &options(1), 500);
            for (threads, at_once) in [(2, 1), (3, 7), (2, 500)] {
                let found = long_logits(family, &options(threads), at_once);
                assert!(
                    found == expected,
                    "{family}, {kv_format:?}: {threads} threads, {at_once} at once"
                );
            }
        }
    }
}
