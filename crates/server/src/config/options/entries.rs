//! The options of a key and of a model.

use loquat_engine::SpeculationOptions;

use super::{AT_LEAST_ONE, Setting};
use crate::config::option_value::Bounds;
use crate::config::{Key, ModelConfig};

type KeySetting = Setting<Key>;
type ModelSetting = Setting<ModelConfig>;

pub const KEYS: &[KeySetting] = &[
    KeySetting::new(
        "name",
        |k| &mut k.name,
        "\"team-a\"",
        "Its name in the log and the metrics",
    )
    .required(),
    KeySetting::new(
        "hash",
        |k| &mut k.hash,
        "\"sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"",
        "The key's SHA-256; `loquat config key NAME` generates both",
    )
    .required(),
    KeySetting::new(
        "scopes",
        |k| &mut k.scopes,
        "[\"inference\", \"metrics\"]",
        "What the key allows",
    ),
    KeySetting::new(
        "models",
        |k| &mut k.models,
        "[\"small\"]",
        "Names of the models it may use; all if unset",
    ),
    KeySetting::new(
        "requests_per_minute",
        |k| &mut k.requests_per_minute,
        "60",
        "Requests per minute",
    )
    .within(AT_LEAST_ONE),
    KeySetting::new(
        "tokens_per_minute",
        |k| &mut k.tokens_per_minute,
        "100000",
        "Tokens per minute, prompt and completion together",
    )
    .within(AT_LEAST_ONE),
    KeySetting::new(
        "concurrent",
        |k| &mut k.concurrent,
        "4",
        "Concurrent requests",
    )
    .within(AT_LEAST_ONE),
];

pub const MODELS: &[ModelSetting] = &[
    ModelSetting::new("name", |m| &mut m.name, "\"small\"", "The model's name in requests")
        .within(Bounds::Text(
            is_model_name,
            "a name without spaces or commas",
        ))
        .required(),
    ModelSetting::new(
        "source",
        |m| &mut m.source,
        "\"/var/lib/models/small.gguf\"",
        "A catalog name, a hub repository (`owner/name`, optionally with `@revision` and `:quant` or \
         `:file`), or the path of a model directory or file",
    )
    .required(),
    ModelSetting::new(
        "kind",
        |m| &mut m.kind,
        "\"gguf\"",
        "Which files to load if the source has several kinds: GGUF, safetensors quantized by MLX, \
         or safetensors as trained; for catalog models the default is GGUF",
    )
    .flag("kind"),
    ModelSetting::new(
        "mmproj",
        |m| &mut m.mmproj,
        "\"/var/lib/models/mmproj-small-f16.gguf\"",
        "The vision tower of a GGUF model: an mmproj file, or `owner/name:file` on the hub; `none` \
         for text only; when unset, one next to the model or in its repository, if there is one",
    )
    .flag("mmproj"),
    ModelSetting::new(
        "aliases",
        |m| &mut m.aliases,
        "[\"gpt-4o-mini\", \"claude-*\"]",
        "Further names, such as those that a client requires; `*` matches any text",
    )
    .within(Bounds::Text(
        is_model_name,
        "a name without spaces or commas",
    )),
    ModelSetting::new(
        "backend",
        |m| &mut m.backend,
        "\"cpu\"",
        "The backend (see `loquat backends`); `auto` prefers a GPU and falls back to the CPU",
    )
    .flag("backend"),
    ModelSetting::new(
        "device",
        |m| &mut m.device,
        "\"cpu (8 threads, avx512-vnni)\"",
        "The device's label, as `loquat backends` shows it; the backend's first device if unset",
    ),
    ModelSetting::new(
        "kv_format",
        |m| &mut m.kv_format,
        "\"f32\"",
        "The KV format, such as `f16`, `q8`, `k8v4` or `turbo4`, an error if the backend or the model \
         does not support it; `auto` is the backend's choice",
    ),
    ModelSetting::new(
        "context",
        |m| &mut m.context,
        "8192",
        "Longest context in tokens; the model's own if unset, and never more",
    )
    .within(AT_LEAST_ONE)
    .flag("context"),
    ModelSetting::new(
        "memory",
        |m| &mut m.memory,
        "\"6GiB\"",
        "Memory limit for weights and KV together. If unset, KV takes at most a quarter of the \
         machine's memory",
    )
    .flag("memory"),
    ModelSetting::new(
        "media_positions",
        |m| &mut m.media_positions,
        "2048",
        "Positions of images and videos that may be encoded at once, and so the largest video; 0 \
         leaves a model's vision tower unloaded. If unset, 8192 for models that read images",
    )
    .within(Bounds::Whole(0, u32::MAX as u64))
    .flag("media-positions"),
    ModelSetting::new(
        "threads",
        |m| &mut m.threads,
        "8",
        "Compute threads; one per core if unset",
    )
    .within(AT_LEAST_ONE)
    .flag("threads"),
    ModelSetting::new(
        "precision",
        |m| &mut m.precision,
        "\"reference\"",
        "`fast` rounds activations and KV to the device's formats; `reference` computes in fp32",
    )
    .flag("precision"),
    ModelSetting::new(
        "parallel",
        |m| &mut m.parallel,
        "8",
        "Requests that run concurrently",
    )
    .within(Bounds::Whole(1, 4096))
    .flag("parallel"),
    ModelSetting::new(
        "max_queue",
        |m| &mut m.max_queue,
        "64",
        "Requests that may wait in the queue",
    )
    .within(AT_LEAST_ONE)
    .flag("max-queue"),
    ModelSetting::new(
        "queue_timeout",
        |m| &mut m.queue_timeout,
        "\"30s\"",
        "How long a request may wait in the queue; no limit if unset",
    )
    .flag("queue-timeout"),
    ModelSetting::new(
        "max_slowdown",
        |m| &mut m.max_slowdown,
        "1.5",
        "How much prefill may slow down running streams: the ratio of their times per token",
    )
    .within(Bounds::Real(1.0, f64::INFINITY)),
    ModelSetting::new(
        "speculative",
        |m| &mut m.speculative,
        "\"off\"",
        "Speculative decoding: `lookup` drafts what followed the last tokens when they occurred \
         before, and verifies as many drafts in a step as pay; `auto` does so if results stay the \
         same to the last bit",
    )
    .flag("speculative"),
    ModelSetting::new(
        "draft_max",
        |m| &mut m.draft_max,
        "8",
        "Most drafts of a request in a step; requests can set fewer as `speculative.n_max`",
    )
    .within(Bounds::Whole(1, SpeculationOptions::MOST_TOKENS as u64))
    .flag("draft-max"),
    ModelSetting::new(
        "cache_bytes",
        |m| &mut m.cache_bytes,
        "\"1GiB\"",
        "Memory for the prefixes of finished requests; \"0B\" disables the cache. If unset, all \
         memory that running requests leave free",
    )
    .within(Bounds::Bytes(0, u64::MAX)),
    ModelSetting::new(
        "kv_disk",
        |m| &mut m.kv_disk,
        "\"10GiB\"",
        "Disk space for the prefixes of finished requests, in `kv-blocks` of the cache directory, so \
         that they survive eviction and restarts; \"0B\" for none. The limit counts the files of all \
         models and processes there. If unset, 10 GiB if `LOQUAT_CACHE` is set and the backend can \
         export the model's KV, else none",
    )
    .within(Bounds::Bytes(0, u64::MAX))
    .flag("kv-disk"),
    ModelSetting::new(
        "max_tokens",
        |m| &mut m.max_tokens,
        "1024",
        "Longest reply in tokens if the request sets no limit",
    )
    .within(AT_LEAST_ONE)
    .flag("max-tokens"),
    ModelSetting::new(
        "template",
        |m| &mut m.template,
        "\"chatml\"",
        "Replaces the model's chat template: a file, or the name of a built-in template",
    )
    .flag("template"),
    ModelSetting::new(
        "preload",
        |m| &mut m.preload,
        "true",
        "Load the model at start instead of at its first use. Models named on the command line \
         are always loaded at start",
    ),
    ModelSetting::new(
        "idle_unload",
        |m| &mut m.idle_unload,
        "\"30m\"",
        "Unload the model after this idle time; never if unset",
    )
    .flag("idle-unload"),
    ModelSetting::new(
        "step_timeout",
        |m| &mut m.step_timeout,
        "\"2m\"",
        "A step of the model that takes longer hangs: its requests fail, and the model is opened again",
    ),
    ModelSetting::new(
        "sampling",
        |m| &mut m.sampling,
        "{ temperature = 0.7, top_k = 40 }",
        "Default sampling parameters by name; see [sampling.md](sampling.md)",
    ),
    ModelSetting::new(
        "pooling",
        |m| &mut m.pooling,
        "\"last\"",
        "How hidden states become an embedding: their mean, or the last token's",
    ),
    ModelSetting::new(
        "adapters",
        |m| &mut m.adapters,
        "{ poet = \"/var/lib/adapters/poet\", sql = { source = \"/var/lib/adapters/sql\", \
         scale = 0.5, pinned = true } }",
        "Adapters (LoRA) by the names that requests choose them by: directories of peft or mlx-lm, \
         GGUF adapters, or `owner/name[@revision][:file]` on the hub. One is loaded at its first use, and the least recently used one makes \
         room; a pinned one is loaded with the model and stays. `scale` multiplies its strength",
    ),
    ModelSetting::new(
        "adapter_folders",
        |m| &mut m.adapter_folders,
        "[\"/var/lib/adapters\"]",
        "Folders from which `/v1/load_lora_adapter` may load adapters; none if unset",
    ),
    ModelSetting::new(
        "adapter_repos",
        |m| &mut m.adapter_repos,
        "[\"owner/*\"]",
        "Repositories on the hub from which `/v1/load_lora_adapter` may load adapters, `*` matches \
         any text; none if unset",
    )
    .within(Bounds::Text(is_repo_pattern, "`owner/name`, in which `*` matches any text")),
    ModelSetting::new(
        "max_adapters",
        |m| &mut m.max_adapters,
        "16",
        "Adapters that are loaded at once",
    )
    .within(Bounds::Whole(1, 4096)),
    ModelSetting::new(
        "adapter_memory",
        |m| &mut m.adapter_memory,
        "\"2GiB\"",
        "Memory for all loaded adapters, set aside when the model is loaded if it takes any",
    )
    .within(Bounds::Bytes(1, u64::MAX)),
    ModelSetting::new(
        "max_adapter_rank",
        |m| &mut m.max_adapter_rank,
        "128",
        "The largest rank of an adapter",
    )
    .within(Bounds::Whole(1, 65536)),
];

fn is_repo_pattern(text: &str) -> bool {
    let is_part = |part: &str| {
        let known = |letter: char| letter.is_ascii_alphanumeric() || "-_.*".contains(letter);
        !part.is_empty() && part.chars().all(known)
    };
    text.split_once('/')
        .is_some_and(|(owner, name)| is_part(owner) && is_part(name))
}

fn is_model_name(text: &str) -> bool {
    let odd = |letter: char| letter.is_whitespace() || letter.is_control() || letter == ',';
    !text.is_empty() && !text.contains(odd)
}
