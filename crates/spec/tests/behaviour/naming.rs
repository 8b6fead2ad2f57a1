//! Roles and the tensors that fill them.

use std::collections::HashSet;

use crate::common::{load, tiny, with};
use loquat_spec::families::Described;
use loquat_spec::{
    ConvShape, Fused, Kind, LayerRole, Layout, ModelSpec, Naming, Orientation, Role, RowMap, Slot,
    Split, Transform,
};
use serde_json::{Value, json};

/// A config's spec and the first of its namings.
fn named(config: &Value) -> (ModelSpec, Naming) {
    let Described { spec, namings, .. } = load(config).unwrap_or_else(|error| panic!("{error}"));
    (spec, namings[0])
}

/// A layout of all of a tensor's rows.
fn whole(rows: usize) -> Layout {
    Layout {
        rows: RowMap {
            first: 0,
            block: rows,
            stride: rows,
        },
        total: rows,
        orientation: Orientation::Rows,
    }
}

fn slot(slots: &[Slot], role: Role) -> &Slot {
    let slot = slots.iter().find(|slot| slot.role == role);
    slot.unwrap_or_else(|| panic!("no {role}"))
}

#[test]
fn families_name_their_tensors() {
    use LayerRole::*;
    use Transform::{AddOne, None as Plain};
    let matrix = |rows, cols| Kind::Matrix { rows, cols };
    let vector = |len| Kind::Vector { len };
    let layer = |role| Role::Layer(1, role);
    let table: Vec<(&str, Role, &str, Kind, Transform)> = vec![
        (
            "llama",
            Role::Embedding,
            "model.embed_tokens.weight",
            matrix(288, 64),
            Plain,
        ),
        (
            "llama",
            Role::Head,
            "lm_head.weight",
            matrix(288, 64),
            Plain,
        ),
        (
            "llama",
            Role::FinalNorm,
            "model.norm.weight",
            vector(64),
            Plain,
        ),
        (
            "mistral",
            layer(Key),
            "model.layers.1.self_attn.k_proj.weight",
            matrix(32, 64),
            Plain,
        ),
        (
            "mistral",
            layer(FeedForwardPreNorm),
            "model.layers.1.post_attention_layernorm.weight",
            vector(64),
            Plain,
        ),
        (
            "qwen2",
            layer(QueryBias),
            "model.layers.1.self_attn.q_proj.bias",
            vector(64),
            Plain,
        ),
        (
            "qwen3",
            layer(KeyNorm),
            "model.layers.1.self_attn.k_norm.weight",
            vector(16),
            Plain,
        ),
        (
            "smollm3",
            layer(Down),
            "model.layers.1.mlp.down_proj.weight",
            matrix(64, 128),
            Plain,
        ),
        (
            "gemma3_text",
            Role::FinalNorm,
            "model.norm.weight",
            vector(64),
            AddOne,
        ),
        (
            "gemma3_text",
            layer(MixerPreNorm),
            "model.layers.1.input_layernorm.weight",
            vector(64),
            AddOne,
        ),
        (
            "gemma3_text",
            layer(MixerPostNorm),
            "model.layers.1.post_attention_layernorm.weight",
            vector(64),
            AddOne,
        ),
        (
            "gemma3_text",
            layer(FeedForwardPreNorm),
            "model.layers.1.pre_feedforward_layernorm.weight",
            vector(64),
            AddOne,
        ),
        (
            "gemma3_text",
            layer(FeedForwardPostNorm),
            "model.layers.1.post_feedforward_layernorm.weight",
            vector(64),
            AddOne,
        ),
        (
            "gemma3_text",
            layer(QueryNorm),
            "model.layers.1.self_attn.q_norm.weight",
            vector(16),
            AddOne,
        ),
        (
            "gemma3_text",
            layer(Gate),
            "model.layers.1.mlp.gate_proj.weight",
            matrix(128, 64),
            Plain,
        ),
    ];
    for (family, role, name, kind, transform) in table {
        let (spec, naming) = named(&tiny(family));
        let slots = naming.slots(&spec);
        let expected = Slot {
            role,
            names: vec![name.into()],
            kind,
            layout: whole(kind.rows()),
            transform,
        };
        assert_eq!(*slot(&slots, role), expected, "{family}");
        let names: HashSet<_> = slots.iter().map(|slot| &slot.names).collect();
        assert_eq!(names.len(), slots.len(), "{family}: a name fills two roles");
    }
}

#[test]
fn copy_of_tied_head_is_ignored() {
    let tied = with(tiny("llama"), json!({"tie_word_embeddings": true}));
    let (spec, naming) = named(&tied);
    let slots = naming.slots(&spec);
    assert!(slots.iter().all(|slot| slot.role != Role::Head));
    let (untied, _) = named(&tiny("llama"));
    let table = [
        ("lm_head.weight", true, false),
        ("lm_head.scales", true, false),
        ("lm_head.bias", false, false),
        ("lm_head_2.weight", false, false),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", true, true),
        ("model.layers.0.self_attn.sinks", false, false),
    ];
    for (name, when_tied, when_untied) in table {
        assert_eq!(naming.ignores(&spec, name), when_tied, "{name}");
        assert_eq!(naming.ignores(&untied, name), when_untied, "{name}");
    }
}

#[test]
fn one_tensor_may_fill_several_roles() {
    use LayerRole::*;
    let biased = json!({"attention_bias": true, "mlp_bias": true});
    let (spec, plain) = named(&with(tiny("llama"), biased));
    let naming = Naming {
        layers: "blocks.{}.",
        fused: &[
            Fused {
                name: "qkv",
                parts: &[Query, Key, Value],
                split: Split::Sequential,
            },
            Fused {
                name: "up_gate.weight",
                parts: &[Up, Gate],
                split: Split::Alternate,
            },
        ],
        ..plain
    };
    let slots = naming.slots(&spec);
    // Name, first row, rows in one piece, distance of pieces, rows of all.
    let table = [
        (Query, "blocks.1.qkv", [0, 64, 128], 128),
        (Key, "blocks.1.qkv", [64, 32, 128], 128),
        (Value, "blocks.1.qkv", [96, 32, 128], 128),
        (QueryBias, "blocks.1.qkv_bias", [0, 64, 128], 128),
        (KeyBias, "blocks.1.qkv_bias", [64, 32, 128], 128),
        (ValueBias, "blocks.1.qkv_bias", [96, 32, 128], 128),
        (Up, "blocks.1.up_gate.weight", [0, 1, 2], 256),
        (Gate, "blocks.1.up_gate.weight", [1, 1, 2], 256),
        (GateBias, "blocks.1.up_gate.bias", [1, 1, 2], 256),
    ];
    for (role, name, [first, block, stride], total) in table {
        let slot = slot(&slots, Role::Layer(1, role));
        let rows = RowMap {
            first,
            block,
            stride,
        };
        let layout = Layout {
            rows,
            total,
            orientation: Orientation::Rows,
        };
        assert_eq!(
            (&slot.names[..], slot.layout),
            (&[name.to_owned()][..], layout),
            "{role:?}"
        );
    }
    let output = slot(&slots, Role::Layer(1, Output));
    assert_eq!(output.names, ["blocks.1.self_attn.o_proj.weight"]);
    assert_eq!(output.layout, whole(64));
}

#[test]
fn rows_are_found_piece_by_piece() {
    let map = RowMap {
        first: 2,
        block: 3,
        stride: 5,
    };
    let rows: Vec<_> = (0..7).map(|row| map.file_row(row)).collect();
    assert_eq!(rows, [2, 3, 4, 7, 8, 9, 12]);
}

#[test]
fn experts_are_named_one_by_one_or_stacked() {
    use LayerRole::*;
    let Described { spec, namings, .. } = load(&tiny("qwen3_moe")).unwrap();
    let kind = Kind::Stack {
        count: 3,
        rows: 32,
        cols: 64,
    };
    let [apart, stacked] = &namings[..] else {
        panic!("{} namings", namings.len());
    };
    let apart = apart.slots(&spec);
    let found = slot(&apart, Role::Layer(1, ExpertUp));
    let names = [0, 1, 2].map(|e| format!("model.layers.1.mlp.experts.{e}.up_proj.weight"));
    assert_eq!((&found.names[..], found.kind), (&names[..], kind));
    assert_eq!(found.layout, whole(32));
    let stacked = stacked.slots(&spec);
    let found = slot(&stacked, Role::Layer(1, ExpertUp));
    assert_eq!(
        found.names,
        ["model.layers.1.mlp.switch_mlp.up_proj.weight"]
    );
    assert_eq!(found.kind, kind);
}

#[test]
fn gpt_oss_experts_alternate_and_are_transposed() {
    use LayerRole::*;
    let (spec, naming) = named(&tiny("gpt_oss"));
    let slots = naming.slots(&spec);
    let turns = |first| RowMap {
        first,
        block: 1,
        stride: 2,
    };
    let fused = "model.layers.0.mlp.experts.gate_up_proj";
    for (role, first) in [(ExpertGate, 0), (ExpertUp, 1)] {
        let matrix = slot(&slots, Role::Layer(0, role));
        assert_eq!(matrix.names, [fused]);
        let layout = Layout {
            rows: turns(first),
            total: 256,
            orientation: Orientation::Columns,
        };
        assert_eq!(matrix.layout, layout, "{role:?}");
        let bias = slot(&slots, Role::Layer(0, role.bias().unwrap()));
        assert_eq!(bias.names, [format!("{fused}_bias")]);
        let kind = Kind::Vectors { count: 4, len: 128 };
        let layout = Layout {
            orientation: Orientation::Rows,
            ..layout
        };
        assert_eq!((bias.kind, bias.layout), (kind, layout), "{role:?}");
    }
    let down = slot(&slots, Role::Layer(0, ExpertDown));
    assert_eq!(down.names, ["model.layers.0.mlp.experts.down_proj"]);
    assert_eq!(down.layout.orientation, Orientation::Columns);
}

#[test]
fn latent_keys_and_values_share_a_tensor() {
    use LayerRole::*;
    let Described { spec, namings, .. } = load(&tiny("deepseek_v3")).unwrap();
    let slots = namings[0].slots(&spec);
    let per_head = |first, block, orientation| Layout {
        rows: RowMap {
            first,
            block,
            stride: 28,
        },
        total: 28,
        orientation,
    };
    let up = "model.layers.1.self_attn.kv_b_proj.weight";
    let key = slot(&slots, Role::Layer(1, KeyAbsorb));
    assert_eq!(key.names, [up]);
    assert_eq!(key.layout, per_head(0, 16, Orientation::PartColumns));
    let stack = |rows, cols| Kind::Stack {
        count: 4,
        rows,
        cols,
    };
    assert_eq!(key.kind, stack(32, 16));
    let value = slot(&slots, Role::Layer(1, ValueUp));
    assert_eq!(value.names, [up]);
    assert_eq!(value.layout, per_head(16, 12, Orientation::Rows));
    assert_eq!(value.kind, stack(12, 32));
    // mlx-lm took them apart, and turned the keys.
    let slots = namings[1].slots(&spec);
    let key = slot(&slots, Role::Layer(1, KeyAbsorb));
    assert_eq!(key.names, ["model.layers.1.self_attn.embed_q.weight"]);
    assert_eq!((key.kind, key.layout), (stack(32, 16), whole(32)));
}

#[test]
fn qwen3_next_interleaves_heads_and_logs_rates() {
    use LayerRole::*;
    let Described { spec, namings, .. } = load(&tiny("qwen3_next")).unwrap();
    let slots = namings[0].slots(&spec);
    // For each of two key heads: 8 of query, 8 of key, 32 of value, 32 of gate.
    let table = [
        (0, DeltaQuery, "linear_attn.in_proj_qkvz", [0, 8, 80], 160),
        (0, DeltaKey, "linear_attn.in_proj_qkvz", [8, 8, 80], 160),
        (0, DeltaValue, "linear_attn.in_proj_qkvz", [16, 32, 80], 160),
        (0, DeltaGate, "linear_attn.in_proj_qkvz", [48, 32, 80], 160),
        (0, DeltaBeta, "linear_attn.in_proj_ba", [0, 2, 4], 8),
        (0, DeltaDecay, "linear_attn.in_proj_ba", [2, 2, 4], 8),
        (0, DeltaKeyConv, "linear_attn.conv1d", [16, 16, 96], 96),
        // For each of four heads: 16 of query, 16 of gate.
        (1, Query, "self_attn.q_proj", [0, 16, 32], 128),
        (1, OutputGate, "self_attn.q_proj", [16, 16, 32], 128),
    ];
    for (layer, role, module, [first, block, stride], total) in table {
        let slot = slot(&slots, Role::Layer(layer, role));
        assert_eq!(
            slot.names,
            [format!("model.layers.{layer}.{module}.weight")]
        );
        let rows = RowMap {
            first,
            block,
            stride,
        };
        assert_eq!(
            (slot.layout.rows, slot.layout.total),
            (rows, total),
            "{role:?}"
        );
    }
    let transform = |naming: &Naming, role| slot(&naming.slots(&spec), role).transform;
    let [hugging_face, mlx] = &namings[..] else {
        panic!("{} namings", namings.len());
    };
    // The same names mean other values: the convolution's shape tells the two apart.
    assert_eq!(hugging_face.conv_shape, ConvShape::ChannelFirst);
    assert_eq!(mlx.conv_shape, ConvShape::ChannelLast);
    for (role, in_hugging_face, in_mlx) in [
        (Role::FinalNorm, Transform::AddOne, Transform::None),
        (
            Role::Layer(1, QueryNorm),
            Transform::AddOne,
            Transform::None,
        ),
        (Role::Layer(0, DeltaNorm), Transform::None, Transform::None),
        (
            Role::Layer(0, DeltaRate),
            Transform::NegExp,
            Transform::NegExp,
        ),
    ] {
        assert_eq!(transform(hugging_face, role), in_hugging_face, "{role}");
        assert_eq!(transform(mlx, role), in_mlx, "{role}");
    }
}

#[test]
fn further_layers_and_unused_keys_are_ignored() {
    let mut deepseek = with(
        tiny("glm4_moe"),
        json!({
            "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
        }),
    );
    let (spec, naming) = named(&deepseek);
    let further = "model.layers.2.eh_proj.weight";
    assert!(naming.ignores(&spec, further));
    assert!(!naming.ignores(&spec, "model.layers.1.eh_proj.weight"));
    deepseek["model_type"] = json!("llama");
    let (llama, plain) = named(&deepseek);
    assert!(!plain.ignores(&llama, further));

    let (spec, naming) = named(&tiny("gemma4_text"));
    for (name, unread) in [
        ("model.layers.2.self_attn.k_proj.weight", true),
        ("model.layers.3.self_attn.v_proj.weight", true),
        ("model.layers.3.self_attn.k_norm.weight", true),
        ("model.layers.3.self_attn.q_proj.weight", false),
        ("model.layers.1.self_attn.k_proj.weight", false),
    ] {
        assert_eq!(naming.ignores(&spec, name), unread, "{name}");
    }
}

#[test]
fn row_map_detects_out_of_bounds() {
    let map = |first, block, stride| RowMap {
        first,
        block,
        stride,
    };
    for (map, rows, total, stays) in [
        (map(0, 4, 4), 4, 4, true),
        (map(0, 4, 4), 5, 4, false),
        (map(2, 2, 4), 4, 8, true),
        (map(2, 2, 4), 5, 8, false),
        (map(7, 1, 1), 0, 3, true),
        (map(usize::MAX, 1, usize::MAX), 2, 8, false),
    ] {
        assert_eq!(
            map.stays_below(rows, total),
            stays,
            "{map:?} {rows} {total}"
        );
    }
}

/// The config of a committed golden.
fn golden(family: &str) -> Value {
    let goldens = concat!(env!("CARGO_MANIFEST_DIR"), "/../testkit/goldens");
    let text = std::fs::read_to_string(format!("{goldens}/{family}/config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn gate_bias_depends_on_family() {
    for (family, gate_bias) in [("afmoe", false), ("qwen3_next", true)] {
        let (spec, naming) = named(&with(golden(family), json!({"attention_bias": true})));
        let roles: HashSet<Role> = naming.slots(&spec).iter().map(|slot| slot.role).collect();
        let any =
            |role: LayerRole| (0..spec.layers.len()).any(|l| roles.contains(&Role::Layer(l, role)));
        assert!(
            any(LayerRole::OutputGate) && any(LayerRole::QueryBias),
            "{family}"
        );
        assert_eq!(any(LayerRole::OutputGateBias), gate_bias, "{family}");
    }
}

#[test]
fn mlx_lm_names_dense_granite_as_usual() {
    let config = with(golden("granitemoehybrid"), json!({"num_local_experts": 0}));
    let Described { spec, namings, .. } = load(&config).unwrap_or_else(|error| panic!("{error}"));
    let names = |naming: &Naming| -> Vec<String> {
        let slots = naming.slots(&spec).into_iter();
        slots.flat_map(|slot| slot.names).collect()
    };
    let [saved, mlx] = ["shared_mlp.output_linear", "mlp.down_proj"]
        .map(|module| format!("model.layers.0.{module}.weight"));
    assert!(names(&namings[0]).contains(&saved));
    assert!(names(&namings[1]).contains(&mlx));
}

#[test]
fn neox_head_keeps_qkv_adjacent() {
    let (spec, _) = named(&with(
        golden("gpt_neox"),
        json!({"num_key_value_heads": 1, "head_dim": 6}),
    ));
    let attention = spec.layers[0]
        .mixer()
        .and_then(|mixer| mixer.as_attention())
        .unwrap();
    assert_eq!(attention.kv_heads, attention.heads);
    assert_eq!(attention.head_dim * attention.heads, spec.hidden_size);
}

#[test]
fn rope_table_inherits_theta() {
    for (table, theta) in [
        (json!({"rope_type": "default"}), 777.0),
        (json!({"rope_theta": 5.0}), 5.0),
    ] {
        let config = json!({"rope_theta": 777.0, "rope_parameters": table});
        let (spec, _) = named(&with(tiny("llama"), config));
        let rope = spec.layers[0]
            .mixer()
            .and_then(|mixer| mixer.rope())
            .unwrap();
        assert_eq!(rope.theta, theta);
    }
}
