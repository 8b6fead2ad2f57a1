//! Binding: mismatch reports and MLX-quantized modules.

use crate::bound;
use crate::folder::Folder;
use loquat_spec::{Config, Fused, LayerRole, Naming, Role, Split, families};
use loquat_weights::{Blob, Dtype, Mismatch, RawTensor, Weights, WeightsError, bind};
use serde_json::{Value, json};

impl Folder {
    fn bind(&self) -> Result<Weights, WeightsError> {
        self.open()?.bind()
    }

    fn remove(&mut self, name: &str) {
        let before = self.tensors.len();
        self.tensors.retain(|tensor| tensor.name != name);
        assert_eq!(self.tensors.len(), before - 1, "{name}");
    }

    fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) {
        let tensor = RawTensor::new(name, dtype, shape.to_vec(), Blob::from_vec(bytes));
        self.tensors.push(tensor.unwrap());
    }

    fn add_zeros(&mut self, name: &str, dtype: Dtype, shape: &[usize]) {
        let bytes = shape.iter().product::<usize>() * dtype.block_bytes();
        self.add(name, dtype, shape, vec![0; bytes]);
    }
}

fn mismatch(error: &WeightsError) -> &Mismatch {
    match error {
        WeightsError::Binding(mismatch) => mismatch,
        other => panic!("{other}"),
    }
}

#[test]
fn all_mismatches_are_reported() {
    let mut folder = Folder::golden("llama");
    for name in [
        "model.norm.weight",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.1.input_layernorm.weight",
        "model.layers.1.self_attn.o_proj.weight",
    ] {
        folder.remove(name);
    }
    let mismatched = |layer, name: &str| format!("model.layers.{layer}.{name}.weight");
    folder.add_zeros(&mismatched(0, "self_attn.k_proj"), Dtype::BF16, &[64, 32]);
    folder.add_zeros(&mismatched(1, "input_layernorm"), Dtype::I32, &[64]);
    folder.add_zeros(&mismatched(1, "self_attn.o_proj"), Dtype::F64, &[64, 64]);
    folder.add_zeros("model.layers.2.mlp.up_proj.weight", Dtype::BF16, &[128, 64]);
    folder.add_zeros("model.norm.bias", Dtype::BF16, &[64]);

    let error = folder.bind().unwrap_err();
    let expected = Mismatch {
        missing: vec!["model.norm.weight".into(), mismatched(0, "mlp.up_proj")],
        surplus: vec![mismatched(2, "mlp.up_proj"), "model.norm.bias".into()],
        misshapen: vec![(
            mismatched(0, "self_attn.k_proj"),
            vec![32, 64],
            vec![64, 32],
        )],
        mistyped: vec![
            (mismatched(1, "input_layernorm"), Dtype::I32),
            (mismatched(1, "self_attn.o_proj"), Dtype::F64),
        ],
    };
    let mut found = mismatch(&error).clone();
    found.surplus.sort();
    found.mistyped.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found, expected);
    let message = error.to_string();
    for words in [
        "2 missing: model.norm.weight, model.layers.0.mlp.up_proj.weight",
        "2 unexpected: ",
        "model.layers.0.self_attn.k_proj.weight is [64, 32], must be [32, 64]",
        "model.layers.1.self_attn.o_proj.weight is F64",
    ] {
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn long_report_is_counted() {
    let mut folder = Folder::golden("llama");
    folder.config["num_hidden_layers"] = json!(3);
    let error = folder.bind().unwrap_err();
    assert_eq!(mismatch(&error).missing.len(), 9);
    assert!(error.to_string().ends_with(", and 1 more"), "{error}");
}

#[test]
fn copies_and_buffers_are_ignored() {
    let mut folder = Folder::golden("llama_tied");
    let before = bound::values(&folder.bind().unwrap());
    folder.add_zeros("lm_head.weight", Dtype::BF16, &[288, 64]);
    let inverse = "model.layers.0.self_attn.rotary_emb.inv_freq";
    folder.add_zeros(inverse, Dtype::F32, &[8]);
    assert_eq!(bound::values(&folder.bind().unwrap()), before);

    // A head that the spec needs is not ignored.
    let mut folder = Folder::golden("llama");
    folder.remove("lm_head.weight");
    let error = folder.bind().unwrap_err();
    assert_eq!(mismatch(&error).missing, ["lm_head.weight"]);
}

#[test]
fn fused_tensors_are_split_by_rows() {
    use LayerRole::*;
    let mut folder = Folder::golden("llama_tied");
    let config = Config::parse(&folder.config.to_string(), "config.json").unwrap();
    let described = families::from_config(&config).unwrap();
    let (spec, plain) = (described.spec, described.namings[0]);
    let naming = Naming {
        fused: &[Fused {
            name: "qkv.weight",
            parts: &[Query, Key, Value],
            split: Split::Sequential,
        }],
        ..plain
    };
    let split = bind(&spec, &plain, &folder.tensors, None).unwrap();
    for layer in 0..2 {
        for ending in ["weight", "bias"] {
            let (mut bytes, mut shape) = (Vec::new(), Vec::new());
            for part in ["q_proj", "k_proj", "v_proj"] {
                let name = format!("model.layers.{layer}.self_attn.{part}.{ending}");
                let tensor = folder.tensors.iter().find(|t| t.name == name).unwrap();
                bytes.extend_from_slice(&tensor.data);
                match shape.first_mut() {
                    Some(rows) => *rows += tensor.shape[0],
                    None => shape = tensor.shape.clone(),
                }
                folder.remove(&name);
            }
            let name = format!("model.layers.{layer}.qkv.{ending}");
            folder.add(&name, Dtype::BF16, &shape, bytes);
        }
    }
    let fused = bind(&spec, &naming, &folder.tensors, None).unwrap();
    assert_eq!(bound::values(&fused), bound::values(&split));
    assert_eq!(fused.bytes(), split.bytes());

    // One tensor that mismatches three roles is reported once.
    folder.remove("model.layers.0.qkv.weight");
    folder.remove("model.layers.1.qkv.bias");
    folder.add_zeros("model.layers.1.qkv.bias", Dtype::BF16, &[127]);
    let error = bind(&spec, &naming, &folder.tensors, None).unwrap_err();
    let found = mismatch(&error);
    assert_eq!(found.missing, ["model.layers.0.qkv.weight"]);
    assert_eq!(found.misshapen.len(), 1);
}

/// Hand-packed codes: `bits` each, lowest first, in one little-endian stream.
fn pack(bits: usize, codes: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0u8; codes.len() * bits / 8];
    for (index, code) in codes.iter().enumerate() {
        for bit in 0..bits {
            let at = index * bits + bit;
            bytes[at / 8] |= ((code >> bit & 1) as u8) << (at % 8);
        }
    }
    bytes
}

/// Quantizes `module` and returns its decoded values.
fn quantize(
    folder: &mut Folder,
    module: &str,
    shape: [usize; 2],
    bits: usize,
    group: usize,
) -> Vec<f32> {
    let [rows, cols] = shape;
    let code = |row: usize, col: usize| ((row * 7 + col * 5 + col / 3) % (1 << bits)) as u32;
    let scale = |row: usize, group: usize| 0.25 * (row + 1) as f32 + group as f32;
    let bias = |row: usize, group: usize| row as f32 - 3.0 * group as f32;
    let codes: Vec<u32> = (0..rows * cols).map(|i| code(i / cols, i % cols)).collect();
    let groups = cols / group;
    let floats = |value: &dyn Fn(usize, usize) -> f32| -> Vec<u8> {
        (0..rows * groups)
            .flat_map(|i| value(i / groups, i % groups).to_le_bytes())
            .collect()
    };
    folder.remove(&format!("{module}.weight"));
    let words = cols * bits / 32;
    folder.add(
        &format!("{module}.weight"),
        Dtype::U32,
        &[rows, words],
        pack(bits, &codes),
    );
    let shape = [rows, groups];
    folder.add(
        &format!("{module}.scales"),
        Dtype::F32,
        &shape,
        floats(&scale),
    );
    folder.add(
        &format!("{module}.biases"),
        Dtype::F32,
        &shape,
        floats(&bias),
    );
    (0..rows * cols)
        .map(|i| {
            let (row, col) = (i / cols, i % cols);
            scale(row, col / group) * code(row, col) as f32 + bias(row, col / group)
        })
        .collect()
}

const QUERY: &str = "model.layers.0.self_attn.q_proj";
const KEY: &str = "model.layers.0.self_attn.k_proj";
const DOWN: &str = "model.layers.1.mlp.down_proj";

#[test]
fn modules_have_their_own_quantization() {
    let mut folder = Folder::golden("llama");
    folder.config["quantization"] = json!({
        "bits": 4, "group_size": 32, "mode": "affine",
        QUERY: {"bits": 8, "group_size": 64},
        DOWN: {"bits": 3, "group_size": 128},
        // Not quantized, as the table says.
        "lm_head": false,
    });
    let layer = |layer, role| Role::Layer(layer, role);
    let expected = [
        (
            layer(0, LayerRole::Query),
            quantize(&mut folder, QUERY, [64, 64], 8, 64),
            "affine 8-bit g64",
        ),
        (
            layer(0, LayerRole::Key),
            quantize(&mut folder, KEY, [32, 64], 4, 32),
            "affine 4-bit g32",
        ),
        (
            layer(1, LayerRole::Down),
            quantize(&mut folder, DOWN, [64, 128], 3, 128),
            "affine 3-bit g128",
        ),
    ];
    let checkpoint = folder.open().unwrap();
    assert_eq!(checkpoint.format.name(), "MLX safetensors");
    let weights = checkpoint.bind().unwrap();
    for (role, values, format) in expected {
        let matrix = weights.matrix(role).unwrap();
        assert_eq!(matrix.format(), format);
        let mut row = vec![0.0; matrix.cols()];
        for (index, expected) in values.chunks(matrix.cols()).enumerate() {
            matrix.decode_row(index, &mut row).unwrap();
            assert_eq!(row, expected, "{role} row {index}");
        }
    }
    assert_eq!(weights.matrix(Role::Head).unwrap().format(), "BF16");
}

/// A golden with one module at 4 bits in groups of 32 and this quantization table.
fn quantized(table: Value) -> Folder {
    let mut folder = Folder::golden("llama");
    folder.config["quantization"] = table;
    quantize(&mut folder, KEY, [32, 64], 4, 32);
    folder
}

fn four_bits() -> Value {
    json!({"bits": 4, "group_size": 32})
}

#[test]
fn quantized_module_parts_are_checked() {
    let biases = format!("{KEY}.biases");
    let codes = format!("{KEY}.weight");

    let mut folder = quantized(four_bits());
    folder.remove(&biases);
    let error = folder.bind().unwrap_err();
    assert_eq!(mismatch(&error).missing, std::slice::from_ref(&biases));

    // Another type of the same width would decode to wrong values.
    let mut folder = quantized(four_bits());
    folder.remove(&codes);
    folder.add_zeros(&codes, Dtype::F32, &[32, 8]);
    folder.remove(&biases);
    folder.add_zeros(&biases, Dtype::I32, &[32, 2]);
    let error = folder.bind().unwrap_err();
    let expected = [(codes, Dtype::F32), (biases, Dtype::I32)];
    assert_eq!(mismatch(&error).mistyped, expected);

    // The table has another width than the file.
    let error = quantized(json!({"bits": 8, "group_size": 64}))
        .bind()
        .unwrap_err();
    let names: Vec<_> = mismatch(&error).misshapen.iter().map(|m| &m.0).collect();
    let parts = ["weight", "scales", "biases"].map(|part| format!("{KEY}.{part}"));
    assert_eq!(names, parts.iter().collect::<Vec<_>>());

    // Groups that do not divide the row.
    let error = quantized(json!({"bits": 4, "group_size": 128}))
        .bind()
        .unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("quantization.group_size") && message.contains(KEY),
        "{message}"
    );
}

#[test]
fn unknown_quantization_names_the_field() {
    let over = |module: Value| {
        let mut table = four_bits();
        table["lm_head"] = module;
        table
    };
    let table = [
        (
            json!({"bits": 7, "group_size": 32}),
            "`quantization.bits` is 7",
        ),
        (
            json!({"bits": 4, "group_size": 48}),
            "`quantization.group_size` is 48",
        ),
        (
            json!({"bits": 4, "group_size": 32, "mode": "nf4"}),
            "`quantization.mode` is `nf4`",
        ),
        (
            json!({"bits": 4, "group_size": 64, "mode": "mxfp4"}),
            "`quantization.group_size` is 64",
        ),
        (
            json!({"bits": 4, "group_size": 32, "mode": "mxfp8"}),
            "`quantization.bits` is 4",
        ),
        (json!({"group_size": 32}), "`quantization.bits` is missing"),
        (
            json!({"bits": "4", "group_size": 32}),
            "`quantization.bits`",
        ),
        (json!("4 bits"), "`quantization` is"),
        (
            over(json!({"bits": 1, "group_size": 32})),
            "`quantization.lm_head.bits` is 1",
        ),
        (
            over(json!({"bits": 4})),
            "`quantization.lm_head.group_size` is missing",
        ),
    ];
    for (quantization, words) in table {
        let error = quantized(quantization).open().err().unwrap();
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn other_quantization_methods_are_named() {
    let mut folder = Folder::golden("llama");
    folder.config["quantization_config"] = json!({"quant_method": "gptq", "bits": 4});
    let error = folder.open().err().unwrap();
    assert!(
        matches!(&error, WeightsError::Quantization { field, found, .. }
            if field == "quantization_config.quant_method" && found == "gptq"),
        "{error}"
    );
    // MLX writes its table under this name too.
    folder.config["quantization_config"] = four_bits();
    assert_eq!(folder.open().unwrap().format.name(), "MLX safetensors");
}
