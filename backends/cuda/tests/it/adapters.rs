//! Adapters of files, against logits of peft: on the interpreter, and on a GPU if there is one.

use loquat_cuda::InterpretedBackend;
use loquat_session::{AppliedAdapter, ModelSource, Precision};
use loquat_spec::Role;
use loquat_testkit::adapters::{AdaptedSession, differences_from_peft};
use loquat_testkit::goldens;
use loquat_weights::{AdapterParts, AdapterWeights, Weights};

use crate::conformance::backends;
use crate::fast_path::source;

/// The accepted difference from peft, which computes the same in another order.
const TOLERANCE: f32 = 1e-4;

#[test]
fn goldens_agree_with_peft() {
    let backends = backends().into_iter();
    let faults: Vec<String> = backends
        .flat_map(|backend| differences_from_peft(backend, TOLERANCE))
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Every weight that an adapter can replace, by itself.
fn replaces_all(source: &ModelSource) -> AdapterWeights {
    let mut replaced = Weights::default();
    for (role, _) in source.spec.roles() {
        if let Some(stack) = source.weights.stack(role)
            && !matches!(role, Role::Positions | Role::PerLayerEmbedding)
        {
            replaced.insert_stack(role, stack.to_vec());
        }
        if let Some(values) = source
            .weights
            .vector(role)
            .filter(|_| role.is_token_vector())
        {
            replaced.insert_vector(role, values.to_vec());
        }
    }
    let parts = AdapterParts {
        replaced,
        ..AdapterParts::default()
    };
    AdapterWeights::new(&source.spec, parts).unwrap()
}

#[test]
fn equal_replacements_change_nothing() {
    for folder in goldens::all().unwrap() {
        for backend in backends() {
            let source = goldens::source(&folder).unwrap();
            let adapter = replaces_all(&source);
            let mut opened =
                AdaptedSession::open(backend, source, &[adapter], Precision::Reference);
            let whole = AppliedAdapter::whole(opened.ids[0]);
            let tokens: Vec<u32> = (1..20).collect();
            let expected = opened.logits(&[], &tokens);
            assert!(
                opened.logits(&[whole], &tokens) == expected,
                "{}, {}",
                backend.name(),
                folder.display()
            );
        }
    }
}

#[test]
fn sessions_with_adapters_skip_the_fast_path() {
    let source = source("llama-tiny:bf16");
    let adapters = loquat_testkit::adapters::pair(&source.spec);
    let tokens: Vec<u32> = (1..20).collect();
    let logits = [InterpretedBackend::AUTO, InterpretedBackend::GENERAL].map(|backend| {
        let mut opened = AdaptedSession::open(&backend, source.clone(), &adapters, Precision::Fast);
        let whole = AppliedAdapter::whole(opened.ids[0]);
        [&[][..], &[whole]].map(|applied| opened.logits(applied, &tokens))
    });
    assert!(logits[0] == logits[1]);
    let [base, adapted] = &logits[0];
    assert!(base != adapted);
}
