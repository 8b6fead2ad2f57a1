//! `loquat generate`: a text continued as it is.

use loquat_engine::GenerateRequest;
use loquat_text::Special;

use crate::args::GenerateArgs;
use crate::backends;
use crate::error::CliError;
use crate::load::{Model, Speaker, locate, open_store};
use crate::prompt;
use crate::stream::show;
use crate::wait::Interrupts;

pub fn run(args: &GenerateArgs, verbose: bool) -> Result<(), CliError> {
    let store = open_store()?;
    let words = prompt::sort(&store, args.model.as_deref(), args.prompt.as_deref())?;
    // Before a download, which a misspelt backend would make vain.
    let backend = backends::select(&args.session.backend)?;
    let prompt = match words.prompt {
        Some(prompt) => prompt,
        None => prompt::from_stdin()?.ok_or(CliError::NoPrompt)?,
    };
    let model = Model::open(&locate(&store, words.model.as_deref())?)?;
    let speaker = Speaker::load(&model, backend, &args.session)?;
    let interrupts = Interrupts::listen()?;
    let prompt = speaker.tokenizer.encode(&prompt, Special::PROMPT)?;
    if prompt.is_empty() {
        return Err(CliError::NoPrompt);
    }
    let stop_ids = match args.ignore_eos {
        true => Vec::new(),
        false => speaker.tokenizer.eos_ids().to_vec(),
    };
    let generation = speaker.engine.submit(GenerateRequest {
        max_tokens: speaker.max_tokens(args.output.max_tokens, prompt.len()),
        prompt,
        sampling: args.output.sampling(),
        stop_ids,
        stop: args.output.stop.clone(),
        skip_special: true,
        ..GenerateRequest::default()
    })?;
    match show(generation, &interrupts, speaker.room(), verbose)?.interrupted {
        true => Err(CliError::Interrupted),
        false => Ok(()),
    }
}
