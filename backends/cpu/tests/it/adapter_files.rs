//! Adapter files that do not fit, and files of another format than the model's.

use std::fs;
use std::path::Path;

use loquat_testkit::goldens;
use loquat_weights::gguf::{Metadata, Value, write_gguf};
use loquat_weights::{
    AdapterWeights, Blob, Checkpoint, Dtype, Format, RawTensor, safetensors::parse,
    safetensors::write_safetensors,
};
use tempfile::TempDir;

/// A copy of a golden adapter that a test may damage.
struct Copied {
    folder: TempDir,
    config: serde_json::Value,
    tensors: Vec<RawTensor>,
}

impl Copied {
    fn new(name: &str) -> Self {
        let from = goldens::fixtures().join("goldens-lora").join(name);
        let config = fs::read_to_string(from.join("adapter_config.json")).unwrap();
        let path = from.join("adapter_model.safetensors");
        Self {
            folder: tempfile::tempdir().unwrap(),
            config: serde_json::from_str(&config).unwrap(),
            tensors: parse(Blob::map(&path).unwrap(), &path).unwrap(),
        }
    }

    fn open(&self) -> Result<AdapterWeights, String> {
        self.open_on(&base())
    }

    fn open_on(&self, base: &Checkpoint) -> Result<AdapterWeights, String> {
        let path = self.folder.path();
        fs::write(path.join("adapter_config.json"), self.config.to_string()).unwrap();
        let bytes = write_safetensors(&self.tensors).unwrap();
        fs::write(path.join("adapter_model.safetensors"), bytes).unwrap();
        let opened = AdapterWeights::open(path, &base.adapter_base());
        opened.map_err(|error| error.to_string())
    }

    fn refusal(&self) -> String {
        match self.open() {
            Ok(_) => panic!("the adapter is accepted"),
            Err(error) => error,
        }
    }
}

fn base() -> Checkpoint {
    Checkpoint::open(&goldens::fixtures().join("goldens-lora/base/llama")).unwrap()
}

fn open(path: &Path) -> Result<AdapterWeights, String> {
    AdapterWeights::open(path, &base().adapter_base()).map_err(|error| error.to_string())
}

#[test]
fn unsupported_fields_are_refused_by_name() {
    for (field, value) in [
        ("peft_type", serde_json::json!("IA3")),
        ("lora_bias", serde_json::json!(true)),
        ("use_bdlora", serde_json::json!({"nblocks": 2})),
        ("alora_invocation_tokens", serde_json::json!([1, 2])),
        ("layer_replication", serde_json::json!([[0, 2]])),
        ("use_qalora", serde_json::json!(true)),
        ("velora_config", serde_json::json!({"scale": 1})),
        ("trainable_token_indices", serde_json::json!([3])),
        ("a_field_of_the_future", serde_json::json!("on")),
        ("init_lora_weights", serde_json::json!("pissa_niter_4")),
        ("r", serde_json::json!(0)),
        ("lora_alpha", serde_json::json!("high")),
        ("bias", serde_json::json!("some")),
        ("rank_pattern", serde_json::json!({"(": 3})),
    ] {
        let mut adapter = Copied::new("llama__qv");
        adapter.config[field] = value;
        let error = adapter.refusal();
        assert!(error.contains(field), "{field}: {error}");
    }
}

fn magnitudes(module: &str, len: usize) -> RawTensor {
    let name = format!("base_model.model.{module}.lora_magnitude_vector");
    let values = Blob::from_vec(1f32.to_le_bytes().repeat(len));
    RawTensor::new(name, Dtype::F32, vec![len], values).unwrap()
}

/// peft cannot make it: its wrapper of parameters refuses `use_dora`.
#[test]
fn dora_of_experts_is_refused_by_name() {
    let mut adapter = Copied::new("mixtral__experts");
    adapter.config["use_dora"] = true.into();
    let module = "model.layers.0.mlp.experts";
    adapter.tensors.push(magnitudes(module, 64));
    let base = goldens::fixtures().join("goldens-lora/base/mixtral");
    let error = adapter
        .open_on(&Checkpoint::open(&base).unwrap())
        .unwrap_err();
    let expected = format!("`{module}`: DoRA of experts is not supported");
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn embedding_has_magnitudes_for_columns() {
    let mut adapter = Copied::new("llama__embed_dora");
    adapter.open().unwrap();
    let is_embedding = |tensor: &RawTensor| tensor.name.contains("embed_tokens.lora_magnitude");
    adapter.tensors.retain(|tensor| !is_embedding(tensor));
    // As many as rows.
    adapter.tensors.push(magnitudes("model.embed_tokens", 288));
    let error = adapter.refusal();
    assert!(error.contains("288 magnitudes for 64 columns"), "{error}");
}

#[test]
fn base_class_of_another_family_is_refused() {
    let mapping = |class: &str, module: &str| {
        let library = format!("transformers.models.{module}.modeling_{module}");
        serde_json::json!({ "base_model_class": class, "parent_library": library })
    };
    let mut adapter = Copied::new("llama__qv");
    for (class, module) in [
        ("LlamaForCausalLM", "llama"),
        ("OtherModel", "of_the_future"),
    ] {
        adapter.config["auto_mapping"] = mapping(class, module);
        adapter.open().unwrap();
    }
    adapter.config["auto_mapping"] = mapping("Qwen2ForCausalLM", "qwen2");
    let error = adapter.refusal();
    for part in [
        "Qwen2ForCausalLM (qwen2)",
        "this model is llama",
        "set `auto_mapping` to null",
    ] {
        assert!(error.contains(part), "{error}");
    }
    // GGUF files store several families under one name.
    let mut gguf = base().adapter_base();
    gguf.format = Format::Gguf;
    AdapterWeights::open(adapter.folder.path(), &gguf).unwrap();
}

#[test]
fn every_misfit_is_listed_at_once() {
    let mut adapter = Copied::new("llama__all");
    adapter.config["rank_pattern"] = serde_json::json!({"layers.1.self_attn.q_proj": 3});
    for tensor in &mut adapter.tensors {
        if tensor.name.contains("layers.0.self_attn.k_proj") {
            tensor.name = tensor.name.replace("k_proj", "strange_proj");
        } else if tensor.name.ends_with("layers.0.mlp.up_proj.lora_B.weight") {
            tensor.shape = vec![tensor.shape[0] / 2, tensor.shape[1] * 2];
        }
    }
    adapter.tensors.retain(|tensor| {
        !tensor
            .name
            .ends_with("layers.1.self_attn.v_proj.lora_A.weight")
    });
    let error = adapter.refusal();
    for part in [
        "strange_proj",
        "layers.0.mlp.up_proj",
        "layers.1.self_attn.v_proj` has no lora_A",
        "layers.1.self_attn.q_proj` has rank 4, but the config says 3",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn adapter_of_another_model_is_refused() {
    let other = goldens::fixtures().join("goldens-lora/qwen3__all");
    assert!(open(&other).unwrap_err().contains("factors of"));
    let gpt2 = goldens::fixtures().join("goldens-lora/gpt2__conv1d");
    assert!(open(&gpt2).unwrap_err().contains("fits no weight"));
}

#[test]
fn values_that_are_not_numbers_are_refused() {
    for value in [f32::NAN, f32::INFINITY] {
        let mut adapter = Copied::new("llama__all");
        let tensor = &mut adapter.tensors[3];
        let mut bytes = tensor.data.to_vec();
        bytes[..4].copy_from_slice(&value.to_le_bytes());
        tensor.data = Blob::from_vec(bytes);
        let error = adapter.refusal();
        assert!(error.contains("not a finite number"), "{error}");
    }
}

#[test]
fn damaged_files_never_panic() {
    let adapter = Copied::new("llama__dora");
    adapter.open().unwrap();
    let path = adapter.folder.path().join("adapter_model.safetensors");
    let whole = fs::read(&path).unwrap();
    for len in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..len]).unwrap();
        open(adapter.folder.path()).unwrap_err();
    }
    // Shapes that lie about the data.
    let header = String::from_utf8_lossy(&whole[8..400]).into_owned();
    assert!(
        header.contains("[4,64]") || header.contains("[4,128]"),
        "{header}"
    );
    for (from, to) in [("[4,", "[9,"), ("[4,", "[0,"), ("64]", "99]")] {
        let mut bytes = whole.clone();
        let at = whole
            .windows(from.len())
            .position(|part| part == from.as_bytes());
        let at = at.unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(&path, bytes).unwrap();
        open(adapter.folder.path()).unwrap_err();
    }
}

#[test]
fn files_that_are_no_adapters_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    assert!(
        open(path)
            .unwrap_err()
            .contains("adapter_model.safetensors")
    );
    fs::write(path.join("adapter_config.json"), "{}").unwrap();
    fs::write(path.join("adapter_model.bin"), "pickle").unwrap();
    assert!(
        open(path)
            .unwrap_err()
            .contains("adapter_model.bin is a pickle")
    );
    let model = goldens::fixtures().join("goldens-lora/base/llama");
    assert!(
        open(&model)
            .unwrap_err()
            .contains("has neither adapter_model.safetensors")
    );
    assert!(
        open(&path.join("missing"))
            .unwrap_err()
            .contains("no such file")
    );
    let full = Copied::new("llama__qv");
    fs::write(
        path.join("adapters.safetensors"),
        write_safetensors(&full.tensors).unwrap(),
    )
    .unwrap();
    for (config, part) in [
        (r#"{"fine_tune_type": "full"}"#, "fine_tune_type"),
        (r#"{"fine_tune_type": "lora"}"#, "lora_parameters"),
        (r#"{"lora_parameters": {"rank": 4}}"#, "scale"),
        (
            r#"{"lora_parameters": {"scale": 2.0}, "num_layers": 9}"#,
            "num_layers",
        ),
    ] {
        fs::write(path.join("adapter_config.json"), config).unwrap();
        let error = open(path).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// The adapter as llama.cpp's converter writes it, whose rows of queries and keys are those of
/// GGUF models.
fn as_gguf(adapter: &Copied, heads: [usize; 2], metadata: &[(&str, Value)]) -> Vec<u8> {
    let names = [
        ("self_attn.q_proj", "attn_q", heads[0]),
        ("self_attn.k_proj", "attn_k", heads[1]),
        ("self_attn.v_proj", "attn_v", 0),
        ("self_attn.o_proj", "attn_output", 0),
        ("mlp.gate_proj", "ffn_gate", 0),
        ("mlp.up_proj", "ffn_up", 0),
        ("mlp.down_proj", "ffn_down", 0),
    ];
    let tensors = adapter.tensors.iter().map(|tensor| {
        let layer = tensor
            .name
            .split('.')
            .find_map(|part| part.parse::<usize>().ok());
        let module = names.iter().find(|(hub, ..)| tensor.name.contains(hub));
        let (_, name, heads) = module.unwrap();
        let is_b = tensor.name.contains("lora_B");
        let name = format!(
            "blk.{}.{name}.weight.lora_{}",
            layer.unwrap(),
            if is_b { 'b' } else { 'a' }
        );
        let rows = tensor.rows();
        let from = |row: usize| {
            if is_b && *heads > 0 {
                // A head's halves become neighbours.
                let dim = rows / heads;
                let (head, at) = (row / dim, row % dim);
                head * dim + at / 2 + at % 2 * (dim / 2)
            } else {
                row
            }
        };
        let bytes = (0..rows).flat_map(|row| tensor.row(from(row)).unwrap().to_vec());
        let data = Blob::from_vec(bytes.collect());
        RawTensor::new(name, Dtype::F32, tensor.shape.clone(), data).unwrap()
    });
    let tensors: Vec<RawTensor> = tensors.collect();
    let mut all = Metadata::default();
    for (key, value) in metadata {
        all.insert(*key, value.clone());
    }
    write_gguf(&all, &tensors).unwrap()
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

#[test]
fn gguf_adapter_equals_the_peft_one() {
    let adapter = Copied::new("llama__all");
    let expected = adapter.open().unwrap();
    let path = adapter.folder.path().join("adapter.gguf");
    let metadata = [
        ("general.type", text("adapter")),
        ("general.architecture", text("llama")),
        ("adapter.type", text("lora")),
        ("adapter.lora.alpha", Value::F32(8.0)),
    ];
    let spec = base().spec;
    let attention = spec
        .mixers()
        .next()
        .unwrap()
        .1
        .as_attention()
        .unwrap()
        .clone();
    let heads = [attention.heads, attention.kv_heads];
    fs::write(&path, as_gguf(&adapter, heads, &metadata)).unwrap();
    let found = open(&path).unwrap();
    let changes = |adapter: &AdapterWeights| -> Vec<_> {
        let changes = adapter.low_ranks().map(|(role, member, change)| {
            let (a, b) = (change.a.values().to_vec(), change.b.values().to_vec());
            (role, member, change.scale, a, b)
        });
        changes.collect()
    };
    assert!(changes(&found) == changes(&expected));
    for (key, value) in [
        ("general.type", text("model")),
        ("general.architecture", text("qwen2")),
        ("adapter.type", text("control_vector")),
        ("adapter.lora.alpha", text("8")),
        ("adapter.alora.invocation_tokens", Value::U32(1)),
    ] {
        let mut changed = metadata.to_vec();
        changed.retain(|(own, _)| *own != key);
        changed.push((key, value));
        fs::write(&path, as_gguf(&adapter, heads, &changed)).unwrap();
        let error = open(&path).unwrap_err();
        assert!(error.contains(key), "{key}: {error}");
    }
}
