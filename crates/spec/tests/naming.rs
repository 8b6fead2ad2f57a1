//! Roles and the tensors that fill them.

mod common;

use std::collections::HashSet;

use common::{load, tiny, with};
use loquat_spec::{Kind, LayerRole, Naming, Role, Slot, Transform};
use serde_json::json;

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
        let (spec, naming) = load(&tiny(family)).unwrap();
        let slots = naming.slots(&spec);
        let expected = Slot {
            role,
            name: name.into(),
            kind,
            transform,
            rows: None,
        };
        assert_eq!(*slot(&slots, role), expected, "{family}");
        let names: HashSet<_> = slots.iter().map(|slot| &slot.name).collect();
        assert_eq!(names.len(), slots.len(), "{family}: a name fills two roles");
    }
}

#[test]
fn a_tied_head_is_no_slot_and_its_copy_is_passed_over() {
    let tied = with(tiny("llama"), json!({"tie_word_embeddings": true}));
    let (spec, naming) = load(&tied).unwrap();
    let slots = naming.slots(&spec);
    assert!(slots.iter().all(|slot| slot.role != Role::Head));
    let (untied, _) = load(&tiny("llama")).unwrap();
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
    let (spec, plain) = load(&with(tiny("llama"), biased)).unwrap();
    let naming = Naming {
        fused: &[
            ("blocks.{}.qkv", &[Query, Key, Value]),
            ("blocks.{}.up_gate", &[Up, Gate]),
        ],
        ..plain
    };
    let slots = naming.slots(&spec);
    let table = [
        (Query, "blocks.1.qkv.weight", 0..64, 128),
        (Key, "blocks.1.qkv.weight", 64..96, 128),
        (Value, "blocks.1.qkv.weight", 96..128, 128),
        (QueryBias, "blocks.1.qkv.bias", 0..64, 128),
        (KeyBias, "blocks.1.qkv.bias", 64..96, 128),
        (ValueBias, "blocks.1.qkv.bias", 96..128, 128),
        (Up, "blocks.1.up_gate.weight", 0..128, 256),
        (Gate, "blocks.1.up_gate.weight", 128..256, 256),
        (GateBias, "blocks.1.up_gate.bias", 128..256, 256),
    ];
    for (role, name, range, total) in table {
        let slot = slot(&slots, Role::Layer(1, role));
        let rows = slot
            .rows
            .as_ref()
            .map(|rows| (rows.range.clone(), rows.total));
        assert_eq!(
            (slot.name.as_str(), rows),
            (name, Some((range, total))),
            "{role:?}"
        );
    }
    let output = slot(&slots, Role::Layer(1, Output));
    assert_eq!(output.name, "model.layers.1.self_attn.o_proj.weight");
    assert_eq!(output.rows, None);
}

#[test]
fn interleaved_rope_touches_queries_and_keys_with_their_biases() {
    use LayerRole::*;
    let biased = json!({"attention_bias": true});
    let (spec, plain) = load(&with(tiny("llama"), biased)).unwrap();
    let naming = Naming {
        interleaved_rope: true,
        ..plain
    };
    let slots = naming.slots(&spec);
    let unpermute = |heads| Transform::Unpermute { heads };
    let table = [
        (Query, unpermute(4)),
        (QueryBias, unpermute(4)),
        (Key, unpermute(2)),
        (KeyBias, unpermute(2)),
        (Value, Transform::None),
        (ValueBias, Transform::None),
        (Output, Transform::None),
        (MixerPreNorm, Transform::None),
    ];
    for (role, transform) in table {
        let slot = slot(&slots, Role::Layer(0, role));
        assert_eq!(slot.transform, transform, "{role:?}");
    }
}
