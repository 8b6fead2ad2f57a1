//! Templates for models that bring none: one per published format, chosen by the tokens of
//! the model's vocabulary and by the templates that its family lists.
//!
//! They write plain turns of system, user and assistant. Tools, parts and thinking need the model's
//! own template.

use super::ChatTemplate;

struct Builtin {
    name: &'static str,
    /// Whether the tokens alone identify the format. If not, the model's family must list it.
    any_family: bool,
    /// Tokens the vocabulary must have for the format to mean anything to the model.
    tokens: &'static [&'static str],
    text: &'static str,
}

/// In order: the first one that fits is taken.
const TEMPLATES: &[Builtin] = &[
    Builtin {
        name: "llama3",
        any_family: true,
        tokens: &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        text: include_str!("builtin/llama3.jinja"),
    },
    Builtin {
        name: "llama4",
        any_family: true,
        tokens: &["<|header_start|>", "<|header_end|>", "<|eot|>"],
        text: include_str!("builtin/llama4.jinja"),
    },
    Builtin {
        name: "gemma",
        any_family: true,
        tokens: &["<start_of_turn>", "<end_of_turn>"],
        text: include_str!("builtin/gemma.jinja"),
    },
    Builtin {
        name: "gemma4",
        any_family: true,
        tokens: &["<|turn>", "<turn|>"],
        text: include_str!("builtin/gemma4.jinja"),
    },
    Builtin {
        name: "mistral-v7",
        any_family: true,
        tokens: &["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"],
        text: include_str!("builtin/mistral-v7.jinja"),
    },
    Builtin {
        name: "mistral-v3",
        any_family: true,
        tokens: &["[INST]", "[/INST]"],
        text: include_str!("builtin/mistral-v3.jinja"),
    },
    Builtin {
        name: "command-r",
        any_family: true,
        tokens: &[
            "<|START_OF_TURN_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
            "<|SYSTEM_TOKEN|>",
            "<|USER_TOKEN|>",
            "<|CHATBOT_TOKEN|>",
        ],
        text: include_str!("builtin/command-r.jinja"),
    },
    Builtin {
        name: "granite",
        any_family: true,
        tokens: &["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"],
        text: include_str!("builtin/granite.jinja"),
    },
    Builtin {
        name: "glm4",
        any_family: true,
        tokens: &["[gMASK]", "<sop>", "<|user|>", "<|assistant|>"],
        text: include_str!("builtin/glm4.jinja"),
    },
    Builtin {
        name: "gpt-oss",
        any_family: true,
        tokens: &["<|start|>", "<|message|>", "<|channel|>", "<|end|>"],
        text: include_str!("builtin/gpt-oss.jinja"),
    },
    Builtin {
        name: "deepseek",
        any_family: true,
        tokens: &["<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"],
        text: include_str!("builtin/deepseek.jinja"),
    },
    Builtin {
        name: "deepseek-v2",
        any_family: false,
        tokens: &["<｜end▁of▁sentence｜>"],
        text: include_str!("builtin/deepseek-v2.jinja"),
    },
    Builtin {
        name: "exaone4",
        any_family: true,
        tokens: &["[|user|]", "[|assistant|]", "[|endofturn|]"],
        text: include_str!("builtin/exaone4.jinja"),
    },
    Builtin {
        name: "minimax-m2",
        any_family: true,
        tokens: &["]~!b[", "]~b]", "[e~["],
        text: include_str!("builtin/minimax-m2.jinja"),
    },
    Builtin {
        name: "seed-oss",
        any_family: true,
        tokens: &["<seed:bos>", "<seed:eos>"],
        text: include_str!("builtin/seed-oss.jinja"),
    },
    Builtin {
        name: "kimi",
        any_family: true,
        tokens: &[
            "<|im_system|>",
            "<|im_user|>",
            "<|im_assistant|>",
            "<|im_middle|>",
            "<|im_end|>",
        ],
        text: include_str!("builtin/kimi.jinja"),
    },
    Builtin {
        name: "phi3",
        any_family: false,
        tokens: &["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
        text: include_str!("builtin/phi3.jinja"),
    },
    Builtin {
        name: "phi4",
        any_family: true,
        tokens: &["<|im_start|>", "<|im_sep|>", "<|im_end|>"],
        text: include_str!("builtin/phi4.jinja"),
    },
    Builtin {
        name: "lfm2",
        any_family: false,
        tokens: &["<|startoftext|>", "<|im_start|>", "<|im_end|>"],
        text: include_str!("builtin/lfm2.jinja"),
    },
    Builtin {
        name: "chatml",
        any_family: true,
        tokens: &["<|im_start|>", "<|im_end|>"],
        text: include_str!("builtin/chatml.jinja"),
    },
    Builtin {
        name: "tulu",
        any_family: false,
        tokens: &["<|endoftext|>"],
        text: include_str!("builtin/tulu.jinja"),
    },
    Builtin {
        name: "llama2",
        any_family: false,
        // The vocabulary of Llama 2, whose turns are spelt out.
        tokens: &["<s>", "</s>", "<0x0A>", "▁the"],
        text: include_str!("builtin/llama2.jinja"),
    },
    Builtin {
        name: "zephyr",
        any_family: false,
        tokens: &[],
        text: include_str!("builtin/zephyr.jinja"),
    },
    Builtin {
        name: "vicuna",
        any_family: false,
        tokens: &[],
        text: include_str!("builtin/vicuna.jinja"),
    },
];

impl ChatTemplate {
    /// A template for a model that brings none, with its name: the first one all of whose special
    /// tokens the vocabulary has. `listed` names those that only the model's family uses.
    pub fn builtin(
        listed: &[&str],
        has_token: &dyn Fn(&str) -> bool,
    ) -> Option<(&'static str, ChatTemplate)> {
        let fits = |builtin: &&Builtin| {
            let allowed = builtin.any_family || listed.contains(&builtin.name);
            allowed && builtin.tokens.iter().all(|token| has_token(token))
        };
        let builtin = TEMPLATES.iter().find(fits)?;
        Some((builtin.name, Self::new(builtin.text).ok()?))
    }

    /// The built-in template of this name.
    pub fn builtin_named(name: &str) -> Option<ChatTemplate> {
        let builtin = TEMPLATES.iter().find(|builtin| builtin.name == name)?;
        Self::new(builtin.text).ok()
    }

    /// The names of all built-in templates.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        TEMPLATES.iter().map(|builtin| builtin.name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::template::{ChatInput, Clock};

    fn render(name: &str) -> String {
        let template = ChatTemplate::builtin_named(name).expect(name);
        let input = ChatInput {
            messages: json!([
                {"role": "system", "content": "S"},
                {"role": "user", "content": "Q"},
                {"role": "assistant", "content": "A"},
                {"role": "user", "content": "R"},
            ]),
            add_generation_prompt: true,
            bos_token: "<s>".to_owned(),
            eos_token: "</s>".to_owned(),
            ..ChatInput::default()
        };
        let clock = Clock::Fixed(1_767_323_045);
        template.with_clock(clock).render(&input).expect(name)
    }

    #[test]
    fn turns_render_in_each_format() {
        let cases = [
            (
                "chatml",
                "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>\
                 assistant\nA<|im_end|>\n<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n",
            ),
            (
                "lfm2",
                "<s><|im_start|>system\nS<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>\
                 assistant\nA<|im_end|>\n<|im_start|>user\nR<|im_end|>\n<|im_start|>assistant\n",
            ),
            (
                "llama3",
                "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>\
                 user<|end_header_id|>\n\nQ<|eot_id|><|start_header_id|>assistant<|end_header_id|>\
                 \n\nA<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nR<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (
                "llama4",
                "<s><|header_start|>system<|header_end|>\n\nS<|eot|><|header_start|>user\
                 <|header_end|>\n\nQ<|eot|><|header_start|>assistant<|header_end|>\n\nA<|eot|>\
                 <|header_start|>user<|header_end|>\n\nR<|eot|><|header_start|>assistant\
                 <|header_end|>\n\n",
            ),
            (
                "llama2",
                "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nQ [/INST] A </s><s>[INST] R [/INST]",
            ),
            ("mistral-v3", "<s>[INST] Q[/INST] A</s>[INST] S\n\nR[/INST]"),
            (
                "mistral-v7",
                "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]Q[/INST]A</s>[INST]R[/INST]",
            ),
            (
                "gemma",
                "<s><start_of_turn>user\nS\n\nQ<end_of_turn>\n<start_of_turn>model\nA\
                 <end_of_turn>\n<start_of_turn>user\nR<end_of_turn>\n<start_of_turn>model\n",
            ),
            (
                "gemma4",
                "<s><|turn>system\nS<turn|>\n<|turn>user\nQ<turn|>\n<|turn>model\nA<turn|>\n\
                 <|turn>user\nR<turn|>\n<|turn>model\n",
            ),
            (
                "phi3",
                "<|system|>\nS<|end|>\n<|user|>\nQ<|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nR\
                 <|end|>\n<|assistant|>\n",
            ),
            (
                "phi4",
                "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>Q<|im_end|>\
                 <|im_start|>assistant<|im_sep|>A<|im_end|><|im_start|>user<|im_sep|>R<|im_end|>\
                 <|im_start|>assistant<|im_sep|>",
            ),
            (
                "deepseek",
                "<s>S<｜User｜>Q<｜Assistant｜>A<｜end▁of▁sentence｜><｜User｜>R<｜Assistant｜>",
            ),
            (
                "deepseek-v2",
                "<s>S\n\nUser: Q\n\nAssistant: A</s>User: R\n\nAssistant:",
            ),
            (
                "command-r",
                "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|>\
                 <|START_OF_TURN_TOKEN|><|USER_TOKEN|>Q<|END_OF_TURN_TOKEN|>\
                 <|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>A<|END_OF_TURN_TOKEN|>\
                 <|START_OF_TURN_TOKEN|><|USER_TOKEN|>R<|END_OF_TURN_TOKEN|>\
                 <|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            ),
            (
                "granite",
                "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user\
                 <|end_of_role|>Q<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>A\
                 <|end_of_text|>\n<|start_of_role|>user<|end_of_role|>R<|end_of_text|>\n\
                 <|start_of_role|>assistant<|end_of_role|>",
            ),
            (
                "glm4",
                "[gMASK]<sop><|system|>\nS<|user|>\nQ<|assistant|>\nA<|user|>\nR<|assistant|>\n",
            ),
            (
                "gpt-oss",
                "<|start|>system<|message|>You are ChatGPT, a large language model trained by \
                 OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: 2026-01-02\n\nReasoning: \
                 medium\n\n# Valid channels: analysis, commentary, final. Channel must be \
                 included for every message.<|end|><|start|>developer<|message|># Instructions\
                 \n\nS\n\n<|end|><|start|>user<|message|>Q<|end|><|start|>assistant<|channel|>\
                 final<|message|>A<|end|><|start|>user<|message|>R<|end|><|start|>assistant",
            ),
            (
                "exaone4",
                "[|system|]\nS[|endofturn|]\n[|user|]\nQ[|endofturn|]\n[|assistant|]\nA\
                 [|endofturn|]\n[|user|]\nR[|endofturn|]\n[|assistant|]\n",
            ),
            (
                "minimax-m2",
                "]~!b[]~b]system\nS[e~[\n]~b]user\nQ[e~[\n]~b]ai\nA[e~[\n]~b]user\nR[e~[\n]~b]ai\n\
                 <think>\n",
            ),
            (
                "seed-oss",
                "<seed:bos>system\nS<seed:eos><seed:bos>user\nQ<seed:eos><seed:bos>assistant\nA\
                 <seed:eos><seed:bos>user\nR<seed:eos><seed:bos>assistant\n",
            ),
            (
                "kimi",
                "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>Q\
                 <|im_end|><|im_assistant|>assistant<|im_middle|>A<|im_end|><|im_user|>user\
                 <|im_middle|>R<|im_end|><|im_assistant|>assistant<|im_middle|>",
            ),
            (
                "tulu",
                "<s><|system|>\nS\n<|user|>\nQ\n<|assistant|>\nA</s>\n<|user|>\nR\n<|assistant|>\n",
            ),
            (
                "zephyr",
                "<|system|>\nS</s>\n<|user|>\nQ</s>\n<|assistant|>\nA</s>\n<|user|>\nR</s>\n\
                 <|assistant|>\n",
            ),
            (
                "vicuna",
                "<s>S\n\nUSER: Q\nASSISTANT: A</s>\nUSER: R\nASSISTANT:",
            ),
        ];
        for (name, text) in cases {
            assert_eq!(render(name), text, "{name}");
        }
        let tested: Vec<_> = cases.iter().map(|(name, _)| *name).collect();
        for name in ChatTemplate::builtin_names() {
            assert!(tested.contains(&name), "{name} is not in the table");
        }
    }

    #[test]
    fn family_and_vocabulary_choose_template() {
        let chatml = &["<|im_start|>", "<|im_end|>"][..];
        let llama2 = &["<s>", "</s>", "<0x0A>", "▁the"][..];
        let phi3 = &["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"][..];
        let lfm2 = &["<|startoftext|>", "<|im_start|>", "<|im_end|>"][..];
        let llama3 = &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"][..];
        let phi4 = &["<|im_start|>", "<|im_sep|>", "<|im_end|>"][..];
        let cases: [(&[&str], &[&str], Option<&str>); 12] = [
            (&[], chatml, Some("chatml")),
            (&["llama2"], llama3, Some("llama3")),
            (&["llama2"], llama2, Some("llama2")),
            (&[], llama2, None),
            (
                &["llama2"],
                &["<s>", "[INST]", "[/INST]"],
                Some("mistral-v3"),
            ),
            (&["lfm2"], lfm2, Some("lfm2")),
            (&[], lfm2, Some("chatml")),
            (&["phi3"], phi3, Some("phi3")),
            (&["phi3"], phi4, Some("phi4")),
            (&[], phi3, None),
            (&[], &["<|endoftext|>"], None),
            (&["tulu"], &["<|endoftext|>"], Some("tulu")),
        ];
        for (listed, tokens, expected) in cases {
            let chosen = ChatTemplate::builtin(listed, &|token| tokens.contains(&token));
            let chosen = chosen.map(|(name, _)| name);
            assert_eq!(chosen, expected, "{listed:?} {tokens:?}");
        }
    }

    #[test]
    fn families_list_existing_templates() {
        for family in loquat_spec::families::all() {
            for name in family.facts.templates {
                let found = TEMPLATES.iter().find(|builtin| builtin.name == *name);
                let needs_family = found.is_some_and(|builtin| !builtin.any_family);
                assert!(needs_family, "{:?}: {name}", family.model_types);
            }
        }
    }
}
