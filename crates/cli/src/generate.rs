//! `loquat generate`: a text continued as it is.

use loquat_engine::GenerateRequest;
use loquat_text::Special;

use crate::args::GenerateArgs;
use crate::error::CliError;
use crate::load::{Model, Speaker, locate, open_store_on};
use crate::sampling::Sampling;
use crate::show::{Thinking, close, listener};
use crate::stream::hear;
use crate::wait::Interrupts;
use crate::{backends, prompt, voice};

pub fn run(args: &GenerateArgs, verbose: bool) -> Result<(), CliError> {
    let interrupts = Interrupts::listen()?;
    let store = open_store_on(args.source.network)?;
    let words = prompt::sort(
        &store,
        &args.source,
        args.model.as_deref(),
        args.prompt.as_deref(),
    )?;
    // Before a download, which a misspelt backend or a file that is not there would make vain.
    let backend = backends::select(&args.session.backend)?;
    let wanted = args.answer.wanted()?;
    let logprobs = args.output.logprobs()?;
    let prompt = match words.prompt {
        Some(prompt) => prompt,
        None => prompt::from_stdin()?.ok_or(CliError::NoPrompt)?,
    };
    let model = Model::open(&locate(
        &store,
        &args.source.chosen(words.model.as_deref()),
    )?)?;
    let tokenizer = model.tokenizer()?;
    let sampling = Sampling::of(&model.generation_config()?)?;
    let sampling = sampling.with(&args.output.sampling, &tokenizer)?;
    tracing::info!("sampling: {}", sampling.told());
    let grammars = model.grammars(tokenizer.clone());
    let grammar = wanted.map(|wanted| voice::grammar(&grammars, &wanted));
    let grammar = grammar.transpose()?;
    let prompt = tokenizer.encode(&prompt, Special::PROMPT)?;
    if prompt.is_empty() {
        return Err(CliError::NoPrompt);
    }
    let stop_ids = if args.ignore_eos {
        Vec::new()
    } else {
        tokenizer.eos_ids().to_vec()
    };

    let speaker = Speaker::load(&model, tokenizer, backend, &args.session)?;
    let is_held = grammar.is_some();
    let generation = speaker.engine.submit(GenerateRequest {
        max_tokens: speaker.max_tokens(args.output.max_tokens, prompt.len()),
        prompt,
        sampling: sampling.params,
        stop_ids,
        stop: args.output.stop.clone(),
        logprobs,
        skip_special: true,
        constraint: grammar.map(|grammar| grammar.constraint()),
        ..GenerateRequest::default()
    })?;
    let form = args.output.output;
    let tokens = &speaker.tokenizer;
    let mut listener = listener(form, Thinking::Hidden, tokens, logprobs.is_some());
    let heard = hear(generation, None, &interrupts, listener.as_mut())?;
    close(&heard, speaker.room(), is_held, verbose);
    match heard.end {
        Some(_) => Ok(()),
        None => Err(CliError::Interrupted),
    }
}
