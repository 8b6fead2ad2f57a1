//! What concerns one key or one model.

use super::{AT_LEAST_ONE, Setting};
use crate::config::kinds::Bounds;
use crate::config::{Key, Model};

type OfKey = Setting<Key>;
type OfModel = Setting<Model>;

pub const KEYS: &[OfKey] = &[
    OfKey::new(
        "name",
        |k| &mut k.name,
        "\"team-a\"",
        "What the log and the metrics call it",
    )
    .required(),
    OfKey::new(
        "hash",
        |k| &mut k.hash,
        "\"sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"",
        "The key's SHA-256; `loquat config key NAME` makes both",
    )
    .required(),
    OfKey::new(
        "scopes",
        |k| &mut k.scopes,
        "[\"inference\", \"metrics\"]",
        "What it may be used for",
    ),
    OfKey::new(
        "models",
        |k| &mut k.models,
        "[\"small\"]",
        "Names of the models it may use; all when left out",
    ),
    OfKey::new(
        "requests_per_minute",
        |k| &mut k.requests_per_minute,
        "60",
        "Requests that may begin within a minute",
    )
    .within(AT_LEAST_ONE),
    OfKey::new(
        "tokens_per_minute",
        |k| &mut k.tokens_per_minute,
        "100000",
        "Tokens within a minute, prompt and completion together",
    )
    .within(AT_LEAST_ONE),
    OfKey::new("concurrent", |k| &mut k.concurrent, "4", "Requests at once").within(AT_LEAST_ONE),
];

pub const MODELS: &[OfModel] = &[
    OfModel::new("name", |m| &mut m.name, "\"small\"", "What clients call it")
        .within(Bounds::Text(
            is_model_name,
            "a name without blanks and commas",
        ))
        .required(),
    OfModel::new(
        "source",
        |m| &mut m.source,
        "\"/var/lib/models/small.gguf\"",
        "A catalog name, a hub repository (`owner/name`, with `@revision` and `:quant` or `:file` as \
         need be), or the path of a model directory or file",
    )
    .required(),
    OfModel::new(
        "kind",
        |m| &mut m.kind,
        "\"gguf\"",
        "Which files to take where the source has several kinds of them: its GGUF file, its \
         safetensors that MLX quantized, or those as they were trained; of the catalog's models \
         GGUF when left out",
    )
    .flag("kind"),
    OfModel::new(
        "aliases",
        |m| &mut m.aliases,
        "[\"gpt-4o-mini\"]",
        "Further names for it, such as one that a client insists on",
    )
    .within(Bounds::Text(
        is_model_name,
        "a name without blanks and commas",
    )),
    OfModel::new(
        "backend",
        |m| &mut m.backend,
        "\"cpu\"",
        "Which backend computes (see `loquat backends`); `auto` takes one with a GPU where there \
         is one, else the CPU",
    )
    .flag("backend"),
    OfModel::new(
        "device",
        |m| &mut m.device,
        "\"cpu (8 threads, avx512-vnni)\"",
        "Which of the backend's devices, by the label that `loquat backends` shows; the first \
         when left out",
    ),
    OfModel::new(
        "kv_format",
        |m| &mut m.kv_format,
        "\"f32\"",
        "How KV is to be kept: `f32`, `f16`, `bf16` or `q8`, and refused where the backend or the \
         model cannot; `auto` takes what the backend prefers",
    ),
    OfModel::new(
        "context",
        |m| &mut m.context,
        "8192",
        "Longest context in tokens, at most the model's own, which it is when left out",
    )
    .within(AT_LEAST_ONE)
    .flag("context"),
    OfModel::new(
        "memory",
        |m| &mut m.memory,
        "\"6GiB\"",
        "All memory it may take: what weights leave of it is for KV. Left out, KV takes at most \
         a quarter of the machine",
    )
    .flag("memory"),
    OfModel::new(
        "threads",
        |m| &mut m.threads,
        "8",
        "Threads for computing; all cores when left out",
    )
    .within(AT_LEAST_ONE)
    .flag("threads"),
    OfModel::new(
        "precision",
        |m| &mut m.precision,
        "\"reference\"",
        "`fast` rounds activations and KV as the device likes; `reference` computes in fp32",
    )
    .flag("precision"),
    OfModel::new(
        "parallel",
        |m| &mut m.parallel,
        "8",
        "Requests that compute at once",
    )
    .within(Bounds::Whole(1, 4096))
    .flag("parallel"),
    OfModel::new(
        "max_queue",
        |m| &mut m.max_queue,
        "64",
        "Requests that may wait for room",
    )
    .within(AT_LEAST_ONE)
    .flag("max-queue"),
    OfModel::new(
        "queue_timeout",
        |m| &mut m.queue_timeout,
        "\"30s\"",
        "How long one may wait; as long as it takes when left out",
    )
    .flag("queue-timeout"),
    OfModel::new(
        "max_slowdown",
        |m| &mut m.max_slowdown,
        "1.5",
        "How many times as long running streams may take for a token while prompts come in",
    )
    .within(Bounds::Real(1.0, f64::INFINITY)),
    OfModel::new(
        "cache_bytes",
        |m| &mut m.cache_bytes,
        "\"1GiB\"",
        "Memory for the prefixes of ended requests: \"0B\" keeps none, and left out it is whatever \
         running ones leave",
    )
    .within(Bounds::Bytes(0, u64::MAX)),
    OfModel::new(
        "max_tokens",
        |m| &mut m.max_tokens,
        "1024",
        "Longest reply in tokens where a request does not say",
    )
    .within(AT_LEAST_ONE)
    .flag("max-tokens"),
    OfModel::new(
        "template",
        |m| &mut m.template,
        "\"chatml\"",
        "Another chat template than the model's own: a file, or the name of a built-in one",
    )
    .flag("template"),
    OfModel::new(
        "preload",
        |m| &mut m.preload,
        "true",
        "Load it at start; otherwise at its first use. Models named on the command line are \
         loaded at start",
    ),
    OfModel::new(
        "idle_unload",
        |m| &mut m.idle_unload,
        "\"30m\"",
        "Unload it when it was idle for so long; never when left out",
    )
    .flag("idle-unload"),
    OfModel::new(
        "sampling",
        |m| &mut m.sampling,
        "{ temperature = 0.7, top_k = 40 }",
        "Sampling parameters by their names, where a request does not say; see \
         [sampling.md](sampling.md)",
    ),
    OfModel::new(
        "pooling",
        |m| &mut m.pooling,
        "\"last\"",
        "How embeddings are made of hidden states: their mean, or the last token's",
    ),
];

fn is_model_name(text: &str) -> bool {
    let odd = |letter: char| letter.is_whitespace() || letter.is_control() || letter == ',';
    !text.is_empty() && !text.contains(odd)
}
