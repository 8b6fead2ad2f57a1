//! Layouts of a role's values: stacked, fused, by heads, alternating, transposed, quantized. Every
//! expected value is computed from its position in the file.

use crate::synthetic::{Synthetic, values, vector};
use loquat_spec::LayerRole::{self, *};
use loquat_weights::safetensors::write_safetensors;
use loquat_weights::{Checkpoint, Dtype, Mismatch, WeightsError};
use serde_json::{Value, json};

const HIDDEN: usize = 64;

fn config(model_type: &str, changes: Value) -> Value {
    let mut config = json!({
        "model_type": model_type, "vocab_size": 96, "hidden_size": HIDDEN,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "intermediate_size": 128, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
    });
    let fields = config.as_object_mut().unwrap();
    fields.extend(changes.as_object().unwrap().clone());
    config
}

/// `matrices` of `rows × cols` with the values `at(matrix, row, column)`.
fn laid_out(
    [matrices, rows, cols]: [usize; 3],
    at: impl Fn(usize, usize, usize) -> usize,
) -> Vec<f32> {
    let mut all = Vec::with_capacity(matrices * rows * cols);
    for matrix in 0..matrices {
        for row in 0..rows {
            all.extend((0..cols).map(|col| at(matrix, row, col) as f32));
        }
    }
    all
}

fn mismatch(error: WeightsError) -> Mismatch {
    match error {
        WeightsError::Binding(mismatch) => mismatch,
        other => panic!("{other}"),
    }
}

const EXPERTS: usize = 3;
const EXPERT: usize = 32;

fn qwen3_moe() -> Value {
    let changes = json!({
        "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT,
    });
    config("qwen3_moe", changes)
}

#[test]
fn separate_and_stacked_experts_are_equal() {
    let separate = Synthetic::new(&qwen3_moe(), 0);
    let bound = separate.bind().unwrap();
    // The same tensors, stacked.
    let mut stacked = Synthetic::new(&qwen3_moe(), 1);
    for layer in 0..2 {
        for (module, shape) in [
            ("gate_proj", [EXPERTS, EXPERT, HIDDEN]),
            ("up_proj", [EXPERTS, EXPERT, HIDDEN]),
            ("down_proj", [EXPERTS, HIDDEN, EXPERT]),
        ] {
            let mut bytes = Vec::new();
            for expert in 0..EXPERTS {
                let name = format!("model.layers.{layer}.mlp.experts.{expert}.{module}.weight");
                let tensor = separate.tensors.iter().find(|tensor| tensor.name == name);
                let data = &tensor.unwrap().data;
                // Adds the expert's number, so that experts differ.
                let numbers = data.as_chunks::<4>().0.iter();
                let numbers = numbers.map(|bytes| f32::from_le_bytes(*bytes) + expert as f32);
                bytes.extend(numbers.flat_map(f32::to_le_bytes));
            }
            let name = format!("model.layers.{layer}.mlp.switch_mlp.{module}.weight");
            stacked.take(&name);
            stacked.add(&name, Dtype::F32, &shape, bytes);
        }
    }
    let bound_stack = stacked.bind().unwrap();
    for (role, len) in [
        (ExpertGate, EXPERT * HIDDEN),
        (ExpertUp, EXPERT * HIDDEN),
        (ExpertDown, HIDDEN * EXPERT),
    ] {
        let alone = values(&bound, 1, role);
        let expected: Vec<f32> = (alone.iter().enumerate())
            .map(|(at, value)| value + (at / len) as f32)
            .collect();
        assert_eq!(values(&bound_stack, 1, role), expected, "{role:?}");
    }
    assert_eq!(bound.bytes(), bound_stack.bytes());
}

#[test]
fn phi_fuses_matrices_sequentially() {
    let phi = Synthetic::new(&config("phi3", json!({})), 0);
    let bound = phi.bind().unwrap();
    for (role, rows, first) in [
        (Query, 64, 0),
        (Key, 32, 64),
        (Value, 32, 96),
        (Gate, 128, 0),
        (Up, 128, 128),
    ] {
        let expected = laid_out([1, rows, HIDDEN], |_, row, col| {
            (first + row) * HIDDEN + col
        });
        assert_eq!(values(&bound, 1, role), expected, "{role:?}");
    }
}

fn qwen3_next() -> Value {
    let changes = json!({
        "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT,
        "shared_expert_intermediate_size": EXPERT, "full_attention_interval": 2,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    });
    config("qwen3_next", changes)
}

#[test]
fn parts_alternate_by_head() {
    let bound = Synthetic::new(&qwen3_next(), 0).bind().unwrap();
    // A layer, a role, its heads and the rows of each, where they begin among the rows that all
    // parts have of one head, and how many those are.
    let table = [
        (1, Query, (4, 16), 0, 32),
        (1, OutputGate, (4, 16), 16, 32),
        (0, DeltaQuery, (2, 8), 0, 80),
        (0, DeltaKey, (2, 8), 8, 80),
        (0, DeltaValue, (2, 32), 16, 80),
        (0, DeltaGate, (2, 32), 48, 80),
        (0, DeltaBeta, (2, 2), 0, 4),
        (0, DeltaDecay, (2, 2), 2, 4),
    ];
    for (layer, role, (heads, rows), first, all) in table {
        let expected = laid_out([1, heads * rows, HIDDEN], |_, row, col| {
            let file_row = row / rows * all + first + row % rows;
            file_row * HIDDEN + col
        });
        assert_eq!(values(&bound, layer, role), expected, "{role:?}");
    }
}

fn gpt_oss() -> Value {
    let changes = json!({
        "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": EXPERT,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    });
    config("gpt_oss", changes)
}

#[test]
fn transposed_stack_alternates_gates_and_ups() {
    let bound = Synthetic::new(&gpt_oss(), 0).bind().unwrap();
    for (role, bias, turn) in [(ExpertGate, ExpertGateBias, 0), (ExpertUp, ExpertUpBias, 1)] {
        // The file has `[expert][hidden][gate, up, gate, up…]`.
        let expected = laid_out([EXPERTS, EXPERT, HIDDEN], |expert, row, col| {
            (expert * HIDDEN + col) * 2 * EXPERT + 2 * row + turn
        });
        assert_eq!(values(&bound, 0, role), expected, "{role:?}");
        let expected = laid_out([EXPERTS, EXPERT, 1], |expert, row, _| {
            expert * 2 * EXPERT + 2 * row + turn
        });
        assert_eq!(vector(&bound, 0, bias), expected, "{bias:?}");
    }
    let expected = laid_out([EXPERTS, HIDDEN, EXPERT], |expert, row, col| {
        (expert * EXPERT + col) * HIDDEN + row
    });
    assert_eq!(values(&bound, 0, ExpertDown), expected);
}

#[test]
fn latent_key_rows_become_columns() {
    let (heads, nope, value, latent) = (4, 16, 12, 32);
    let changes = json!({
        "q_lora_rank": 24, "kv_lora_rank": latent, "qk_nope_head_dim": nope,
        "qk_rope_head_dim": 8, "v_head_dim": value, "moe_intermediate_size": EXPERT,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
        "first_k_dense_replace": 1,
    });
    let config = config("deepseek_v3", changes);
    let bound = Synthetic::new(&config, 0).bind().unwrap();
    let file_index =
        |head: usize, row: usize, col: usize| (head * (nope + value) + row) * latent + col;
    let keys = laid_out([heads, latent, nope], |head, row, col| {
        file_index(head, col, row)
    });
    assert_eq!(values(&bound, 1, KeyAbsorb), keys);
    let ups = laid_out([heads, value, latent], |head, row, col| {
        file_index(head, nope + row, col)
    });
    assert_eq!(values(&bound, 1, ValueUp), ups);
    // The down projection is split after the latent.
    let ropes = laid_out([1, 8, HIDDEN], |_, row, col| (latent + row) * HIDDEN + col);
    assert_eq!(values(&bound, 1, RopeKey), ropes);

    // mlx-lm stores keys transposed, and its older layout is supported too.
    let separate = Synthetic::new(&config, 1).bind().unwrap();
    let keys = laid_out([heads, latent, nope], |head, row, col| {
        (head * latent + row) * nope + col
    });
    assert_eq!(values(&separate, 1, KeyAbsorb), keys);
    let older = Synthetic::new(&config, 2).bind().unwrap();
    assert_eq!(values(&older, 1, ValueUp), ups);
}

/// The 16 values of four bits.
const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// A stack in the hub's MXFP4 form, and its values.
fn mxfp4(shape: [usize; 3]) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
    let values: usize = shape.iter().product();
    let code = |at: usize| (at * 7 + at / 5) % 16;
    let scale = |at: usize| 124 + (at / 32 % 7) as u8;
    // Two values to a byte, the first in its low half.
    let blocks = (0..values / 2).map(|byte| (code(2 * byte) | code(2 * byte + 1) << 4) as u8);
    let scales = (0..values / 32).map(|group| scale(group * 32));
    let power = |at: usize| f32::from(scale(at) - 124).exp2() / 8.0;
    let decoded = (0..values).map(|at| E2M1[code(at)] * power(at));
    (blocks.collect(), scales.collect(), decoded.collect())
}

fn with_mxfp4_experts() -> (Synthetic, [Vec<f32>; 2]) {
    let mut hub = Synthetic::new(&gpt_oss(), 0);
    let modules = [
        ("gate_up_proj", [EXPERTS, 2 * EXPERT, HIDDEN]),
        ("down_proj", [EXPERTS, HIDDEN, EXPERT]),
    ];
    let decoded = modules.map(|(module, shape)| {
        let [experts, rows, cols] = shape;
        let (blocks, scales, decoded) = mxfp4(shape);
        for layer in 0..2 {
            let name = format!("model.layers.{layer}.mlp.experts.{module}");
            hub.take(&name);
            let groups = [experts, rows, cols / 32];
            let block_dims = [experts, rows, cols / 32, 16];
            hub.add(
                &format!("{name}_blocks"),
                Dtype::U8,
                &block_dims,
                blocks.clone(),
            );
            hub.add(
                &format!("{name}_scales"),
                Dtype::U8,
                &groups,
                scales.clone(),
            );
        }
        decoded
    });
    (hub, decoded)
}

#[test]
fn hub_mxfp4_experts_are_rows_of_blocks() {
    let (hub, [gate_up, down]) = with_mxfp4_experts();
    let bound = hub.bind().unwrap();
    for (role, turn) in [(ExpertGate, 0), (ExpertUp, 1)] {
        // Not transposed here, and still alternating.
        let expected: Vec<f32> = (0..EXPERTS * EXPERT)
            .flat_map(|row| {
                let file_row = 2 * row + turn;
                gate_up[file_row * HIDDEN..][..HIDDEN].to_vec()
            })
            .collect();
        assert_eq!(values(&bound, 1, role), expected, "{role:?}");
    }
    assert_eq!(values(&bound, 1, ExpertDown), down);
    let role = loquat_spec::Role::Layer(0, ExpertUp);
    assert_eq!(bound.matrix(role).unwrap().format(), "mxfp4 4-bit g32");
}

#[test]
fn wrong_mxfp4_blocks_are_reported() {
    let name = "model.layers.0.mlp.experts.down_proj";
    let (blocks, scales) = (format!("{name}_blocks"), format!("{name}_scales"));
    let (mut hub, _) = with_mxfp4_experts();
    let removed = hub.take(&blocks);
    // The same bytes, with one expert fewer and more rows each.
    let shape = [1, EXPERTS * HIDDEN / 2, 2, 16];
    hub.add(&blocks, Dtype::U8, &shape, removed.data.to_vec());
    let found = mismatch(hub.bind().unwrap_err());
    let expected = vec![EXPERTS, HIDDEN, 1, 16];
    assert_eq!(
        found.misshapen,
        [(blocks.clone(), expected, shape.to_vec())]
    );

    let (mut hub, _) = with_mxfp4_experts();
    let removed = hub.take(&scales);
    hub.add(&scales, Dtype::I8, &removed.shape, removed.data.to_vec());
    let found = mismatch(hub.bind().unwrap_err());
    assert_eq!(found.mistyped, [(scales.clone(), Dtype::I8)]);

    let (mut hub, _) = with_mxfp4_experts();
    hub.take(&scales);
    let found = mismatch(hub.bind().unwrap_err());
    assert_eq!(found.missing, [scales]);
}

/// A stack of codes of four bits in groups of 32, and its values.
fn affine([members, rows, cols]: [usize; 3]) -> (Vec<u8>, Vec<u8>, Vec<u8>, Vec<f32>) {
    let total = members * rows * cols;
    let code = |at: usize| (at * 5 + at / 7) % 16;
    let scale = |group: usize| 0.25 + (group % 9) as f32;
    let bias = |group: usize| group as f32 * -0.5;
    let floats = |value: &dyn Fn(usize) -> f32| -> Vec<u8> {
        (0..total / 32)
            .flat_map(|group| value(group).to_le_bytes())
            .collect()
    };
    let codes = (0..total / 2).map(|byte| (code(2 * byte) | code(2 * byte + 1) << 4) as u8);
    let decoded = (0..total).map(|at| scale(at / 32) * code(at) as f32 + bias(at / 32));
    (
        codes.collect(),
        floats(&scale),
        floats(&bias),
        decoded.collect(),
    )
}

#[test]
fn mlx_quantizes_whole_stacks() {
    let mut mlx = Synthetic::new(&qwen3_moe(), 1);
    let module = "model.layers.0.mlp.switch_mlp.up_proj";
    mlx.take(&format!("{module}.weight"));
    let shape = [EXPERTS, EXPERT, HIDDEN];
    let (codes, scales, biases, expected) = affine(shape);
    let words = [EXPERTS, EXPERT, HIDDEN / 8];
    let groups = [EXPERTS, EXPERT, HIDDEN / 32];
    mlx.add(&format!("{module}.weight"), Dtype::U32, &words, codes);
    mlx.add(&format!("{module}.scales"), Dtype::F32, &groups, scales);
    mlx.add(&format!("{module}.biases"), Dtype::F32, &groups, biases);
    let table = json!({"bits": 4, "group_size": 32});
    let bound = mlx.bind_quantized(table.clone()).unwrap();
    assert_eq!(values(&bound, 0, ExpertUp), expected);
    // The other roles are not quantized.
    let plain = Synthetic::new(&qwen3_moe(), 1).bind().unwrap();
    assert_eq!(values(&bound, 1, ExpertUp), values(&plain, 1, ExpertUp));

    // One expert fewer than the scales have.
    let codes = mlx.take(&format!("{module}.weight"));
    let fewer = codes.data[..codes.data.len() / EXPERTS * 2].to_vec();
    let words = [2, EXPERT, HIDDEN / 8];
    mlx.add(&format!("{module}.weight"), Dtype::U32, &words, fewer);
    let found = mismatch(mlx.bind_quantized(table).unwrap_err());
    let names: Vec<_> = found.misshapen.iter().map(|(name, ..)| name).collect();
    assert_eq!(names, [&format!("{module}.weight")]);
}

#[test]
fn convolution_shape_identifies_the_format() {
    let [hugging_face, mlx] =
        [0, 1].map(|which| Synthetic::new(&qwen3_next(), which).bind().unwrap());
    // Both have the values in the same order.
    for (role, channels, first) in [
        (DeltaQueryConv, 16, 0),
        (DeltaKeyConv, 16, 16),
        (DeltaValueConv, 64, 32),
    ] {
        let expected = laid_out([1, channels, 4], |_, channel, tap| {
            (first + channel) * 4 + tap
        });
        assert_eq!(vector(&hugging_face, 0, role), expected, "{role:?}");
        assert_eq!(vector(&mlx, 0, role), expected, "{role:?}");
    }
    // The norms are defined differently.
    let norm = |bound, role: LayerRole| vector(bound, 1, role)[5];
    assert_eq!(norm(&hugging_face, MixerPreNorm), 6.0);
    assert_eq!(norm(&mlx, MixerPreNorm), 5.0);
    for bound in [&hugging_face, &mlx] {
        assert_eq!(vector(bound, 0, DeltaNorm)[5], 5.0);
        // Decay rates are stored as logarithms.
        assert_eq!(vector(bound, 0, DeltaRate)[2], -(2f32.exp()));
    }
}

#[test]
fn convolution_of_unknown_shape_is_reported() {
    let mut model = Synthetic::new(&qwen3_next(), 0);
    let name = "model.layers.0.linear_attn.conv1d.weight";
    let tensor = model.take(name);
    let data = tensor.data.to_vec();
    model.add(name, Dtype::F32, &[4, 96], data);
    let found = mismatch(model.bind().unwrap_err());
    let expected = (name.to_owned(), vec![96, 1, 4], vec![4, 96]);
    assert_eq!(found.misshapen, [expected]);
}

#[test]
fn closest_naming_is_reported() {
    // A file with separate experts, one missing; and a stacked one without its router.
    for (which, lost) in [
        (0, "model.layers.1.mlp.experts.2.down_proj.weight"),
        (1, "model.layers.0.mlp.gate.weight"),
        (1, "model.layers.0.mlp.switch_mlp.gate_proj.weight"),
    ] {
        let mut model = Synthetic::new(&qwen3_moe(), which);
        model.take(lost);
        let expected = Mismatch {
            missing: vec![lost.into()],
            ..Mismatch::default()
        };
        assert_eq!(mismatch(model.bind().unwrap_err()), expected);
    }
}

/// A checkpoint on disk with naming number `which` of its config.
fn opened(config: &Value, which: usize) -> (Checkpoint, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let tensors = Synthetic::new(config, which).tensors;
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("config.json"), config.to_string()).unwrap();
    let bytes = write_safetensors(&tensors).unwrap();
    std::fs::write(file("model.safetensors"), bytes).unwrap();
    (Checkpoint::open(folder.path()).unwrap(), folder)
}

#[test]
fn folded_multipliers_are_applied_once() {
    let changes = json!({
        "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16,
        "mamba_d_conv": 4, "mamba_d_ssm": 128, "embedding_multiplier": 4.0,
        "lm_head_multiplier": 0.5,
    });
    let falcon = config("falcon_h1", changes);
    for (which, expected) in [(0, (4.0, 0.5)), (1, (1.0, 1.0))] {
        let (checkpoint, _folder) = opened(&falcon, which);
        let spec = &checkpoint.spec;
        assert_eq!((spec.embedding.scale, spec.head.scale), expected);
        checkpoint.bind().unwrap();
    }
}
