//! Raw input embeddings in `/v1/completions`.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use loquat_testkit::goldens;
use loquat_weights::safetensors::{self, write_safetensors};
use loquat_weights::{Blob, RawTensor};
use serde_json::{Value, json};

use crate::images::{TinyVision, ask, post};
use crate::scripted::{MODEL, Scripted};
use crate::test_server::{TestServer, config};

const PATH: &str = "/v1/completions";
const TOKENS: [u32; 6] = [72, 101, 7, 11, 200, 33];

/// The rows of the model's own embedding matrix for these tokens, as a file.
fn embedded(folder: &Path, tokens: &[u32]) -> Vec<u8> {
    let tensors = safetensors::open(&folder.join("model.safetensors")).expect("weights");
    let mut matrices = tensors.into_iter();
    let matrix = matrices.find(|tensor| tensor.name.ends_with("embed_tokens.weight"));
    let matrix = matrix.expect("an embedding matrix");
    let rows = tokens
        .iter()
        .map(|token| matrix.row(*token as usize).expect("a token"));
    let tensor = RawTensor {
        name: "prompt".to_owned(),
        shape: vec![tokens.len(), matrix.shape[1]],
        data: Blob::from_vec(rows.collect::<Vec<_>>().concat()),
        dtype: matrix.dtype,
    };
    write_safetensors(&[tensor]).expect("a file")
}

fn request(fields: Value) -> Value {
    let mut body = json!({ "model": MODEL, "max_tokens": 12, "temperature": 0 });
    let own = fields.as_object().expect("fields").clone();
    body.as_object_mut().expect("an object").extend(own);
    body
}

#[tokio::test]
async fn embeddings_of_tokens_continue_like_the_tokens() {
    let folder = goldens::vision().join("qwen3_vl");
    let server = TestServer::with(TinyVision(folder.clone()), config()).await;
    let other = TOKENS.map(|token| token + 1);
    let files = [TOKENS, other].map(|tokens| STANDARD.encode(embedded(&folder, &tokens)));
    let of_tokens = ask(
        &server,
        PATH,
        &request(json!({ "prompt": [TOKENS, other] })),
    )
    .await;
    let of_files = ask(&server, PATH, &request(json!({ "prompt_embeds": files }))).await;
    let texts = |answer: &Value| [0, 1].map(|choice| answer["choices"][choice]["text"].clone());
    assert_eq!(texts(&of_files), texts(&of_tokens));
    assert_ne!(texts(&of_files)[0], texts(&of_files)[1]);
    assert_eq!(of_files["usage"]["prompt_tokens"], 12);
    let single = request(json!({ "prompt_embeds": files[0] }));
    let single = ask(&server, PATH, &single).await;
    assert_eq!(single["choices"][0]["text"], texts(&of_tokens)[0]);
}

#[tokio::test]
async fn unusable_embeddings_are_refused_by_field() {
    let folder = goldens::vision().join("qwen3_vl");
    let reads = TestServer::with(TinyVision(folder.clone()), config()).await;
    let text_only = TestServer::start(Scripted::new("hi")).await;
    let good = STANDARD.encode(embedded(&folder, &TOKENS));
    let torch = STANDARD.encode(b"PK\x03\x04archive");
    for (server, fields, param, expected) in [
        (
            &reads,
            json!({ "prompt_embeds": torch }),
            "prompt_embeds",
            "PyTorch",
        ),
        (
            &reads,
            json!({ "prompt_embeds": "a!" }),
            "prompt_embeds",
            "not base64",
        ),
        (
            &reads,
            json!({ "prompt_embeds": [good, torch] }),
            "prompt_embeds[1]",
            "PyTorch",
        ),
        (
            &reads,
            json!({ "prompt_embeds": [] }),
            "prompt_embeds",
            "is empty",
        ),
        (
            &reads,
            json!({ "prompt_embeds": good, "prompt": "a" }),
            "prompt_embeds",
            "one of them",
        ),
        (
            &reads,
            json!({ "prompt_embeds": good, "echo": true }),
            "echo",
            "no text",
        ),
        (
            &reads,
            json!({ "prompt_embeds": good, "suffix": "a" }),
            "suffix",
            "of text",
        ),
        (&reads, json!({}), "prompt", "is missing"),
        (
            &text_only,
            json!({ "prompt_embeds": good }),
            "prompt_embeds",
            "vectors of",
        ),
    ] {
        let response = post(server, PATH, &request(fields)).await;
        assert_eq!(response.status, 400, "{expected}: {response:?}");
        let error = &response.json()["error"];
        assert_eq!(error["param"], param, "{error}");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains(expected), "{message}");
    }
}
