//! The tokens that end a reply: those the files name, and well-known end-of-turn tokens.

use serde_json::Value;

/// Special tokens that end a turn wherever they exist; files often name only one of them.
const WELL_KNOWN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "</s>",
    "<eos>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<fim_pad>",
    "<|repo_name|>",
    "<reponame>",
    "<|file_sep|>",
];

/// If all of `beside` exist, `name` is an ordinary delimiter: in gpt-oss and Solar `<|end|>` closes
/// a message within a turn, in Gemma 4 `</s>` is an HTML tag.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    ("<|end|>", &["<|return|>", "<|call|>"]),
    ("<|end|>", &["<|flush|>", "<|calls|>"]),
    ("</s>", &["<|tool_response>"]),
];

/// Joins the ids named by files with the well-known ones; `special` finds a special token's id.
pub(crate) fn collect(
    named: impl IntoIterator<Item = u32>,
    special: impl Fn(&str) -> Option<u32>,
) -> Vec<u32> {
    let excepted = |name: &str| {
        EXCEPTIONS.iter().any(|(exception, beside)| {
            *exception == name && beside.iter().all(|other| special(other).is_some())
        })
    };
    let known = WELL_KNOWN.iter().filter(|name| !excepted(name));
    let mut ids: Vec<u32> = Vec::new();
    for id in named
        .into_iter()
        .chain(known.filter_map(|name| special(name)))
    {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

/// `eos_token_id` of a `config.json` or `generation_config.json`: a number or a list of them,
/// also one level down in `text_config`.
pub(crate) fn named_in(config: &Value) -> Vec<u32> {
    let places = [
        config.get("eos_token_id"),
        config.pointer("/text_config/eos_token_id"),
    ];
    let values = places.into_iter().flatten().flat_map(|value| match value {
        Value::Array(list) => list.iter().collect(),
        single => vec![single],
    });
    values
        .filter_map(|value| u32::try_from(value.as_u64()?).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_merge_without_duplicates_or_exceptions() {
        type Vocabulary = &'static [(&'static str, u32)];
        let cases: [(&[u32], Vocabulary, &[u32]); 4] = [
            (&[7, 7], &[("<|im_end|>", 7), ("<|endoftext|>", 3)], &[7, 3]),
            (&[], &[("<|end|>", 1)], &[1]),
            (
                &[2],
                &[("<|end|>", 1), ("<|return|>", 2), ("<|call|>", 3)],
                &[2, 3],
            ),
            (&[], &[("</s>", 4), ("<|tool_response>", 5)], &[5]),
        ];
        for (named, special, ids) in cases {
            let find = |name: &str| special.iter().find(|(n, _)| *n == name).map(|(_, id)| *id);
            assert_eq!(collect(named.iter().copied(), find), ids);
        }
    }

    #[test]
    fn config_accepts_one_id_or_list() {
        let cases: [(Value, &[u32]); 4] = [
            (json!({"eos_token_id": 2}), &[2]),
            (json!({"eos_token_id": [1, 106]}), &[1, 106]),
            (json!({"text_config": {"eos_token_id": 5}}), &[5]),
            (json!({"eos_token_id": null}), &[]),
        ];
        for (config, ids) in cases {
            assert_eq!(named_in(&config), ids);
        }
    }
}
