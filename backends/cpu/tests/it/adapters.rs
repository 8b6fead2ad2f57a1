//! Adapters of files, against logits of peft, and of mlx-lm for what only that makes.

use loquat_cpu::CpuBackend;
use loquat_session::conformance::max_difference;
use loquat_session::{AppliedAdapter, Precision};
use loquat_testkit::adapters::{AdaptedSession, differences_from_peft};
use loquat_testkit::goldens::{self, Arrays};
use loquat_weights::{AdapterWeights, Checkpoint};

/// The accepted difference from peft, which computes the same in another order.
const TOLERANCE: f32 = 1e-4;

#[test]
fn goldens_agree_with_peft() {
    let faults = differences_from_peft(&CpuBackend::AUTO, TOLERANCE);
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Its lengths are of rows, peft's of columns.
#[test]
fn dora_of_embedding_agrees_with_mlx_lm() {
    let folder = goldens::fixtures().join("goldens-lora/mlx_only/llama__embed_dora");
    let base = goldens::adapter_base(&folder);
    let checkpoint = Checkpoint::open(&base).unwrap();
    let adapter = AdapterWeights::open(&folder, &checkpoint.adapter_base()).unwrap();
    let arrays = Arrays::open(&folder).unwrap();
    let source = goldens::source(&base).unwrap();
    let mut opened =
        AdaptedSession::open(&CpuBackend::AUTO, source, &[adapter], Precision::Reference);
    let whole = AppliedAdapter::whole(opened.ids[0]);
    let found = opened.logits(&[whole], &arrays.tokens("prompt_b"));
    let expected = arrays.floats("logits_b");
    assert_eq!(found.len(), expected.len());
    let difference = max_difference(&found, &expected);
    assert!(difference <= TOLERANCE, "differs by {difference}");
}
