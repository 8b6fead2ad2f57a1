//! Generates the reference page from the parameter table.

use std::fmt::Write;

use super::*;

const OPENING: &str = "\
# Sampling

How the next token is chosen from a model's logits. This page is generated from the table of
parameters in `crates/engine/src/sampling/parameter.rs`; a test fails if the two differ, and
`LOQUAT_WRITE_DOCS=1 cargo test -p loquat-engine --lib reference` regenerates it.

A value outside its range is refused with an error that names the parameter; nothing is ignored. A
parameter that the request omits takes the checkpoint's own value (`generation_config.json`, or the
`general.sampling.*` fields of a GGUF file), or else the default below. Every default leaves the
model's distribution unchanged: by itself, or because the parameter only configures a step that is
off.

The same logits, request and seed give the same token on every machine and under any load.
";

const ORDER_TEXT: &str = "\
`order` (llama.cpp's `samplers`) lists the steps to take, first to last. A repeated or unknown step
is refused. A step that is not listed is skipped; if a parameter switches it on, the request is
refused. The default is llama.cpp's order with the temperature moved before the truncations:
transformers and vLLM apply it there, and the authors of a checkpoint's `generation_config.json`
chose their values for that. llama.cpp's own order is `penalties, dry, top_n_sigma, top_k,
typical_p, top_p, min_p, xtc, temperature`.

The logit bias and everything that forbids tokens (`bad_words`, `allowed_tokens`, `min_tokens`, a
constraint) are not part of the order, because they hold in any. They come before the first step
other than `penalties`. A forbidden token stays forbidden: no step brings a token back, and no step
drops the last one. Mirostat comes after all steps, and the draw last.

Below, `l` are the logits that the previous steps left, and `p` is their softmax over the remaining
tokens. Ties go to the lower token id.
";

const FORBID_TEXT: &str = "\
`l += logit_bias`, for each mention of a token. A sequence of `bad_words` forbids its last token
when prompt and output end with its other tokens. `min_tokens` counts the output. If no token is
left to draw from, the request fails with an error that says why.
";

const MIROSTAT_TEXT: &str = "\
Mirostat 2 keeps tokens with `-log2 p <= mu`, at least the likeliest. `mu` starts at `2
mirostat_tau`; after each draw `mu -= mirostat_eta (s - mirostat_tau)`, where `s` is the drawn
token's surprise in bits among those kept. Unlike in llama.cpp, the steps of the order are taken
first.
";

const LOGPROBS_TEXT: &str = "\
Log-probabilities are those of the model's own distribution, before any of this, or those of the
distribution that was drawn from, after all of it, in which dropped tokens have none.
";

fn formula(step: SamplingStep) -> &'static str {
    match step {
        SamplingStep::Penalties => {
            "For tokens among the last `penalty_last_n` of prompt and output: `l / \
             repetition_penalty` where `l > 0`, else `l * repetition_penalty`. Then, for tokens \
             that occur `c > 0` times in the output's part of that window: `l -= presence_penalty \
             + c frequency_penalty`. (As in vLLM; llama.cpp's presence and frequency count the \
             prompt too, and its window defaults to 64.)"
        }
        SamplingStep::Dry => {
            "A token that would extend a repetition of `n` tokens, `n >= dry_allowed_length`, \
             gets `l -= dry_multiplier dry_base ^ (n - dry_allowed_length)`; `n` is the length of \
             the longest suffix of the text that occurs, followed by this token, somewhere in the \
             last `dry_penalty_last_n` tokens. The suffix starts after the last sequence breaker, \
             and a token that contains a breaker is not penalised. Breakers are found in the \
             text, however it is split into tokens."
        }
        SamplingStep::Temperature => {
            "`l / temperature`; 0 keeps only the likeliest token. With `dynatemp_range` the \
             temperature is `low + (high - low) (H / ln n) ^ dynatemp_exponent`, where `low` and \
             `high` are that much below (at least 0) and above `temperature`, `H` is the entropy \
             of `p` and `n` counts the tokens left."
        }
        SamplingStep::TopNSigma => {
            "Keeps `l >= max l - top_n_sigma s`, `s` being the standard deviation of `l` over the \
             tokens left."
        }
        SamplingStep::TopK => "Keeps the `top_k` largest `l`.",
        SamplingStep::TypicalP => {
            "Sorted by `|-ln p - H|`, where `H` is the entropy of `p`, keeps the first tokens \
             whose `p` reach `typical_p` together."
        }
        SamplingStep::TopP => {
            "Sorted by `p`, keeps the first tokens whose `p` reach `top_p` together."
        }
        SamplingStep::MinP => "Keeps `p >= min_p max p`.",
        SamplingStep::Xtc => {
            "With the probability `xtc_probability`: of the tokens with `p >= xtc_threshold`, \
             drops all but the least likely."
        }
    }
}

fn page() -> String {
    let mut page = OPENING.to_owned();
    let mut section = |title: &str, text: &str, parameters: &[Parameter]| {
        let _ = write!(page, "\n## {title}\n\n{}\n", text.trim_end());
        if !parameters.is_empty() {
            page.push_str("\n| parameter | value | default | |\n|---|---|---|---|\n");
        }
        for parameter in parameters {
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} |",
                parameter.name,
                value(parameter),
                default(parameter),
                parameter.help
            );
        }
    };
    let of = |names: &[&str]| -> Vec<Parameter> {
        let chosen = PARAMETERS.iter().filter(|p| names.contains(&p.name));
        chosen.copied().collect()
    };
    section("The order", ORDER_TEXT, &of(&["order", "seed"]));
    let forbidding = ["logit_bias", "bad_words", "allowed_tokens", "min_tokens"];
    section("Bias and exclusions", FORBID_TEXT, &of(&forbidding));
    for step in DEFAULT_ORDER {
        let parameters = PARAMETERS.iter().filter(|p| p.step == Some(step));
        let parameters: Vec<Parameter> = parameters.copied().collect();
        let title = format!("Step `{step}`");
        section(&title, &wrapped(formula(step)), &parameters);
    }
    let mirostat = ["mirostat", "mirostat_tau", "mirostat_eta"];
    section("Mirostat", MIROSTAT_TEXT, &of(&mirostat));
    section("Log-probabilities", LOGPROBS_TEXT, &[]);
    page
}

fn value(parameter: &Parameter) -> String {
    let Parameter { min, max, .. } = parameter;
    match parameter.kind {
        ParameterKind::Integer if parameter.name == MIROSTAT.name => "0 or 2".into(),
        ParameterKind::Integer => format!("a whole number from {min} to {max}"),
        ParameterKind::Float => format!("from {min} to {max}"),
        ParameterKind::Biases => format!("tokens, each with a number from {min} to {max}"),
        ParameterKind::Tokens => "tokens".into(),
        ParameterKind::TokenSequences => "sequences of tokens".into(),
        ParameterKind::Strings => "strings".into(),
        ParameterKind::Steps => "names of steps".into(),
        ParameterKind::Seed => "a whole number of 64 bits".into(),
    }
}

fn default(parameter: &Parameter) -> String {
    match parameter.kind {
        ParameterKind::Integer | ParameterKind::Float => parameter.default.to_string(),
        ParameterKind::Biases
        | ParameterKind::Tokens
        | ParameterKind::TokenSequences
        | ParameterKind::Seed => "none".into(),
        ParameterKind::Strings => {
            let shown = |breaker: &str| format!("`{}`", breaker.replace('\n', "\\n"));
            DEFAULT_DRY_SEQUENCE_BREAKERS.map(shown).join(" ")
        }
        ParameterKind::Steps => format!("`{}`", DEFAULT_ORDER.map(SamplingStep::name).join(", ")),
    }
}

/// Wraps text like the rest of the page.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 99;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= WIDTH {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

#[test]
fn reference_page_matches_table() {
    let tests = "-p loquat-engine --lib reference";
    loquat_testkit::docs::assert_current("docs/sampling.md", &page(), tests);
}

#[test]
fn every_parameter_is_on_the_page() {
    let page = page();
    for parameter in PARAMETERS {
        let row = format!("\n| `{}` |", parameter.name);
        assert_eq!(page.matches(&row).count(), 1, "{}", parameter.name);
    }
}
